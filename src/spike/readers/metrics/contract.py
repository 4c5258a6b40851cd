"""What does one metric reader hand over? Columns of (step, value), and every byte it could not read.

A reader is one module in `formats/` that exports READER. It never guesses what a column means (columns.py does),
never merges files (merge.py does), and never turns a NaN into nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from spike.domain.signals import FULL_DIGITS, Damage

HEAD_BYTES = 65_536
"""How much of a file `sniff` may look at."""

FLOAT32_DIGITS = 9
"""Decimal digits that identify a float32; TensorBoard's simple_value is one."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One metric of one rank as a file records it, in file order."""

    name: str
    """What the file calls it."""
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    rank: int | None = None
    digits: int = FULL_DIGITS
    held_out: bool = False
    """True where the row says that it is an evaluation, whatever the column's name."""


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """Everything that one file says."""

    format: str
    columns: tuple[Column, ...]
    num_rows: int
    damages: tuple[Damage, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


@runtime_checkable
class MetricReader(Protocol):
    """One metric format."""

    format: str
    """Name that messages use: "jsonl", "tensorboard", ..."""
    order: int
    """Readers are asked from low to high: the specific ones first."""

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the file is this format; `head` is its first HEAD_BYTES."""
        ...

    def read(self, path: Path) -> Parsed:
        """Parse the whole file. Raises OSError only; damage is reported, not raised."""
        ...


@runtime_checkable
class Session(Protocol):
    """One file on its way through a reader, piece by piece: what a growing file needs."""

    def take(self, data: bytes, offset: int, *, is_end: bool) -> int:
        """Read on in `data`, the bytes from `offset`; returns how many of them are done with.

        `is_end` says that nothing will follow: then a torn end is reported instead of waited for. 0 asks for a longer
        piece.
        """
        ...

    def drain(self) -> Parsed:
        """Everything read since the last call."""
        ...


@runtime_checkable
class Followable(Protocol):
    """A reader that can go on where it stopped; the others read a file that is rewritten whole."""

    def session(self, path: Path) -> Session:
        """A fresh start at byte 0 of this file."""
        ...


@dataclass(slots=True)
class _Cells:
    """Sixteen bytes a value: a log may hold a hundred million."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    digits: int = 0


@dataclass(slots=True)
class Table:
    """Collects rows and hands them over as columns."""

    format: str
    num_rows: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    _cells: dict[tuple[str, int | None, bool], _Cells] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)
    _num_drained: int = 0
    _epochs: dict[int | None, tuple[float, int, int]] = field(default_factory=dict)
    """Rank -> its last epoch, its last step as logged, and what is added to its steps."""

    def add(
        self,
        step: int,
        values: Mapping[str, float],
        *,
        rank: int | None = None,
        digits: Mapping[str, int] | None = None,
        held_out: bool = False,
    ) -> None:
        """Add one row; a value that is absent is not in `values`, a NaN is."""
        self.num_rows += 1
        step = self._continued(rank, step, values.get("epoch", values.get("Epoch")))
        for name, value in values.items():
            cells = self._cells.get((name, rank, held_out))
            if cells is None:
                cells = self._cells[name, rank, held_out] = _Cells()
            cells.steps.append(step)
            cells.values.append(value)
            if digits is not None:
                cells.digits = max(cells.digits, digits.get(name, 0))

    def add_many(
        self, name: str, steps: NDArray[np.int64], values: NDArray[np.float64], *, rank: int | None = None
    ) -> None:
        """Add rows of one column, in file order."""
        if not steps.size:
            return
        self.num_rows += steps.size
        cells = self._cells.setdefault((name, rank, False), _Cells())
        cells.steps.frombytes(steps.tobytes())
        cells.values.frombytes(values.tobytes())

    def add_block(
        self,
        steps: list[int],
        names: Sequence[str],
        columns: Sequence[list[float]],
        rank: int | None,
        digits: Mapping[str, int],
        held_out: bool,
    ) -> None:
        """Add rows of the same columns at once; their steps count through, whatever the epoch."""
        self.num_rows += len(steps)
        offset = self._epochs[rank][2] if rank in self._epochs else 0
        shifted = array("q", [step + offset for step in steps] if offset else steps)
        for name, values in zip(names, columns, strict=True):
            cells = self._cells.setdefault((name, rank, held_out), _Cells())
            cells.steps.extend(shifted)
            cells.values.extend(array("d", values))
            cells.digits = max(cells.digits, digits.get(name, 0))

    def _continued(self, rank: int | None, step: int, epoch: float | None) -> int:
        """The step, made continuous where a loop counts it anew in every epoch."""
        last_epoch, last, offset = self._epochs.get(rank, (math.inf, 0, 0))
        if epoch is None or not math.isfinite(epoch) or epoch != int(epoch):
            return step + offset
        if epoch > last_epoch and step <= last:
            offset += last + (1 if step == 0 else 0)
            if offset:
                self.note("steps-per-epoch", "steps start again in every epoch: they were added up")
        self._epochs[rank] = epoch, step, offset
        return step + offset

    def damage(self, line: int, byte_offset: int, reason: str, *, benign: bool = False) -> None:
        """Report something that could not be read; the source is filled in by the caller of the reader."""
        self.damages.append(Damage("", line, byte_offset, reason, benign))

    def note(self, pattern: str, sentence: str) -> None:
        """Say something about the file, once for each pattern."""
        if pattern not in self._noted:
            self._noted.add(pattern)
            self.notes.append((pattern, sentence))

    def drain(self, *, digits: int | None = None) -> Parsed:
        """The columns since the last call; the counters go on."""
        parsed = self.parsed(digits=digits)
        rows = self.num_rows - self._num_drained
        self._num_drained = self.num_rows
        self._cells, self.damages, self.notes = {}, [], []
        return replace(parsed, num_rows=rows)

    def parsed(self, *, digits: int | None = None) -> Parsed:
        """The columns; `digits` overrides what is seen in the values."""
        columns = tuple(
            Column(
                name,
                np.frombuffer(cells.steps, dtype=np.int64),
                np.frombuffer(cells.values, dtype=np.float64),
                rank,
                digits or cells.digits or shortest_digits(cells.values),
                held_out,
            )
            for (name, rank, held_out), cells in self._cells.items()
        )
        return Parsed(self.format, columns, self.num_rows, tuple(self.damages), tuple(self.notes))


def shortest_digits(values: Iterable[float], limit: int = 2000) -> int:
    """Most significant digits that any of the first `limit` finite values needs to be written back exactly."""
    most = 1
    for index, value in enumerate(values):
        if index >= limit or most >= FULL_DIGITS:
            break
        if math.isfinite(value):
            most = max(most, significant_digits(repr(float(value))))
    return most


def significant_digits(text: str) -> int:
    """Significant decimal digits of a printed number: "1.000000E-04" has 7, "0.0021" has 2, "1200" has 4."""
    mantissa = text.strip().lower().split("e")[0].lstrip("+-").replace(",", "").replace(".", "").lstrip("0")
    return sum(character.isdigit() for character in mantissa) or 1
