"""Can a big JSON-lines file be read by a column store? Yes, where it loses nothing; otherwise None.

Exactness check: the number of keys in the file must equal the number of cells read, so that a column which the
sample missed, a nested object or an odd line sends the file to the line-exact reader instead.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spike.readers.metrics.columns import rank_name, step_name
from spike.readers.metrics.contract import Column, Parsed, shortest_digits
from spike.readers.metrics.numbers import as_number

_SAMPLE_LINES = 200
_SAMPLE_PLACES = 16


def read_fast(path: Path) -> Parsed | None:
    """Parse with duckdb. None where the file needs the line-exact reader."""
    kinds = _sample(path)
    at, by = step_name(kinds), rank_name(kinds)
    if at is None or not kinds:
        return None
    table = _query(path, kinds)
    if table is None or not _is_exact(path, table, kinds):
        return None
    steps = table[at]
    if np.ma.is_masked(steps):
        return None
    ranks = None if by is None else table[by]
    if ranks is not None and np.ma.is_masked(ranks):
        return None
    groups = None if ranks is None else _ByRank(np.asarray(ranks, dtype=np.int64))
    counted = np.asarray(steps, dtype=np.int64)
    columns: list[Column] = []
    for name, kind in kinds.items():
        if kind == "DOUBLE" and name not in (at, by):
            columns.extend(_columns(name, counted, table[name], groups))
    return Parsed("jsonl", tuple(columns), len(steps))


def _sample(path: Path) -> dict[str, str]:
    """Key -> duckdb type, from lines at the start and at places spread over the file."""
    import json

    kinds: dict[str, str] = {}
    size = path.stat().st_size
    with path.open("rb") as stream:
        for place in range(_SAMPLE_PLACES):
            stream.seek(size * place // _SAMPLE_PLACES)
            if place:
                stream.readline()
            for _ in range(_SAMPLE_LINES):
                try:
                    row = json.loads(stream.readline())
                except ValueError:
                    break
                if not isinstance(row, dict):
                    return {}
                for key, value in row.items():
                    if isinstance(value, dict | list):
                        return {}
                    numeric = value is None or as_number(value) is not None
                    kinds[key] = "DOUBLE" if numeric and kinds.get(key) != "VARCHAR" else "VARCHAR"
    at, by = step_name(kinds), rank_name(kinds)
    for name in (at, by):
        if name is not None:
            kinds[name] = "BIGINT"
    return kinds


def _query(path: Path, kinds: dict[str, str]) -> dict[str, Any] | None:
    import duckdb

    spec = "{" + ", ".join(f"{_quoted(name)}: '{kind}'" for name, kind in kinds.items()) + "}"
    try:
        with duckdb.connect() as connection:
            result: dict[str, Any] = connection.execute(
                f"SELECT * FROM read_json({_quoted(str(path))}, format='newline_delimited', columns={spec})"
            ).fetchnumpy()
            return result
    except duckdb.Error:
        return None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_exact(path: Path, table: dict[str, Any], kinds: dict[str, str]) -> bool:
    cells = sum(int(np.ma.count(table[name])) for name in kinds if name in table)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        keys = nulls = 0
        for start in range(0, len(view), 1 << 26):
            block = view[start : start + (1 << 26) + 4]
            keys += block.count(b'":') - (block[-4:].count(b'":') if len(block) > 1 << 26 else 0)
            nulls += block.count(b"null")
    return keys == cells + nulls


class _ByRank:
    """Rows grouped by rank, sorted once for all columns."""

    def __init__(self, ranks: NDArray[np.int64]) -> None:
        self._order = np.argsort(ranks, kind="stable")
        found, starts = np.unique(ranks[self._order], return_index=True)
        self._groups = list(zip(found.tolist(), np.split(self._order, starts[1:]), strict=True))

    def columns(
        self, name: str, steps: NDArray[np.int64], data: NDArray[np.float64], present: NDArray[np.bool_], digits: int
    ) -> list[Column]:
        """One column a rank, in file order."""
        every = bool(present.all())
        made: list[Column] = []
        for rank, rows in self._groups:
            kept = rows if every else rows[present[rows]]
            if kept.size:
                made.append(Column(name, steps[kept], data[kept], int(rank), digits))
        return made


def _columns(name: str, steps: NDArray[np.int64], values: Any, groups: _ByRank | None) -> list[Column]:
    present = ~np.ma.getmaskarray(values)
    if not present.any():
        return []
    data = np.asarray(np.ma.getdata(values), dtype=np.float64)
    sample = data[present][:: max(1, len(data) // 2000)]
    digits = shortest_digits(sample.tolist())
    if groups is None:
        return [Column(name, steps[present], data[present], None, digits)]
    return groups.columns(name, steps, data, present, digits)
