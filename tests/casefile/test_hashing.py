"""Are digests right, and is a file that moves under the reader ever called good?"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from blake3 import blake3

from spike.casefile import batches
from spike.casefile.hashing import hash_file, hash_open_file, hash_tree
from spike.casefile.tree import escapes, walk
from spike.domain.manifest import Algorithm, EntryKind

SIZES = (0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 * (1 << 20) + 17)


@pytest.mark.parametrize("size", SIZES)
def test_digests_are_those_of_hashlib_and_blake3(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    assert hash_file(tmp_path / "f").digest == hashlib.sha256(data).hexdigest()
    assert hash_file(tmp_path / "f", Algorithm.BLAKE3).digest == blake3(data).hexdigest()
    assert hash_file(tmp_path / "f").size == size


@pytest.mark.parametrize("workers", [1, 3])
def test_a_tree_of_many_files_is_hashed_whole_whatever_the_batches(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_FILES", 7)
    monkeypatch.setattr(batches, "BATCH_BYTES", 5000)
    expected = {}
    for number in range(60):
        path = tmp_path / f"d{number % 4}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(number * 40))
        expected[path.relative_to(tmp_path).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    seen = 0

    def count(num_bytes: int) -> None:
        nonlocal seen
        seen += num_bytes

    files = [(e.path, e.size) for e in walk(tmp_path) if e.kind is EntryKind.FILE]
    found = hash_tree(tmp_path, files, workers=workers, on_bytes=count)
    assert {path: hashed.digest for path, hashed in found.items()} == expected
    assert seen == sum(size for _, size in files)


def test_reading_leaves_the_access_time_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    os.utime(path, ns=(10**18, 2 * 10**18))
    hash_file(path)
    assert path.stat().st_atime_ns == 10**18


@pytest.mark.parametrize("change", ["append", "overwrite", "truncate", "touch"])
def test_a_file_that_changes_while_it_is_read_has_no_digest(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(4 << 20))
    handle = os.open(path, os.O_RDONLY)
    done = False

    def interfere(_num_bytes: int) -> None:
        nonlocal done
        if done:
            return
        done = True
        match change:
            case "append":
                with path.open("ab") as file:
                    file.write(b"more")
            case "overwrite":
                with path.open("r+b") as file:
                    file.seek(3 << 20)
                    file.write(b"other")
            case "truncate":
                os.truncate(path, 2 << 20)
            case _:
                os.utime(path, ns=(1, 1))

    try:
        found = hash_open_file(handle, Algorithm.SHA256, on_bytes=interfere)
    finally:
        os.close(handle)
    assert done
    assert found.digest == ""
    assert found.problem == "changed while it was read"


@pytest.mark.process
def test_a_file_under_a_busy_writer_is_never_called_good(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(8 << 20))
    body = """
    import os, sys, time
    while True:
        with open(sys.argv[1], "r+b") as file:
            file.seek(int.from_bytes(os.urandom(3), "big") % (8 << 20))
            file.write(os.urandom(16))
        time.sleep(0.0005)
    """
    writer = subprocess.Popen((sys.executable, "-c", textwrap.dedent(body), str(path)))
    try:
        before = path.stat().st_mtime_ns
        while path.stat().st_mtime_ns == before:
            assert writer.poll() is None
        outcomes = []
        # The writer may get no turn during a read of some milliseconds; that file was read in peace and is good.
        deadline = time.monotonic() + 60
        while outcomes.count("changed while it was read") < 3 and time.monotonic() < deadline:
            outcomes.append(hash_file(path).problem)
    finally:
        writer.kill()
        writer.wait()
    assert set(outcomes) <= {"changed while it was read", ""}
    assert outcomes.count("changed while it was read") == 3


def test_a_symlink_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"secret")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "dir").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "file").symlink_to(tmp_path / "outside" / "f")
    found = hash_tree(tmp_path / "tree", [("dir/f", 6), ("file", 6), ("gone", 0)])
    assert all(hashed.digest == "" and hashed.problem for hashed in found.values())
    assert len(found) == 3
    with pytest.raises(OSError, match="symbolic links"):
        hash_file(tmp_path / "tree" / "file")


def test_a_pipe_does_not_hang_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert hash_tree(tmp_path, [("pipe", 0)])["pipe"].problem == "not a regular file"
    assert [e.kind for e in walk(tmp_path)] == [EntryKind.OTHER]


def test_the_walk_lists_hidden_names_and_empty_directories_and_follows_nothing(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "evil").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(".")
    found = {e.path: e.kind for e in walk(tmp_path)}
    assert found == {
        ".git": EntryKind.DIRECTORY,
        ".git/evil": EntryKind.FILE,
        "empty": EntryKind.DIRECTORY,
        "loop": EntryKind.SYMLINK,
    }


@pytest.mark.parametrize(
    ("link", "target", "leaves"),
    [
        ("a", "b", False),
        ("d/a", "../b", False),
        ("d/a", "../../b", True),
        ("a", "..", True),
        ("a", "/etc/passwd", True),
        ("a", "x/../../y", True),
        ("d/e/a", "./../../b", False),
        ("a", "", False),
    ],
)
def test_a_symlink_that_leaves_the_tree_is_told_from_one_that_does_not(link: str, target: str, leaves: bool) -> None:
    assert escapes(link, target) is leaves
