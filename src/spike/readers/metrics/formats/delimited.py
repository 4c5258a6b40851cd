"""What does a CSV of metrics say? Lightning's metrics.csv, W&B exports and plain tables."""

from __future__ import annotations

import csv
from pathlib import Path

from spike.readers.metrics.columns import is_held_out, looks_like_metrics, rank_name, step_name
from spike.readers.metrics.contract import HEAD_BYTES, Parsed, Session, Table, significant_digits
from spike.readers.metrics.fast_csv import read_fast
from spike.readers.metrics.line_session import LineSession
from spike.readers.metrics.numbers import as_step, parse_number
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.text_lines import Line, looks_binary

FAST_PATH_BYTES = 8_000_000
"""Above this the column store reads the file first; below, starting it costs more than it saves."""


class Delimited:
    """Comma, tab or semicolon separated values with a header line. Empty cells are absent, not NaN."""

    format = "csv"
    order = 60

    def sniff(self, path: Path, head: bytes) -> bool:
        """The header names a known signal, and the second line has numbers in it."""
        if looks_binary(head):
            return False
        lines = head.decode("utf-8-sig", errors="replace").splitlines()
        if not lines or (delimiter := _delimiter(lines[0])) is None:
            return False
        header = _cells(lines[0], delimiter)
        if not looks_like_metrics(header) and step_name(header) is None:
            return False
        rows = [_cells(line, delimiter) for line in lines[1:6] if line.strip()]
        if not looks_like_metrics(header):
            return False
        return not rows or any(parse_number(cell) is not None for cell in rows[0])

    def read(self, path: Path) -> Parsed:
        """Parse every line; a line with too few or too many cells is torn (last) or damage (middle)."""
        if path.stat().st_size > FAST_PATH_BYTES:
            with path.open("rb") as stream:
                first = stream.readline(HEAD_BYTES).decode("utf-8-sig", errors="replace").rstrip("\r\n")
            delimiter = _delimiter(first)
            fast = None if delimiter is None else read_fast(path, delimiter, _cells(first, delimiter))
            if fast is not None:
                return fast
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Line by line; the header is remembered."""
        table = Table(self.format)
        return LineSession(table, _Rows(table).take)


class _Rows:
    """Lines under the header that came first."""

    def __init__(self, table: Table) -> None:
        self._table, self._header, self._delimiter = table, list[str](), ","

    def take(self, line: Line) -> None:
        """Add one line."""
        if not line.raw.strip():
            return
        if not self._header:
            text = line.raw.decode("utf-8-sig", errors="replace")
            self._delimiter = _delimiter(text) or ","
            self._header = _cells(text, self._delimiter)
            return
        cells = _cells(line.text, self._delimiter)
        if cells == self._header:
            return  # a restarted writer repeats its header
        if line.is_torn:
            reason = "the last line is not finished yet: its last cell is not read"
            self._table.damage(line.number, line.offset, reason, benign=True)
            if len(cells) == len(self._header):
                _add(self._table, line, self._header, [*cells[:-1], ""])
        elif len(cells) != len(self._header) or b"\0" in line.raw:
            reason = f"{len(cells)} cells where the header has {len(self._header)}"
            self._table.damage(line.number, line.offset, "a block of NUL bytes" if b"\0" in line.raw else reason)
        else:
            _add(self._table, line, self._header, cells)


def _delimiter(header: str) -> str | None:
    counts = {mark: header.count(mark) for mark in (",", "\t", ";")}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
    except (csv.Error, StopIteration):
        return []


def _add(table: Table, line: Line, header: list[str], cells: list[str]) -> None:
    at, by = step_name(header), rank_name(header)
    row = dict(zip(header, cells, strict=True))
    step = as_step(row[at]) if at is not None else None
    rank = as_step(row[by]) if by is not None else None
    values = {
        name: number
        for name, cell in row.items()
        if cell and name not in (at, by) and (number := parse_number(cell)) is not None
    }
    if not values:
        return
    if at is not None and row[at] and step is None:
        table.damage(line.number, line.offset, f"a row whose step is {row[at][:40]!r}: it is not read")
        return
    held_out = all(is_held_out(name) or name == "epoch" for name in values)
    digits = {name: significant_digits(row[name]) for name in values}
    table.add(table.num_rows + 1 if step is None else step, values, rank=rank, digits=digits, held_out=held_out)


READER = Delimited()
