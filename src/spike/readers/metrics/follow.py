"""What has this growing file said since the last look? Only what is new is read, whatever became of the file.

Safe on network file systems: the file is opened anew for every look, nothing is locked, no notification is awaited.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from spike.domain.signals import Damage
from spike.readers.metrics.chosen import counted_by
from spike.readers.metrics.columns import assign
from spike.readers.metrics.contract import Column, Followable, MetricReader, Parsed, Session
from spike.readers.metrics.find import head_of, recognise
from spike.readers.metrics.pieces import feed
from spike.readers.metrics.text_lines import looks_binary

RESTARTED = "source-restarted"
"""Pattern of the note that says why a file was read again from its start."""

FINGERPRINT_BYTES = 64
"""A file that was truncated and has grown past the old place again is told by the bytes before that place."""

_Key = tuple[str, int | None, bool]


def open_follower(path: Path, columns: Mapping[str, str] | None = None) -> Follower:
    """A follower of one metric file, which may still be empty or absent.

    `columns` maps signal names to columns that spike cannot guess, as in `read_signals`.
    """
    return Follower(path, dict(columns or {}))


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells one look at a file from the next."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    beside: tuple[int, int] = (0, 0)
    """Size and time of SQLite's write-ahead log, where the newest rows are."""


@dataclass(slots=True)
class Follower:
    """One file, looked at again and again."""

    path: Path
    columns: Mapping[str, str]
    """Signal name -> column, the operator's word."""
    reader: MetricReader | None = None
    """None until there is something to recognise the format by."""
    _session: Session | None = None
    _stamp: _Stamp | None = None
    _at: int = 0
    """First byte that has not been read."""
    _before: bytes = b""
    """The bytes before that place."""
    _seen: dict[_Key, Column] = field(default_factory=dict)
    _seen_damages: set[tuple[int, int, str]] = field(default_factory=set)
    _names: dict[tuple[str, bool], None] = field(default_factory=dict)
    _notes: list[tuple[str, str]] = field(default_factory=list)

    def poll(self) -> Parsed:
        """Rows, damages and notes since the last call; nothing while the file is absent or not yet a metric file.

        An incomplete last line or record is kept for the next call. A file that was truncated, rotated or replaced is
        finished where it still can be found, and then read from its start, with a `RESTARTED` note.

        Raises OSError where the file cannot be read just now; the next call goes on where this one would have.
        """
        stamp = _stamp(self.path)
        if stamp is None or stamp == self._stamp or not self._is_recognised():
            return self._nothing()
        assert self.reader is not None
        parsed = self._go_on(stamp) if isinstance(self.reader, Followable) else self._read_again(self.reader)
        self._stamp = stamp
        for column in parsed.columns:
            self._names[column.name, column.held_out] = None
        notes, self._notes = (*self._notes, *parsed.notes), []
        return counted_by(replace(parsed, notes=notes), self.columns)

    def names(self) -> dict[str, str]:
        """Column -> signal name, from all columns seen so far that are not held out."""
        return assign((name for name, held_out in self._names if not held_out), self.columns)

    def _is_recognised(self) -> bool:
        """A format is told by whole lines: the first half of a JSON object would pass for something else."""
        if self.reader is None:
            head = head_of(self.path)
            if not looks_binary(head) and b"\n" not in head:
                return False
            self.reader = recognise(self.path, self.columns)
        return self.reader is not None

    def _nothing(self) -> Parsed:
        return Parsed("" if self.reader is None else self.reader.format, (), 0)

    def _go_on(self, stamp: _Stamp) -> Parsed:
        assert isinstance(self.reader, Followable)
        rest: Parsed | None = None
        with self.path.open("rb") as stream:
            if self._session is not None and (why := self._why_restart(stamp, stream)):
                rest = self._rest_of_rotated(stamp)
                self._notes.append((RESTARTED, f"{self.path.name} {why}: read again from its start"))
                self._session = None
            if self._session is None:
                self._session, self._at = self.reader.session(self.path), 0
            self._at = feed(self._session, stream, self._at, is_end=False)
            stream.seek(max(0, self._at - FINGERPRINT_BYTES))
            self._before = stream.read(min(self._at, FINGERPRINT_BYTES))
        parsed = self._session.drain()
        return parsed if rest is None else _joined(rest, parsed)

    def _why_restart(self, stamp: _Stamp, stream: BinaryIO) -> str:
        assert self._stamp is not None
        if (stamp.device, stamp.inode) != (self._stamp.device, self._stamp.inode):
            return "was replaced by another file"
        if stamp.size < self._at:
            return f"was truncated ({stamp.size} bytes where {self._at} had been read)"
        stream.seek(self._at - len(self._before))
        if stream.read(len(self._before)) != self._before:
            return f"was written anew (the bytes before {self._at} changed)"
        return ""

    def _rest_of_rotated(self, stamp: _Stamp) -> Parsed | None:
        """What was still written to a file before it was moved aside (train.log -> train.log.1)."""
        assert self._stamp is not None
        assert self._session is not None
        old = (self._stamp.device, self._stamp.inode)
        if old == (stamp.device, stamp.inode):
            return None
        for sibling in self.path.parent.iterdir():
            try:
                facts = sibling.stat()
                if sibling == self.path or (facts.st_dev, facts.st_ino) != old or facts.st_size < self._at:
                    continue
                with sibling.open("rb") as stream:
                    feed(self._session, stream, self._at, is_end=True)
                return self._session.drain()
            except OSError:
                continue
        return None

    def _read_again(self, reader: MetricReader) -> Parsed:
        """A file that its writer rewrites whole: the rows that were not there before."""
        parsed = reader.read(self.path)
        columns: list[Column] = []
        for column in parsed.columns:
            key = (column.name, column.rank, column.held_out)
            old = self._seen.get(key)
            known = 0 if old is None else old.steps.size
            if old is not None and not _continues(old, column):
                self._notes.append((RESTARTED, f"{self.path.name}: the rows of {column.name!r} were rewritten"))
                known = 0
            self._seen[key] = column
            if column.steps.size > known:
                columns.append(replace(column, steps=column.steps[known:], values=column.values[known:]))
        rows = max((column.steps.size for column in columns), default=0)
        return replace(parsed, columns=tuple(columns), num_rows=rows, damages=self._new_damages(parsed.damages))

    def _new_damages(self, damages: tuple[Damage, ...]) -> tuple[Damage, ...]:
        new = [d for d in damages if (d.line, d.byte_offset, d.reason) not in self._seen_damages]
        self._seen_damages |= {(d.line, d.byte_offset, d.reason) for d in new}
        return tuple(new)


def _stamp(path: Path) -> _Stamp | None:
    """None where there is no such file. Raises OSError where there is something that is no file."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    log = path.with_name(path.name + "-wal")
    beside = (0, 0)
    with suppress(OSError):
        beside = log.stat().st_size, log.stat().st_mtime_ns
    return _Stamp(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, beside)


def _continues(old: Column, new: Column) -> bool:
    count = old.steps.size
    return (
        new.steps.size >= count
        and bool(np.array_equal(new.steps[:count], old.steps))
        and bool(np.array_equal(new.values[:count], old.values, equal_nan=True))
    )


def _joined(first: Parsed, then: Parsed) -> Parsed:
    return Parsed(
        then.format,
        (*first.columns, *then.columns),
        first.num_rows + then.num_rows,
        (*first.damages, *then.damages),
        (*first.notes, *then.notes),
    )
