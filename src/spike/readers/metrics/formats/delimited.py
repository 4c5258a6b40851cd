"""What does a CSV of metrics say? Lightning's metrics.csv, W&B exports and plain tables."""

from __future__ import annotations

import csv
from pathlib import Path

from spike.readers.metrics.columns import is_held_out, looks_like_metrics, rank_name, step_name
from spike.readers.metrics.contract import Parsed, Table, significant_digits
from spike.readers.metrics.numbers import as_step, parse_number
from spike.readers.metrics.text_lines import Line, looks_binary, read_lines


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
        table = Table(self.format)
        header: list[str] = []
        delimiter = ","
        for line in read_lines(path):
            if not line.raw.strip():
                continue
            if not header:
                text = line.raw.decode("utf-8-sig", errors="replace")
                delimiter = _delimiter(text) or ","
                header = _cells(text, delimiter)
                continue
            cells = _cells(line.text, delimiter)
            if cells == header:
                continue  # a restarted writer repeats its header
            if len(cells) != len(header) or b"\0" in line.raw:
                self._damaged(table, line, len(cells), len(header))
                continue
            _add(table, header, cells)
        return table.parsed()

    def _damaged(self, table: Table, line: Line, found: int, expected: int) -> None:
        if line.is_last and not line.ended:
            table.damage(line.number, line.offset, "the last line is not finished yet", benign=True)
        else:
            table.damage(line.number, line.offset, f"{found} cells where the header has {expected}")


def _delimiter(header: str) -> str | None:
    counts = {mark: header.count(mark) for mark in (",", "\t", ";")}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
    except (csv.Error, StopIteration):
        return []


def _add(table: Table, header: list[str], cells: list[str]) -> None:
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
    held_out = all(is_held_out(name) or name == "epoch" for name in values)
    digits = {name: significant_digits(row[name]) for name in values}
    table.add(table.num_rows + 1 if step is None else step, values, rank=rank, digits=digits, held_out=held_out)


READER = Delimited()
