"""Can a big JSON-lines file be read by a column store? Yes, where it loses nothing; otherwise None.

Every key is followed by one colon. Where a range of lines has as many colons as cells (and colons inside texts) came
out of it, nothing was lost there. Where it has not, the lines that gave nothing are parsed again one by one, and if
that does not explain the difference, all lines of the range are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from spike.domain.signals import Damage
from spike.readers.metrics.arrow_stream import batches
from spike.readers.metrics.contract import Column, Parsed
from spike.readers.metrics.json_layout import Layout, layout_of
from spike.readers.metrics.json_rows import bad_step, parse_object, understood
from spike.readers.metrics.range_check import count_colons, measure
from spike.readers.metrics.wide_rows import WideRows

MOST_SUSPICIOUS_SHARE = 0.5
"""Where more rows than this need the line-exact reader, it reads the file alone."""

MAX_RANGE_BYTES = 128 << 20
"""A longer range holds a line that is no row; the line-exact reader passes over it in bounded memory."""


@dataclass(frozen=True, slots=True)
class _Batch:
    first: int
    end: int
    """Rows [first, end)."""
    cells: int
    """Keys accounted for: numbers read, texts and the colons in them."""
    bad: NDArray[np.int64]
    """Rows without a step that is one."""
    is_odd: bool
    """A text column holds a number."""


class _Unclear(Exception):
    """The file needs the line-exact reader."""


@dataclass(slots=True)
class _Reading:
    """A file on its way from batches to columns."""

    layout: Layout
    rows: WideRows
    batches: list[_Batch] = field(default_factory=list)
    held_out: list[NDArray[np.bool_]] = field(default_factory=list)
    held_rows: dict[int, bool] = field(default_factory=dict)
    """What the line-exact reader says about a row."""
    summaries: list[NDArray[np.bool_]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    last_is_torn: bool = False


def read_fast(path: Path) -> Parsed | None:
    """Parse with duckdb. None where the file needs the line-exact reader.

    Raises InputUnreadable where the file holds more values than memory should.
    """
    import duckdb

    layout = layout_of(path)
    if layout is None:
        return None
    reading = _Reading(layout, WideRows(list(layout.numbers), layout.capacity))
    try:
        with duckdb.connect() as connection, path.open("rb") as stream:
            connection.execute("SET enable_progress_bar = false")  # it would be drawn over the answer
            _read_batches(reading, connection.sql(layout.query(path)))
            if not _is_clean(reading, stream):
                _settle(reading, stream)
        return _parsed(reading)
    except (_Unclear, ValueError, duckdb.Error):
        return None


def _read_batches(reading: _Reading, relation: Any) -> None:
    layout = reading.layout
    for cells in batches(relation):
        columns = dict(zip(layout.selected, cells, strict=True))
        first = reading.rows.num_rows
        bad = reading.rows.extend(
            columns[layout.step], columns.get(layout.rank or ""), [columns[name] for name in layout.numbers]
        )
        count = sum(columns[name].num_present for name in layout.counted)
        if layout.OTHER in columns:
            count += int(columns[layout.OTHER].values.sum())
        is_odd = layout.ODD in columns and bool(columns[layout.ODD].values.any())
        reading.batches.append(_Batch(first, reading.rows.num_rows, count, bad, is_odd))
        if layout.HELD_OUT in columns:
            reading.held_out.append(columns[layout.HELD_OUT].values > 0)
        if layout.SUMMARY in columns:
            reading.summaries.append(columns[layout.SUMMARY].values > 0)


def _is_clean(reading: _Reading, stream: BinaryIO) -> bool:
    """Whether every key of the file came out, and every row has its step."""
    if any(batch.bad.size or batch.is_odd for batch in reading.batches):
        return False
    return count_colons(stream) == sum(batch.cells for batch in reading.batches)


def _settle(reading: _Reading, stream: BinaryIO) -> None:
    """Read again what did not come out, line by line."""
    ranges = measure(stream, [0, *(batch.end for batch in reading.batches)])
    if ranges.num_lines != reading.rows.num_rows:
        # More rows than lines: the writer went on while the file was read.
        if ranges.has_blank_lines or ranges.num_lines > reading.rows.num_rows:
            raise _Unclear
        reading.rows.keep(ranges.num_lines)
    reading.last_is_torn = ranges.is_torn
    again = 0
    for number, batch in enumerate(reading.batches):
        batch = _cut(batch, ranges.num_lines)
        start, end = ranges.offsets[number], ranges.offsets[number + 1]
        if batch.first == batch.end:
            continue
        is_whole = ranges.colons[number] == batch.cells and not batch.is_odd
        if is_whole and not batch.bad.size:
            _assert_aligned(reading, batch, stream, start)
            continue
        if end - start > MAX_RANGE_BYTES:
            raise _Unclear
        stream.seek(start)
        raw = stream.read(end - start)
        if not batch.bad.size and not batch.is_odd and ranges.colons[number] - batch.cells == _count_nulls(raw):
            _assert_aligned(reading, batch, stream, start)
            continue
        lines = _Lines(raw, start, batch.first)
        if lines.count < batch.end - batch.first:
            raise _Unclear
        is_explained = _is_explained(batch, lines, ranges.colons[number])
        chosen = batch.bad.tolist() if is_explained else range(batch.first, batch.end)
        again += len(chosen)
        if again > MOST_SUSPICIOUS_SHARE * ranges.num_lines:
            raise _Unclear
        for row in chosen:
            _read_line(reading, row, lines.offset(row), lines[row])


def _cut(batch: _Batch, num_lines: int) -> _Batch:
    if batch.end <= num_lines:
        return batch
    end = max(batch.first, num_lines)
    return _Batch(min(batch.first, num_lines), end, batch.cells, batch.bad[batch.bad < num_lines], True)


def _assert_aligned(reading: _Reading, batch: _Batch, stream: BinaryIO, start: int) -> None:
    """The first row of the range stands on its first line."""
    stream.seek(start)
    row = parse_object(stream.readline())
    found = None if row is None else understood(row)
    if found is not None and found.step != reading.rows.step_of(batch.first):
        raise _Unclear


class _Lines:
    """The lines of a range by row number; only those that are asked for are cut out."""

    def __init__(self, raw: bytes, start: int, first_row: int) -> None:
        self.raw = raw
        self._start, self._first_row = start, first_row
        ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord("\n"))
        is_open = not raw.endswith(b"\n")
        self._ends = np.append(ends, len(raw)) if is_open else ends
        self.count = int(self._ends.size)

    def __getitem__(self, row: int) -> bytes:
        return self.raw[self._begin(row) : int(self._ends[row - self._first_row])]

    def offset(self, row: int) -> int:
        """Byte of the file at which the row begins."""
        return self._start + self._begin(row)

    def _begin(self, row: int) -> int:
        place = row - self._first_row
        return int(self._ends[place - 1]) + 1 if place else 0


def _is_explained(batch: _Batch, lines: _Lines, colons: int) -> bool:
    """Whether the lines that gave nothing are all that is missing from this range."""
    if batch.is_odd:
        return False
    bad = [lines[row] for row in batch.bad.tolist()]
    if any(parse_object(line) is not None for line in bad):
        return False
    missing: int = colons - batch.cells - sum(line.count(b":") for line in bad)
    if missing:
        missing -= _count_nulls(lines.raw) - sum(_count_nulls(line) for line in bad)
    return missing == 0


def _count_nulls(raw: bytes) -> int:
    """Keys whose value is null. Searched from the rare word, not from the many colons."""
    count, at = 0, raw.find(b"null")
    while at >= 0:
        is_value = raw[max(0, at - 16) : at].rstrip().endswith(b'":')
        count += is_value and raw[at + 4 : at + 20].lstrip()[:1] in (b",", b"}")
        at = raw.find(b"null", at + 4)
    return count


def _read_line(reading: _Reading, row: int, offset: int, line: bytes) -> None:
    value = parse_object(line)
    found = None if value is None else understood(value)
    if found is not None and not found.bad_step:
        if found.step is None or (found.held_out and not reading.held_out):
            raise _Unclear
        reading.held_rows[row] = found.held_out
        reading.rows.set_row(row, found.step, found.rank, found.values)
        return
    reading.dropped.append(row)
    if found is not None:
        reading.damages.append(Damage("", row + 1, offset, bad_step(found), False))
    elif value is None:
        is_torn = reading.last_is_torn and row == reading.rows.num_rows - 1
        reading.damages.append(Damage("", row + 1, offset, why_no_object(line, is_torn=is_torn), is_torn))


def why_no_object(line: bytes, *, is_torn: bool) -> str:
    """The sentence about a line that is no JSON object."""
    if b"\0" in line:
        return "a block of NUL bytes, as a crash leaves it"
    if is_torn:
        return "the last line is not finished yet"
    return "not a JSON object: " + line[:60].decode("utf-8", errors="replace")


def _parsed(reading: _Reading) -> Parsed:
    rows, count = reading.rows, reading.rows.num_rows
    dropped: NDArray[np.bool_] | None = None
    if reading.summaries or reading.dropped:
        dropped = np.concatenate(reading.summaries)[:count] if reading.summaries else np.zeros(count, bool)
        dropped[reading.dropped] = True
    epoch = next((name for name in ("epoch", "Epoch") if name in rows.names), None)
    if epoch is not None and rows.starts_again_in(epoch):
        raise _Unclear
    columns: list[Column] = []
    held = np.concatenate(reading.held_out)[:count] if reading.held_out else np.zeros(0, bool)
    if held.size:
        held[list(reading.held_rows)] = list(reading.held_rows.values())
    if held.any():
        columns = [*rows.columns(held if dropped is None else held | dropped, keep=True)]
        train = ~held
        columns += rows.columns(train if dropped is None else train | dropped, held_out=True)
    else:
        columns = [*rows.columns(dropped)]
    num_dropped = 0 if dropped is None else int(dropped.sum())
    return Parsed("jsonl", tuple(columns), count - num_dropped, tuple(reading.damages))
