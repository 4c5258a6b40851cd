"""Do files reach the layer above the run without their sources being at risk?"""

from __future__ import annotations

import os
from pathlib import Path

from spike.lab.guards.choice import Guard
from spike.lab.guards.edits import files_of, put, remove_extras
from spike.lab.placement import is_same, placement
from spike.lab.tree_state import tree_state


def test_a_read_only_pin_is_copied_so_that_it_may_be_overwritten(tmp_path: Path) -> None:
    pin, root, layer = tmp_path / "pin", tmp_path / "root", tmp_path / "layer"
    for directory in (pin, root / "out", layer):
        directory.mkdir(parents=True)
    (pin / "model").write_text("weights")
    (pin / "model").chmod(0o444)
    os.utime(pin / "model", ns=(1, 5_000_000_000))
    before = tree_state(pin)
    put(str(root), layer, str(pin), str(root / "out" / "step-4"))
    shown = layer / "out" / "step-4" / "model"
    assert shown.read_text() == "weights"
    assert shown.stat().st_mode & 0o777 == 0o644
    assert shown.stat().st_mtime_ns == 5_000_000_000
    assert shown.stat().st_ino != (pin / "model").stat().st_ino
    assert tree_state(pin) == before


def test_a_writable_source_costs_nothing_because_lower_layers_are_never_written(tmp_path: Path) -> None:
    source, root, layer = tmp_path / "f", tmp_path / "root", tmp_path / "layer"
    source.write_text("x")
    root.mkdir()
    layer.mkdir()
    (layer / "f").write_text("of an earlier attempt")
    put(str(root), layer, str(source), str(root / "f"))
    assert (layer / "f").stat().st_ino == source.stat().st_ino


def test_a_directory_of_the_layer_looks_like_the_real_one(tmp_path: Path) -> None:
    root, layer = tmp_path / "root", tmp_path / "layer"
    (root / "deep" / "er").mkdir(parents=True)
    layer.mkdir()
    (root / "deep").chmod(0o750)
    os.utime(root / "deep", ns=(1, 7_000_000_000))
    (tmp_path / "f").write_text("x")
    put(str(root), layer, str(tmp_path / "f"), str(root / "deep" / "er" / "f"))
    made = (layer / "deep").stat()
    assert made.st_mode & 0o777 == 0o750


def test_every_file_of_a_tree_gets_its_own_destination(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("x")
    (tmp_path / "to-directory").symlink_to("a")
    found = dict(files_of(str(tmp_path), "/code"))
    assert found == {str(tmp_path / "a" / "f"): "/code/a/f", str(tmp_path / "to-directory"): "/code/to-directory"}


def test_what_the_source_lacks_is_removed_at_every_depth(tmp_path: Path) -> None:
    source, view = tmp_path / "source", tmp_path / "view"
    for path in (source / "d" / "same", view / "d" / "same", view / "d" / "extra", view / "tree" / "f"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    remove_extras(source, view)
    assert sorted(str(p.relative_to(view)) for p in view.rglob("*")) == ["d", "d/same"]


def test_the_original_is_shown_as_it_is_while_it_equals_a_read_only_pin(tmp_path: Path) -> None:
    original, pinned = tmp_path / "original", tmp_path / "pinned"
    for path in (original, pinned):
        path.write_text("same")
    pinned.chmod(0o444)
    assert placement(str(original), str(pinned), tmp_path, Guard.OVERLAY) == ()
    original.write_text("more")
    os.utime(original, ns=(1, 1))
    assert placement(str(original), str(pinned), tmp_path, Guard.OVERLAY) == ((str(pinned), str(original)),)
    original.unlink()
    assert placement(str(original), str(pinned), tmp_path, Guard.LANDLOCK) == ((str(pinned), str(original)),)
    pinned.chmod(0o644)
    original.write_text("same")
    assert placement(str(original), str(pinned), tmp_path, Guard.OVERLAY) == ((str(pinned), str(original)),)


def test_trees_are_the_same_only_with_the_same_names_and_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        directory.mkdir()
        (directory / "f").write_text("same")
    os.utime(other / "f", ns=(1, 1))
    assert is_same(one, other)
    (other / "f").write_text("none")
    os.utime(other / "f", ns=(1, 1))
    assert not is_same(one, other)
    (other / "f").write_text("same")
    (other / "extra").write_text("x")
    assert not is_same(one, other)
    assert not is_same(one, tmp_path / "missing")
