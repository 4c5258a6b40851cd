"""Is a note believed only for the very file that it was made for?"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.casefile.hashing import hash_file
from spike.casefile.ledger import Ledger, Noted, bytes_key, stamp
from spike.domain.manifest import Algorithm, EntryKind, Guarantee, ManifestEntry


def _noted(path: Path, source: str = "") -> Noted:
    found = hash_file(path)
    return Noted("pinned/f", "sha256", found.digest, found.size, found.mtime_ns, found.identity, source)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(b"weights")
    return path


def test_what_one_process_noted_the_next_one_knows(file: Path, tmp_path: Path) -> None:
    first = Ledger(tmp_path / "notes", "shard-1-of-2")
    first.note([_noted(file)])
    first.note_guarantee("pinned/a", Guarantee.REFLINK)
    first.note_verdict("abc", "not finite: w")
    second = Ledger(tmp_path / "notes", "shard-2-of-2")
    assert second.digest_of("pinned/f", Algorithm.SHA256, file.lstat()) == hash_file(file).digest
    assert second.guarantee_of("pinned/a") is Guarantee.REFLINK
    assert second.verdict_on("abc") == "not finite: w"
    assert (second.guarantee_of("pinned/b"), second.verdict_on("abd")) == (None, None)
    assert second.num_bytes_below("pinned") == second.num_bytes_below("pinned/f") == 7
    assert second.num_bytes_below("pinned/g") == second.num_bytes_below("pin") == 0


@pytest.mark.parametrize("change", ["overwritten", "same size and mtime", "replaced", "touched", "linked", "grown"])
def test_a_file_that_is_not_the_same_any_more_must_be_read_again(file: Path, tmp_path: Path, change: str) -> None:
    ledger = Ledger(tmp_path / "notes")
    ledger.note([_noted(file)])
    before = file.lstat()
    match change:
        case "overwritten":
            file.write_bytes(b"WEIGHTS")
        case "same size and mtime":
            file.write_bytes(b"WEIGHTS")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "replaced":
            other = tmp_path / "other"
            other.write_bytes(b"WEIGHTS")
            os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
            other.replace(file)
        case "touched":
            os.utime(file)
        case "linked":
            os.link(file, tmp_path / "link")
        case _:
            with file.open("ab") as handle:
                handle.write(b"x")
    assert ledger.digest_of("pinned/f", Algorithm.SHA256, file.lstat()) == ""


def test_another_algorithm_path_or_source_is_another_file(file: Path, tmp_path: Path) -> None:
    source = stamp(file.lstat())
    ledger = Ledger(tmp_path / "notes")
    ledger.note([_noted(file, source)])
    assert ledger.digest_of("pinned/f", Algorithm.SHA256, file.lstat(), source)
    assert ledger.digest_of("pinned/f", Algorithm.BLAKE3, file.lstat(), source) == ""
    assert ledger.digest_of("pinned/g", Algorithm.SHA256, file.lstat(), source) == ""
    assert ledger.digest_of("pinned/f", Algorithm.SHA256, file.lstat(), "") == ""


def test_a_torn_line_is_left_alone_and_the_next_one_is_whole(file: Path, tmp_path: Path) -> None:
    Ledger(tmp_path / "notes").note([_noted(file)])
    path = tmp_path / "notes" / "freeze.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    again = Ledger(tmp_path / "notes")
    assert again.digest_of("pinned/f", Algorithm.SHA256, file.lstat()) == ""
    again.note([_noted(file)])
    assert Ledger(tmp_path / "notes").digest_of("pinned/f", Algorithm.SHA256, file.lstat())
    assert path.read_bytes() == whole[:-9] + b"\n" + whole


@given(st.integers(0, 400), st.binary(max_size=30))
def test_wherever_a_kill_or_a_hole_cut_the_file_only_whole_lines_count(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    place = tmp_path_factory.mktemp("ledger")
    rows = [Noted(f"pinned/{n}", "sha256", f"{n}" * 8, n, n, f"{n}:{n}") for n in range(4)]
    Ledger(place).note(rows)
    path = place / "freeze.jsonl"
    data = path.read_bytes()[:cut]
    path.write_bytes(data + junk)
    found = Ledger(place)
    kept = {n for n in range(4) if found.noted(f"pinned/{n}") is not None}
    whole = data.count(b"\n")
    # What follows the cut can only end a line that had lost nothing but its end.
    assert kept in (set(range(whole)), set(range(whole + 1)))
    assert all(found.noted(f"pinned/{n}") == rows[n] for n in kept)


@pytest.mark.parametrize(
    "line",
    [
        {"path": "pinned/f"},
        {"path": 1, "algorithm": "sha256", "digest": "x", "size": 1, "mtime_ns": 1, "identity": "1:1", "source": ""},
        {"pin": "pinned/a", "guarantee": "magic"},
        {"bytes": "abc", "reason": None},
        [],
        "x",
    ],
)
def test_a_line_that_makes_no_sense_is_no_note(tmp_path: Path, line: object) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    ledger = Ledger(tmp_path)
    assert ledger.num_bytes_below("pinned") == 0
    assert ledger.guarantee_of("pinned/a") is None
    assert ledger.verdict_on("abc") is None


def test_the_key_of_a_checkpoint_is_its_bytes_in_their_places() -> None:
    def entry(path: str, digest: str, kind: EntryKind = EntryKind.FILE) -> ManifestEntry:
        return ManifestEntry(path, "checkpoint", kind, 1, 0o444, 0, digest)

    a, b = entry("p/a", "1"), entry("p/b", "2")
    assert bytes_key((a, b)) == bytes_key((b, a, entry("p", "", EntryKind.DIRECTORY)))
    assert len({bytes_key(e) for e in ((a, b), (a,), (entry("p/a", "2"), entry("p/b", "1")), ())}) == 4
