"""What do the last rows of a live run say, as signals? A bounded window over every file, fed with what is new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from spike.domain.signals import LOSS, Series, Signals
from spike.readers.metrics.contract import Column, Parsed
from spike.readers.metrics.find import natural_key
from spike.readers.metrics.merge import ReadFile, merge
from spike.readers.metrics.read import rank_in_name, relative

WINDOW_ROWS = 4096
"""Rows kept of each column. The detector's longest memory is the tail of 2,048 healthy rows; a departure is cut at 512
rows and compared with 96 on either side. Twice the longest memory also shows a drift over a few thousand rows; a slower
one is for `spike detect`, which reads the whole record."""

MOST_VALUES = 1 << 20
"""Values kept in all, whatever the number of ranks ..."""

FEWEST_ROWS = 512
"""... as long as each column keeps this many: enough for a baseline and the longest departure."""

MAX_NOTES = 100
"""Notes and damages of a file that are kept; a broken writer makes one a row."""

_Key = tuple[str, int | None, bool]


@dataclass(slots=True)
class _Recent:
    """The end of one file."""

    source: str
    rank: int | None
    format: str = ""
    num_rows: int = 0
    columns: dict[_Key, Column] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()

    def parsed(self) -> Parsed:
        return Parsed(self.format, tuple(self.columns.values()), self.num_rows, (), self.notes)


class RecentSignals:
    """The window over all files of one run."""

    def __init__(self, base: Path, chosen: Mapping[str, str]) -> None:
        self._base, self._chosen = base, chosen
        self._files: dict[Path, _Recent] = {}

    def add(self, path: Path, parsed: Parsed) -> None:
        """Rows that a file has added, behind those that it had."""
        recent = self._files.get(path)
        if recent is None:
            recent = self._files[path] = _Recent(relative(path, self._base), rank_in_name(path))
        recent.format = parsed.format
        recent.num_rows += parsed.num_rows
        recent.notes = tuple(dict.fromkeys((*recent.notes, *parsed.notes)))[-MAX_NOTES:]
        for column in parsed.columns:
            key = (column.name, column.rank, column.held_out)
            old = recent.columns.get(key)
            recent.columns[key] = _last_rows(column if old is None else _longer(old, column), self._num_kept())

    def signals(self) -> Signals:
        """The window as `read_signals` would hand it over; files in natural order, later rows win after a restart."""
        paths = sorted(self._files, key=natural_key)
        files = [self._files[path] for path in paths]
        return merge([ReadFile(f.source, f.parsed(), f.rank) for f in files], self._chosen)

    def _num_kept(self) -> int:
        columns = sum(len(recent.columns) for recent in self._files.values())
        return max(FEWEST_ROWS, min(WINDOW_ROWS, MOST_VALUES // max(columns, 1)))


def _longer(old: Column, new: Column) -> Column:
    return replace(
        old,
        steps=np.concatenate([old.steps, new.steps]),
        values=np.concatenate([old.values, new.values]),
        digits=max(old.digits, new.digits),
    )


def _last_rows(column: Column, count: int) -> Column:
    """The end of the column, copied so that the rest can be forgotten."""
    if column.steps.size <= count:
        return column
    return replace(column, steps=column.steps[-count:].copy(), values=column.values[-count:].copy())


def lead(signals: Signals) -> Series | None:
    """The series whose rows count as the run's steps: the loss, else the longest one; None before the first row."""
    found = signals.get(LOSS) or max(signals.series, key=lambda s: s.steps.size, default=None)
    return found if found is not None and found.steps.size else None
