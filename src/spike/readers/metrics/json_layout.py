"""Which columns does a big JSON-lines file have? Told by samples all over it; what they miss is noticed later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from spike.domain.errors import InputUnreadable
from spike.readers.metrics.columns import rank_name, step_name
from spike.readers.metrics.json_rows import HELD_OUT_SPLITS, SPLIT_KEYS, SUMMARY_KEYS
from spike.readers.metrics.numbers import NUMBER, as_number

_PLACES = 16
_LINES = 200
_TAIL_BYTES = 65_536
_GLOB = frozenset("*?[")
_NUMERIC_TEXT = rf"\s*[\"']*(?:{NUMBER})\s*[a-z%]*[\"']*\s*"
"""What numbers.parse_number may take for a number."""

MAX_LINE_BYTES = 1 << 20
"""Sets duckdb's buffers too: with its own 16 MiB it needs twice the memory and gains nothing."""

MOST_VALUES = 2_000_000_000
"""16 GB. A file with more is refused: a part of a run would be a wrong answer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a file, and the query that reads them as numbers."""

    OTHER: ClassVar[str] = "\0other"
    """Keys of a row that are no numbers of it, and the colons in their texts."""
    ODD: ClassVar[str] = "\0odd"
    """Texts of a row that are numbers."""
    HELD_OUT: ClassVar[str] = "\0held"
    SUMMARY: ClassVar[str] = "\0summary"

    step: str
    rank: str | None
    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    summary: tuple[str, ...]
    capacity: int
    """Rows that the file holds, about."""

    @property
    def counted(self) -> tuple[str, ...]:
        """Columns of numbers that are read one by one."""
        return (self.step, *((self.rank,) if self.rank is not None else ()), *self.numbers)

    @property
    def selected(self) -> tuple[str, ...]:
        """Names of the columns of the query's answer."""
        return (*self.counted, *self._expressions())

    def query(self, path: Path) -> str:
        """Every column as a DOUBLE; a line that cannot be parsed gives a row of NULLs."""
        kinds = dict.fromkeys((*self.counted, *self.summary), "DOUBLE") | dict.fromkeys(self.texts, "VARCHAR")
        columns = ", ".join(f"{_text(name)}: '{kind}'" for name, kind in kinds.items())
        chosen = [*(_name(name) for name in self.counted), *self._expressions().values()]
        numbered = ", ".join(f"{expression} AS c{i}" for i, expression in enumerate(chosen))
        return (
            f"SELECT {numbered} FROM read_json({_text(str(path))}, format='newline_delimited', compression='none',"
            f" maximum_object_size={MAX_LINE_BYTES}, ignore_errors=true, columns={{{columns}}})"
        )

    def _expressions(self) -> dict[str, str]:
        made: dict[str, str] = {}
        counts = [
            f"CASE WHEN {n} IS NULL THEN 0 ELSE 1 + length({n}) - length(replace({n}, ':', '')) END"
            for n in map(_name, self.texts)
        ]
        counts += [f"CASE WHEN {n} IS NULL THEN 0 ELSE 1 END" for n in map(_name, self.summary)]
        if counts:
            made[self.OTHER] = f"({' + '.join(counts)})::DOUBLE"
        if self.texts:
            odd = [
                f"coalesce(regexp_full_match({n}, {_text(_NUMERIC_TEXT)}, 'i'), false)" for n in map(_name, self.texts)
            ]
            made[self.ODD] = f"({' OR '.join(odd)})::INT::DOUBLE"
        splits = [_name(key) for key in SPLIT_KEYS if key in self.texts]
        if splits:
            held = ", ".join(map(_text, sorted(HELD_OUT_SPLITS)))
            made[self.HELD_OUT] = f"(lower(coalesce({', '.join(splits)}, '')) IN ({held}))::INT::DOUBLE"
        if self.summary:
            any_of = " OR ".join(f"{_name(key)} IS NOT NULL" for key in self.summary)
            made[self.SUMMARY] = f"({any_of})::INT::DOUBLE"
        return made


def layout_of(path: Path) -> Layout | None:
    """The layout, or None where rows are nested, have no step, or the path would be read as a pattern.

    Raises InputUnreadable where the file holds more than MOST_VALUES.
    """
    if _GLOB & set(str(path)):
        return None
    kinds: dict[str, bool] = {}
    size, sampled, num_sampled = path.stat().st_size, 0, 0
    for line in _sample(path, size):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(row, dict) or any(isinstance(value, dict | list) for value in row.values()):
            return None
        sampled, num_sampled = sampled + len(line), num_sampled + 1
        for key, value in row.items():
            if value is not None:
                kinds[key] = kinds.get(key, False) or as_number(value) is not None
    at, by = step_name(kinds), rank_name(kinds)
    if at is None or not kinds[at] or len({key.lower() for key in kinds}) < len(kinds):
        return None
    summary = tuple(key for key in kinds if key in SUMMARY_KEYS)
    numbers = tuple(key for key, numeric in kinds.items() if numeric and key not in (at, by, *summary))
    texts = tuple(key for key, numeric in kinds.items() if not numeric and key not in (by, *summary))
    capacity = int(size / max(1.0, sampled / num_sampled) * 1.02) + 1000
    if capacity * (len(numbers) + 1) > MOST_VALUES:
        raise InputUnreadable(
            f"{path.name} holds about {capacity * (len(numbers) + 1):.2g} values, more than the {MOST_VALUES:.2g} that"
            " spike keeps in memory",
            hint="give it the part around the incident, for example: tail -n 20000000 FILE > part.jsonl",
        )
    return Layout(at, by, numbers, texts, summary, capacity)


def _sample(path: Path, size: int) -> list[bytes]:
    found: list[bytes] = []
    with path.open("rb") as stream:
        for place in range(_PLACES):
            stream.seek(size * place // _PLACES)
            if place:
                stream.readline(_TAIL_BYTES)
            found += [stream.readline(_TAIL_BYTES) for _ in range(_LINES)]
        stream.seek(max(0, size - _TAIL_BYTES))
        found += stream.read(_TAIL_BYTES).split(b"\n")[1:]
    return [line for line in found if line.strip()]


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
