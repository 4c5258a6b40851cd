"""What happened to this case, in which order, and has anybody rewritten that since?

journal.jsonl is only ever appended to. Each line carries the digest of the line before it, and journal.head says
how many lines there are and how the last one ends. Without a key that proves a change by anyone who does not
rewrite everything after it; a signed freeze (`signing.py`) also holds the chain up to that line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from spike.casefile.atomic import fsync_directory, write_all, write_atomic, writing
from spike.casefile.codec import canonical, dumps, from_payload, to_payload
from spike.casefile.lock import operator_name, utc_now
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.journal import Artefact, ChainFault, ChainFinding, JournalEntry

JOURNAL_NAME = "journal.jsonl"
HEAD_NAME = "journal.head"
TORN_NAME = "journal.torn"
HEAD_SCHEMA = "spike.journal-head/1"
GENESIS = "0" * 64


def append(case: Path, command: str, summary: str, exit_code: int, artefacts: Sequence[Artefact] = ()) -> JournalEntry:
    """Add one line, durable before this returns. A torn last line is first kept aside and recorded.

    Raises `SpikeError` where the case cannot be written, `InputUnreadable` where the last line is damaged.
    """
    path = case / JOURNAL_NAME
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        with writing(path):
            fcntl.flock(handle, fcntl.LOCK_EX)
            torn = _set_torn_line_aside(case, handle)
        last = _last_entry(path)
        if torn:
            last = _append_line(case, handle, last, "journal", torn, 0, ())
        return _append_line(case, handle, last, command, summary, exit_code, tuple(artefacts))
    finally:
        os.close(handle)


def read_journal(case: Path) -> tuple[JournalEntry, ...]:
    """Every whole line, in the order of the file. Raises `InputUnreadable` naming the line that is none."""
    lines, _torn = _split(_read(case))
    return tuple(_parse(line, number) for number, line in enumerate(lines, 1))


def verify_chain(case: Path) -> tuple[ChainFinding, ...]:
    """Everything that is wrong with the journal; empty for a sound one."""
    lines, torn = _split(_read(case))
    findings: list[ChainFinding] = []
    entries: list[tuple[int, JournalEntry]] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = _parse(line, number)
        except InputUnreadable as error:
            findings.append(ChainFinding(ChainFault.CHANGED, number, error.message))
            continue
        entries.append((number, entry))
        if entry.digest != _digest(entry):
            findings.append(ChainFinding(ChainFault.CHANGED, number, f"line {number} does not match its own digest"))
    if torn:
        text = f"the last line ends after {len(torn)} bytes: a command was interrupted while writing it"
        findings.append(ChainFinding(ChainFault.TORN, len(lines) + 1, text))
    findings += _order_findings(entries)
    findings += _head_findings(case, [e for _, e in entries], damaged=bool(findings) and not torn)
    return tuple(findings)


def entry_digest_at(case: Path, seq: int) -> str:
    """Digest of line `seq`, or "" where there is no such line: what a signature over the journal is held against."""
    return next((e.digest for e in read_journal(case) if e.seq == seq), "")


def _order_findings(entries: list[tuple[int, JournalEntry]]) -> list[ChainFinding]:
    sequence = [entry.seq for _, entry in entries]
    if sequence != sorted(sequence):
        at = next(i for i in range(1, len(sequence)) if sequence[i] < sequence[i - 1])
        text = f"line {entries[at][0]} is entry {sequence[at]} and follows entry {sequence[at - 1]}"
        return [ChainFinding(ChainFault.REORDERED, entries[at][0], text)]
    findings = []
    before = GENESIS
    expected = 1
    for number, entry in entries:
        if entry.seq > expected:
            text = f"entries {expected} to {entry.seq - 1} are missing before line {number}"
            findings.append(ChainFinding(ChainFault.REMOVED, number, text))
        elif entry.seq < expected:
            text = f"line {number} is entry {entry.seq} a second time"
            findings.append(ChainFinding(ChainFault.FORGED, number, text))
        elif entry.previous != before:
            text = f"line {number} does not continue the line before it"
            findings.append(ChainFinding(ChainFault.FORGED, number, text))
        before, expected = entry.digest, entry.seq + 1
    return findings


def _head_findings(case: Path, entries: list[JournalEntry], *, damaged: bool) -> list[ChainFinding]:
    head = read_head(case)
    if head is None:
        if len(entries) <= 1:  # the first line is written before the first head
            return []
        return [ChainFinding(ChainFault.TRUNCATED, 0, f"{HEAD_NAME} is missing or unreadable")]
    count, digest = head
    newest = max((e.seq for e in entries), default=0)
    if newest < count:
        text = f"{HEAD_NAME} knows {count} entries, the journal ends with entry {newest}"
        return [ChainFinding(ChainFault.TRUNCATED, 0, text)]
    if damaged:
        return []
    confirmed = next((e.digest for e in entries if e.seq == count), "")
    if confirmed != digest:
        return [ChainFinding(ChainFault.FORGED, 0, f"entry {count} is not the one that {HEAD_NAME} confirms")]
    if newest == count + 1:
        text = f"entry {newest} is not confirmed by {HEAD_NAME}: a command was interrupted, or it was added"
        return [ChainFinding(ChainFault.UNCONFIRMED, 0, text)]
    if newest > count:
        text = f"entries {count + 1} to {newest} are not confirmed by {HEAD_NAME}"
        return [ChainFinding(ChainFault.FORGED, 0, text)]
    return []


def read_head(case: Path) -> tuple[int, str] | None:
    """(number of entries, digest of the last), or None where there is no readable head."""
    try:
        found = json.loads((case / HEAD_NAME).read_text(encoding="utf-8"))
        return int(found["count"]), str(found["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _append_line(
    case: Path,
    handle: int,
    last: JournalEntry | None,
    command: str,
    summary: str,
    exit_code: int,
    artefacts: tuple[Artefact, ...],
) -> JournalEntry:
    entry = JournalEntry(
        seq=last.seq + 1 if last else 1,
        time=utc_now(),
        operator=operator_name(),
        host=socket.gethostname(),
        command=command,
        summary=summary,
        exit_code=exit_code,
        artefacts=artefacts,
        previous=last.digest if last else GENESIS,
        digest="",
    )
    payload = to_payload(entry)
    payload["digest"] = digest = _digest(entry)
    with writing(case / JOURNAL_NAME):
        write_all(handle, canonical(payload) + b"\n")
        os.fsync(handle)
        if last is None:
            fsync_directory(case)
    write_atomic(
        case / HEAD_NAME,
        dumps({"schema": HEAD_SCHEMA, "count": entry.seq, "digest": digest}).encode(),
    )
    return from_payload(JournalEntry, payload)


def _set_torn_line_aside(case: Path, handle: int) -> str:
    """Move bytes after the last newline to journal.torn; returns what to record about them, "" if there are none."""
    data = _read(case)
    lines, torn = _split(data)
    if not torn:
        return ""
    aside = os.open(case / TORN_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        write_all(aside, torn + b"\n")
        os.fsync(aside)
    finally:
        os.close(aside)
    os.ftruncate(handle, len(data) - len(torn))
    os.fsync(handle)
    shown = hashlib.sha256(torn).hexdigest()
    return f"a torn line after entry {len(lines)} ({len(torn)} bytes, sha256 {shown}) was kept in {TORN_NAME}"


def _last_entry(path: Path) -> JournalEntry | None:
    lines, _ = _split(path.read_bytes())
    if not lines:
        return None
    entry = _parse(lines[-1], len(lines))
    if entry.digest != _digest(entry):
        raise InputUnreadable(
            f"{path}, line {len(lines)}, does not match its own digest", hint=f"spike verify --case {path.parent}"
        )
    return entry


def _read(case: Path) -> bytes:
    try:
        return (case / JOURNAL_NAME).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SpikeError(f"cannot read {case / JOURNAL_NAME}: {error.strerror}") from error


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """(whole lines, bytes after the last newline)."""
    *lines, torn = data.split(b"\n")
    return lines, torn


def _parse(line: bytes, number: int) -> JournalEntry:
    source = f"{JOURNAL_NAME}, line {number}"
    try:
        payload = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputUnreadable(f"{source}, is not JSON") from error
    if not isinstance(payload, dict):
        raise InputUnreadable(f"{source}, is not an entry")
    return from_payload(JournalEntry, payload, source=source)


def _digest(entry: JournalEntry) -> str:
    body = to_payload(entry)
    del body["digest"]
    return hashlib.sha256(canonical(body)).hexdigest()
