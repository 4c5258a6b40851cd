"""Can a big table be read by a column store? Yes, where every row is whole and every cell a number; otherwise None.

duckdb refuses a row with too few or too many cells and a cell that is no number, so that what it reads is whole.
"""

from __future__ import annotations

import csv
from pathlib import Path

from spike.readers.metrics.arrow_stream import batches
from spike.readers.metrics.columns import is_held_out, rank_name, step_name
from spike.readers.metrics.contract import Column, Parsed, significant_digits
from spike.readers.metrics.numbers import parse_number
from spike.readers.metrics.wide_rows import WideRows

_HEAD_BYTES = 65_536
_GLOB = frozenset("*?[")


def read_fast(path: Path, delimiter: str, header: list[str]) -> Parsed | None:
    """Parse with duckdb. None where the table needs the line-exact reader."""
    import duckdb

    at, by = step_name(header), rank_name(header)
    numbers = [name for name in header if name not in (at, by)]
    rows = _first_rows(path, delimiter)
    if at is None or _GLOB & set(str(path)) or not rows or len({name.lower() for name in header}) < len(header):
        return None
    if any(is_held_out(name) or name.lower() == "epoch" for name in header) or _is_torn(path):
        return None
    names = ", ".join(f"{_text(name)}: 'DOUBLE'" for name in header)
    selected = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (at, *((by,) if by else ()), *numbers))
    query = (
        f"SELECT {selected} FROM read_csv({_text(str(path))}, header=true, auto_detect=false, delim={_text(delimiter)},"
        f" quote='\"', compression='none', columns={{{names}}})"
    )
    table = WideRows(numbers, path.stat().st_size // max(1, len(delimiter.join(rows[0]))) + 1000)
    try:
        with duckdb.connect() as connection:
            connection.execute("SET enable_progress_bar = false")  # it would be drawn over the answer
            for step, *others in batches(connection.sql(query)):
                if table.extend(step, others.pop(0) if by else None, others).size:
                    return None
    except (ValueError, duckdb.Error):
        return None
    digits = {name: max(_digits(row[header.index(name)]) for row in rows) for name in numbers}
    columns = tuple(Column(c.name, c.steps, c.values, c.rank, digits[c.name], c.held_out) for c in table.columns(None))
    return Parsed("csv", columns, table.num_rows)


def _digits(cell: str) -> int:
    return significant_digits(cell) if parse_number(cell) is not None else 1


def _first_rows(path: Path, delimiter: str) -> list[list[str]]:
    """Whole rows at the start of the file, without the header."""
    with path.open("rb") as stream:
        lines = stream.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace").splitlines()[1:-1]
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
    width = len(rows[0]) if rows else 0
    return rows if all(len(row) == width for row in rows) else []


def _is_torn(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(-1, 2)
        return stream.read() != b"\n"


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
