"""Are a run's checkpoints found, in order, once each, with the step that they are of?"""

import argparse
import importlib
import pkgutil
import shutil
import subprocess
import sys

import pytest
import torch
from tests.readers.checkpoints.made import nanogpt

from spike.domain.checkpoint import Integrity
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.measured import NotMeasured
from spike.readers import checkpoints
from spike.readers.checkpoints import find_checkpoints, inspect_checkpoint


def weights(path, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": {"w": torch.ones(3), "v": torch.ones(2)}, **more}, path)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["out/step-1", "out/step-20", "out/step-300"], "out/step-{step}"),
        (["out/step-0001/state.pt", "out/step-0020/state.pt", "out/step-0300/state.pt"], "out/step-{step}/state.pt"),
        (["ckpt_1.pt", "ckpt_20.pt", "ckpt_300.pt"], "ckpt_{step}.pt"),
        (["a/epoch=0-step=1.ckpt", "b/epoch=1-step=20.ckpt", "b/epoch=2-step=300.ckpt"], "*/epoch=*-step={step}.ckpt"),
    ],
)
def test_a_pattern_finds_padded_and_plain_steps_in_numeric_order(tmp_path, names, pattern):
    for name in names:
        path = tmp_path / name
        weights(path if path.suffix else path / "state.pt")
    weights(tmp_path / "out" / "step-final" / "state.pt")
    found = find_checkpoints(tmp_path, pattern)
    assert [c.step for c in found] == [1, 20, 300]
    assert [c.path for c in found] == [str(tmp_path / name) for name in names]


def test_a_pattern_without_a_step_names_one_file(tmp_path):
    nanogpt(tmp_path / "ckpt.pt", step=5)
    assert [c.step for c in find_checkpoints(tmp_path, "ckpt.pt")] == [5]


def test_an_absolute_pattern_reaches_outside_of_the_run(tmp_path):
    weights(tmp_path / "elsewhere" / "step-4.pt")
    (tmp_path / "run").mkdir()
    assert [c.step for c in find_checkpoints(tmp_path / "run", f"{tmp_path}/elsewhere/step-{{step}}.pt")] == [4]


@pytest.mark.parametrize("pattern", ["a-{step}-{step}", "a-{steps}", "a{", "{step"])
def test_an_unusable_pattern_is_refused_with_an_example(tmp_path, pattern):
    with pytest.raises(SpikeError, match="step") as error:
        find_checkpoints(tmp_path, pattern)
    assert "{step}" in error.value.hint


def test_a_link_to_a_checkpoint_does_not_make_it_two(tmp_path):
    weights(tmp_path / "step-3.pt")
    (tmp_path / "step-4.pt").symlink_to("step-3.pt")
    assert len(find_checkpoints(tmp_path, "step-{step}.pt")) == 1
    assert len(find_checkpoints(tmp_path)) == 1


def test_what_the_pattern_names_is_always_in_the_answer(tmp_path):
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-2" / "strange.dat").write_bytes(b"x")
    (tmp_path / "step-3.pt").write_bytes(b"")
    found = find_checkpoints(tmp_path, "step-{step}")
    assert [(c.step, c.integrity) for c in found] == [(1, Integrity.TORN), (2, Integrity.UNVERIFIABLE)]
    (empty,) = find_checkpoints(tmp_path, "step-{step}.pt")
    assert (empty.step, empty.integrity) == (3, Integrity.TORN)


def test_the_contents_win_over_the_path_and_the_contradiction_is_reported(tmp_path):
    weights(tmp_path / "step-7.pt", step=5)
    (found,) = find_checkpoints(tmp_path, "step-{step}.pt")
    assert found.step == 5
    assert "path says step 7, its contents say 5" in found.reason
    assert found.is_whole


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-200.pt", 200),
        ("ckpt_0100.pt", 100),
        ("iter_0000500.pt", 500),
        ("model-30.pt", 30),
        ("global_step3.pt", 3),
        ("step_12/model.pt", 12),
        ("checkpoint-9.pt", 9),
        ("v1.5/last.pt", None),
        ("model.pt", None),
    ],
)
def test_without_a_step_inside_the_name_is_asked(tmp_path, name, step):
    weights(tmp_path / name)
    (found,) = find_checkpoints(tmp_path)
    assert found.step == step if step is not None else isinstance(found.step, NotMeasured)


def test_the_optimizers_own_count_is_the_last_resort(tmp_path):
    state = {
        "model": {"w": torch.ones(3)},
        "optimizer": {"state": {0: {"step": 17}}, "param_groups": [{"params": [0]}]},
    }
    torch.save(state, tmp_path / "last.pt")
    (found,) = find_checkpoints(tmp_path)
    assert found.step == 17


def test_things_that_are_no_checkpoints_are_left_alone(tmp_path):
    (tmp_path / "train.bin").write_bytes(bytes(range(256)) * 16)
    (tmp_path / "tokens.pt").write_bytes(b"not torch")
    torch.save({"step": 3}, tmp_path / "meta.pt")
    weights(tmp_path / ".venv" / "lib" / "model.pt")
    weights(tmp_path / "run.spike" / "case" / "step-1.pt")
    assert find_checkpoints(tmp_path) == ()


def test_a_path_that_is_not_there_or_unknown_is_refused(tmp_path):
    with pytest.raises(InputUnreadable, match="not there"):
        inspect_checkpoint(tmp_path / "nothing.pt")
    (tmp_path / "x.dat").write_bytes(b"x")
    with pytest.raises(InputUnreadable, match="no checkpoint of a known layout"):
        inspect_checkpoint(tmp_path / "x.dat")


def test_a_checkpoint_that_vanishes_while_it_is_read_is_a_verdict(tmp_path, monkeypatch):
    weights(tmp_path / "step-3" / "model.pt")
    weights(tmp_path / "step-3" / "optimizer.pt")
    reader = next(r for r in checkpoints.readers() if r.layout == "torch-parts")

    def gone(path):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(reader, "inspect", gone)
    (found,) = find_checkpoints(tmp_path)
    assert (found.step, found.integrity) == (3, Integrity.UNVERIFIABLE)
    assert "while it was read" in found.reason


# -- the contract of every layout ---------------------------------------------------------------------------------


def test_every_layout_file_exports_a_reader_of_its_own_name():
    modules = {m.name for m in pkgutil.iter_modules(checkpoints.__path__) if not m.name.startswith("_")} - {"contract"}
    readers = {reader.layout: reader for reader in checkpoints.readers()}
    assert {name.replace("_", "-") for name in modules} == readers.keys()
    for reader in readers.values():
        assert reader.specificity > 0
        assert isinstance(reader.recognises(__import__("pathlib").Path("/nonexistent"), frozenset()), bool)


def test_a_broken_layout_fails_loudly_with_its_name(monkeypatch, tmp_path):
    (tmp_path / "broken_layout.py").write_text("READER = missing_name\n")
    monkeypatch.setattr(checkpoints, "__path__", [*checkpoints.__path__, str(tmp_path)])
    checkpoints.readers.cache_clear()
    try:
        with pytest.raises(SpikeError, match="broken_layout"):
            checkpoints.readers()
    finally:
        checkpoints.readers.cache_clear()
        sys.modules.pop("spike.readers.checkpoints.broken_layout", None)


def test_a_new_layout_is_one_file(monkeypatch, tmp_path):
    (tmp_path / "plain_text.py").write_text(
        "from spike.readers.checkpoints._contents import Contents\n"
        "from spike.readers.checkpoints._describe import describe\n"
        "class Reader:\n"
        "    layout, specificity = 'plain-text', 10\n"
        "    def recognises(self, path, names): return path.suffix == '.weights'\n"
        "    def inspect(self, path): return describe(path, self.layout, [path], Contents(step=1))\n"
        "    def tensors(self, path): return iter(())\n"
        "    def finish(self, path, checked): return iter(())\n"
        "READER = Reader()\n"
    )
    monkeypatch.setattr(checkpoints, "__path__", [*checkpoints.__path__, str(tmp_path)])
    checkpoints.readers.cache_clear()
    try:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "a.weights").write_text("1 2 3")
        assert [c.layout for c in find_checkpoints(tmp_path / "run")] == ["plain-text"]
    finally:
        checkpoints.readers.cache_clear()
        for name in ("plain_text",):
            sys.modules.pop(f"spike.readers.checkpoints.{name}", None)
    importlib.invalidate_caches()


def test_reading_checkpoints_needs_no_torch(tmp_path):
    nanogpt(tmp_path / "ckpt.pt")
    program = (
        "import sys; from pathlib import Path\n"
        "from spike.readers.checkpoints import *\n"
        "found = find_checkpoints(Path(sys.argv[1]))\n"
        "assert scan_checkpoint(found[0]).tensors\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# -- very many ---


def many(root, count):
    weights(root / "step-1" / "model.pt", step=1)
    weights(root / "step-1" / "optimizer.pt")
    for step in range(2, count + 1):
        shutil.copytree(root / "step-1", root / f"step-{step}")


@pytest.fixture
def reads(monkeypatch):
    """Paths that were looked into."""
    reader = next(r for r in checkpoints.readers() if r.layout == "torch-parts")
    seen, inspect = [], reader.inspect

    def counted(path):
        seen.append(path.name)
        return inspect(path)

    monkeypatch.setattr(reader, "inspect", counted)
    return seen


@pytest.mark.parametrize("pattern", ["", "step-{step}"])
def test_of_very_many_only_those_around_the_step_and_the_newest_are_read(tmp_path, reads, pattern):
    many(tmp_path, 200)
    found = find_checkpoints(tmp_path, pattern, near=100)
    assert len(found) == 200
    assert len(reads) <= 64
    read = {int(name.removeprefix("step-")) for name in reads}
    assert set(range(70, 108)) | set(range(190, 201)) <= read
    unread = [c for c in found if c.reason.startswith("not read: one of 200")]
    assert {c.integrity for c in unread} == {Integrity.UNVERIFIABLE}
    assert len(unread) + len(reads) == 200
    assert {c.layout for c in unread} == {"torch-parts"}


def test_without_a_step_the_newest_are_read_and_few_are_all_read(tmp_path, reads):
    many(tmp_path, 80)
    find_checkpoints(tmp_path)
    assert set(range(50, 81)) <= {int(name.removeprefix("step-")) for name in reads}
    reads.clear()
    for step in range(40, 81):
        shutil.rmtree(tmp_path / f"step-{step}")
    assert all(not c.reason.startswith("not read") for c in find_checkpoints(tmp_path))
    assert len(reads) == 39


def test_a_large_index_means_that_fewer_are_read():
    from spike.readers.checkpoints._find import INDEX_BYTES, MAX_READ, MIN_READ, _limit

    class Place:
        def __init__(self, size):
            self.size = size

        def __truediv__(self, name):
            return self if name == ".metadata" else Place(None)

        def is_file(self):
            return self.size is not None

        def stat(self):
            return argparse.Namespace(st_size=self.size)

    sizes = {10_000: MAX_READ, INDEX_BYTES // 20: 20, INDEX_BYTES: MIN_READ, 10 * INDEX_BYTES: MIN_READ}
    assert {size: _limit([(Place(size), 1, None)]) for size in sizes} == sizes
    assert _limit([]) == MAX_READ
