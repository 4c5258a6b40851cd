"""Which step does each row of a console belong to, and which numbers does it hold? Matches -> rows of a table."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

from spike.domain.signals import LOSS
from spike.readers.metrics.columns import canonical
from spike.readers.metrics.console_text import Anchor, Match
from spike.readers.metrics.contract import Table, significant_digits
from spike.readers.metrics.numbers import parse_number

SETTLED_ROWS = 20_000
"""So many rows are held as text at most: a log of gigabytes must not be."""

DIGITS_ROWS = 200
"""Digits are counted in about so many rows of a run: a stack prints a column in one format."""

SHORT_RUN = 8
"""Fewer rows of the same fields than this are added one by one."""

VANISHED_SHARE = 0.25
"""A loss that fewer rows than this carry is printed now and then; its absence says nothing."""


class Row(NamedTuple):
    """One line understood, with what stood around it."""

    shape: str
    match: Match
    rank: int | None
    progress: int | None


@dataclass(slots=True)
class ConsoleRows:
    """Collects matches and files them under their steps."""

    table: Table
    _rows: list[tuple[int | None, Row]] = field(default_factory=list)
    _current: int | None = None
    _in_block: bool = False
    _pending: list[Match] = field(default_factory=list)
    """Skipped steps whose row has not come yet."""
    _ranks: set[int] = field(default_factory=set)
    _bars: list[int] = field(default_factory=list)
    """Progress shown beside rows that have no step."""
    _counted: int = 0
    """Rows without a step so far."""
    _step: int | None = None
    """The last of them."""
    _num_train: int = 0
    """Rows of Megatron so far, and how many of them had each loss."""
    _losses: Counter[str] = field(default_factory=Counter)

    def take(self, row: Row) -> None:
        """File one match under its step."""
        match row.match.anchor:
            case Anchor.NEXT:
                self._pending.append(row.match)
            case Anchor.CURRENT:
                if self._in_block or row.shape == "hf-dict":
                    self._rows.append((self._current, row))
            case Anchor.ROW:
                self._rows.append((None, row))
            case Anchor.OWN:
                self._own(row)
        if len(self._rows) >= SETTLED_ROWS:
            self.settle(False)

    def leave_block(self) -> None:
        """A line at the margin ends a block of indented pairs."""
        self._in_block = False

    def settle(self, is_end: bool) -> None:
        """Add the rows held so far to the table."""
        rows = self._with_steps()
        vanished = self._vanished(rows)
        self._ranks.update(row.rank for _, row in rows if row.rank is not None)
        by_rank: dict[int | None, list[tuple[int, Row]]] = defaultdict(list)
        for step, row in rows:
            by_rank[row.rank if len(self._ranks) > 1 else None].append((step, row))
        for rank, of_rank in by_rank.items():
            for _, run in groupby(of_rank, lambda pair: _run_key(pair[1], vanished)):
                self._add_run(rank, list(run), vanished)
        self._rows = []
        if is_end and self._pending:
            self.table.note("skipped-at-end", f"{len(self._pending)} skipped steps after the last row of the log")

    def _own(self, row: Row) -> None:
        self._current = row.match.step
        self._in_block = not row.match.values
        self._rows.append((self._current, row))
        if self._pending and row.match.values and not row.match.held_out:
            scale = self._pending[-1].values["overflow loss scale"]
            values = {"overflow": str(len(self._pending)), "overflow loss scale": scale}
            self._rows.append((self._current, Row("deepspeed", Match(values, self._current), row.rank, None)))
            self._pending.clear()

    def _add_run(self, rank: int | None, run: list[tuple[int, Row]], vanished: dict[int, tuple[str, ...]]) -> None:
        """Add rows of the same fields, a field at a time where each value is a plain number."""
        matches = [row.match for _, row in run]
        names = tuple(matches[0].values)
        columns: list[list[float]] = []
        if len(run) >= SHORT_RUN and not {"epoch", "Epoch"} & set(names) and id(run[0][1]) not in vanished:
            with suppress(ValueError):
                texts = zip(*(match.values.values() for match in matches), strict=True)
                columns = [list(map(float, column)) for column in texts]
        if columns:
            digits: dict[str, int] = {}
            for match in matches[:: max(1, len(run) // DIGITS_ROWS)]:
                for name, text in match.values.items():
                    digits[name] = max(digits.get(name, 0), significant_digits(text))
            self.table.add_block([step for step, _ in run], names, columns, rank, digits, matches[0].held_out)
            return
        for step, row in run:
            self._add(step, row, rank, vanished.get(id(row), ()))

    def _add(self, step: int, row: Row, rank: int | None, vanished: tuple[str, ...]) -> None:
        texts = row.match.values
        numbers = {name: number for name, text in texts.items() if (number := parse_number(text)) is not None}
        numbers.update(dict.fromkeys(vanished, math.nan))
        if not numbers:
            return
        digits = {name: significant_digits(texts[name]) for name in numbers if name in texts}
        self.table.add(step, numbers, rank=rank, digits=digits, held_out=row.match.held_out)

    def _with_steps(self) -> list[tuple[int, Row]]:
        """Rows with a step each; those that print none are counted, by the progress bar where each row has one."""
        counted = [row for step, row in self._rows if step is None and row.match.anchor is Anchor.ROW]
        if not counted:
            return [(step, row) for step, row in self._rows if step is not None]
        self._bars += [row.progress for row in counted if row.progress is not None]
        self._counted += len(counted)
        interval, why = 1, "rows without a step were numbered in file order"
        if len(self._bars) == self._counted and len(self._bars) > 1:
            gaps = [later - earlier for earlier, later in pairwise(self._bars) if later > earlier]
            interval = max(1, round(statistics.median(gaps))) if gaps else 1
            why = f"rows without a step were numbered by the progress bar, every {interval} steps"
        self.table.note("assumed-steps", why)
        if self._step is None:
            first = interval if not self._bars else interval * max(1, math.ceil(self._bars[0] / interval))
            self._step = first - interval
        result: list[tuple[int, Row]] = []
        for known, row in self._rows:
            if known is None and row.match.anchor is Anchor.ROW:
                self._step += interval
            result.append((max(self._step, 0) if known is None else known, row))
        return result

    def _vanished(self, rows: list[tuple[int, Row]]) -> dict[int, tuple[str, ...]]:
        """Losses that Megatron left out of a row, by the row's identity.

        It prints no loss that is not finite, so a row without it stands for a NaN, unless the step was skipped.
        """
        train = [(step, row) for step, row in rows if row.shape == "megatron" and not row.match.held_out]
        overflowed = {step for step, row in rows if row.shape == "deepspeed"}
        self._num_train += len(train)
        for keys, count in Counter(tuple(row.match.values) for _, row in train).items():
            for name in keys:
                if (hit := canonical(name)) is not None and hit[0] == LOSS:
                    self._losses[name] += count
        lost: dict[int, tuple[str, ...]] = {}
        for name, count in self._losses.items():
            if count == self._num_train or count < self._num_train * VANISHED_SHARE:
                continue
            missing = [(s, r) for s, r in train if name not in r.match.values]
            steps = [s for s, r in missing if s not in overflowed and not _was_skipped(r)]
            for _, row in missing:
                if row.match.step in steps:
                    lost[id(row)] = (*lost.get(id(row), ()), name)
            if steps:
                shown = ", ".join(map(str, steps[:6])) + (", ..." if len(steps) > 6 else "")
                self.table.notes.append(("vanished-field", f"no {name!r} in the rows of steps {shown}: read as NaN"))
        return lost


def _run_key(row: Row, vanished: dict[int, tuple[str, ...]]) -> tuple[object, ...]:
    return row.match.held_out, tuple(row.match.values), vanished.get(id(row))


def _was_skipped(row: Row) -> bool:
    return (parse_number(row.match.values.get("number of skipped iterations", "0")) or 0.0) > 0
