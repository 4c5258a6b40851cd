"""In which order did the steps really happen? One forward timeline out of restarts and rows out of order."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

OUT_OF_ORDER_ROWS = 8
"""An asynchronous logger overtakes itself by a few rows; a step counter that goes back further was restarted."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows that a restart replaced."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(slots=True)
class Timeline:
    """Steps strictly increase; what was replaced is kept apart."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    rewinds: list[tuple[int, int, int]] = field(default_factory=list)
    """(from step, to step, row at which the counter went back)."""
    superseded: list[Piece] = field(default_factory=list)


def settle(steps: NDArray[np.int64], values: NDArray[np.float64]) -> Timeline:
    """Order one column: of rows with the same step the last wins, after a rewind the later rows win."""
    if steps.size < 2 or bool(np.all(np.diff(steps) > 0)):
        return Timeline(steps, values)
    kept: list[int] = []
    numbers: list[float] = []
    line = Timeline(steps, values)
    for row, (step, value) in enumerate(zip(steps.tolist(), values.tolist(), strict=True)):
        if not kept or step > kept[-1]:
            kept.append(step)
            numbers.append(value)
        elif step == kept[-1]:
            numbers[-1] = value
        else:
            _step_back(line, kept, numbers, step, value, row)
    line.steps = np.asarray(kept, dtype=np.int64)
    line.values = np.asarray(numbers, dtype=np.float64)
    return line


def _step_back(line: Timeline, kept: list[int], numbers: list[float], step: int, value: float, row: int) -> None:
    at = bisect_left(kept, step)
    seen = kept[at] == step
    if not seen and len(kept) - at <= OUT_OF_ORDER_ROWS:
        kept.insert(at, step)
        numbers.insert(at, value)
        return
    line.rewinds.append((kept[-1], step, row))
    line.superseded.append(Piece(np.asarray(kept[at:], dtype=np.int64), np.asarray(numbers[at:], dtype=np.float64)))
    del kept[at:], numbers[at:]
    kept.append(step)
    numbers.append(value)
