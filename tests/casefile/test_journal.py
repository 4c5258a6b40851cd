"""Is every way of rewriting the journal noticed, and is an interrupted write never called one?"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from spike.casefile import journal
from spike.casefile.codec import canonical, to_payload
from spike.casefile.journal import HEAD_NAME, JOURNAL_NAME, append, read_journal, verify_chain
from spike.domain.errors import InputUnreadable
from spike.domain.journal import Artefact, ChainFault, JournalEntry

NUM_ENTRIES = 8


@pytest.fixture
def case(tmp_path: Path) -> Path:
    for number in range(1, NUM_ENTRIES + 1):
        append(tmp_path, "check", f"entry {number}", number % 2, (Artefact("checks.json", f"{number:064x}"),))
    return tmp_path


def _lines(case: Path) -> list[bytes]:
    return (case / JOURNAL_NAME).read_bytes().splitlines(keepends=True)


def _write(case: Path, lines: list[bytes]) -> None:
    (case / JOURNAL_NAME).write_bytes(b"".join(lines))


def _faults(case: Path) -> set[ChainFault]:
    return {finding.fault for finding in verify_chain(case)}


def _resealed(line: bytes, **changes: object) -> bytes:
    """The line with other values and a digest of its own that fits them, as somebody with this source would do it."""
    payload = {**json.loads(line), **changes}
    payload["artefacts"] = tuple(Artefact(**a) if isinstance(a, dict) else a for a in payload["artefacts"])
    entry = JournalEntry(**payload)
    return canonical({**to_payload(entry), "digest": journal._digest(entry)}) + b"\n"


def test_an_untouched_journal_is_sound_and_tells_what_happened(case: Path) -> None:
    assert verify_chain(case) == ()
    entries = read_journal(case)
    assert [e.summary for e in entries] == [f"entry {n}" for n in range(1, NUM_ENTRIES + 1)]
    assert [e.exit_code for e in entries] == [1, 0] * (NUM_ENTRIES // 2)
    assert entries[3].previous == entries[2].digest


def test_a_changed_line_is_named(case: Path) -> None:
    lines = _lines(case)
    lines[2] = lines[2].replace(b"entry 3", b"entry X")
    _write(case, lines)
    (finding,) = [f for f in verify_chain(case) if f.fault is ChainFault.CHANGED]
    assert finding.line == 3


def test_a_line_with_a_digest_of_its_own_is_forged(case: Path) -> None:
    lines = _lines(case)
    lines[2] = _resealed(lines[2], summary="nothing happened")
    _write(case, lines)
    assert ChainFault.FORGED in _faults(case)


def test_a_chain_rewritten_to_its_end_is_not_the_one_of_the_head(case: Path) -> None:
    lines = _lines(case)
    previous = json.loads(lines[1])["digest"]
    for at in range(2, NUM_ENTRIES):
        changes = {"previous": previous} | ({"summary": "nothing happened"} if at == 2 else {})
        lines[at] = _resealed(lines[at], **changes)
        previous = json.loads(lines[at])["digest"]
    _write(case, lines)
    assert _faults(case) == {ChainFault.FORGED}


def test_swapped_lines_are_reordered(case: Path) -> None:
    lines = _lines(case)
    lines[2], lines[4] = lines[4], lines[2]
    _write(case, lines)
    assert ChainFault.REORDERED in _faults(case)


def test_a_missing_middle_line_is_removed(case: Path) -> None:
    lines = _lines(case)
    del lines[3]
    _write(case, lines)
    assert ChainFault.REMOVED in _faults(case)


def test_missing_last_lines_are_truncation(case: Path) -> None:
    _write(case, _lines(case)[:-2])
    assert _faults(case) == {ChainFault.TRUNCATED}


def test_a_missing_head_is_truncation(case: Path) -> None:
    (case / HEAD_NAME).unlink()
    assert _faults(case) == {ChainFault.TRUNCATED}


def test_an_empty_journal_with_a_head_is_truncation(case: Path) -> None:
    _write(case, [])
    assert _faults(case) == {ChainFault.TRUNCATED}


def test_lines_added_at_the_end_are_not_confirmed(case: Path) -> None:
    last = json.loads(_lines(case)[-1])
    one = _resealed(_lines(case)[-1], seq=last["seq"] + 1, previous=last["digest"], summary="gate waived")
    _write(case, [*_lines(case), one])
    assert _faults(case) == {ChainFault.UNCONFIRMED}
    two = _resealed(one, seq=last["seq"] + 2, previous=json.loads(one)["digest"])
    _write(case, [*_lines(case), two])
    assert _faults(case) == {ChainFault.FORGED}


def test_a_torn_last_line_is_kept_aside_recorded_and_the_chain_goes_on(case: Path) -> None:
    with (case / JOURNAL_NAME).open("ab") as file:
        file.write(b'{"artefacts":[],"command":"free')
    (finding,) = verify_chain(case)
    assert finding.fault is ChainFault.TORN
    assert not finding.is_tampering
    append(case, "freeze", "again", 0)
    assert verify_chain(case) == ()
    assert b'{"artefacts":[],"command":"free' in (case / "journal.torn").read_bytes()
    assert [e.command for e in read_journal(case)[-2:]] == ["journal", "freeze"]
    assert "31 bytes" in read_journal(case)[-2].summary


@pytest.mark.parametrize("length", range(1, 60, 7))
def test_a_line_torn_anywhere_does_not_stop_the_next(tmp_path: Path, length: int) -> None:
    append(tmp_path, "a", "one", 0)
    whole = _lines(tmp_path)[0]
    with (tmp_path / JOURNAL_NAME).open("ab") as file:
        file.write(whole[:length])
    append(tmp_path, "b", "two", 0)
    assert verify_chain(tmp_path) == ()


def test_nothing_is_appended_to_a_damaged_last_line(case: Path) -> None:
    lines = _lines(case)
    lines[-1] = lines[-1].replace(b"entry 8", b"entry 9")
    _write(case, lines)
    with pytest.raises(InputUnreadable, match="line 8"):
        append(case, "check", "more", 0)


@pytest.mark.parametrize("garbage", [b"null\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b"{" * 5000 + b"\n", b"\n"])
def test_a_line_that_is_no_entry_is_damage_with_its_number(case: Path, garbage: bytes) -> None:
    lines = _lines(case)
    _write(case, [*lines[:4], garbage, *lines[4:]])
    assert any(f.fault is ChainFault.CHANGED and f.line == 5 for f in verify_chain(case))
    with pytest.raises(InputUnreadable, match="line 5"):
        read_journal(case)


def _forge(rng: random.Random, original: list[bytes]) -> list[bytes]:
    """One random change: a bit, two lines swapped, one gone, one doubled, one resealed, the end cut off."""
    lines = list(original)
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            line = bytearray(lines[at])
            line[rng.randrange(len(line) - 1)] ^= 1 << rng.randrange(7)
            lines[at] = bytes(line)
        case 1:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 2:
            del lines[at]
        case 3:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        case 4:
            field = rng.choice(("summary", "operator", "time", "command", "host"))
            lines[at] = _resealed(lines[at], **{field: f"forged {rng.random()}"})
        case _:
            lines = lines[:at]
    return lines


def test_no_forgery_out_of_many_goes_unnoticed(case: Path) -> None:
    """Random edits of bytes, lines and resealed fields; the head is not rewritten with them."""
    original = _lines(case)
    rng = random.Random(20260801)
    tried = noticed = 0
    while tried < 400:
        lines = _forge(rng, original)
        if lines == original:
            continue
        _write(case, lines)
        tried += 1
        noticed += any(f.is_tampering for f in verify_chain(case))
    assert noticed == tried == 400
