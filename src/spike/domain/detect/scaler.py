"""Did the loss scale collapse? Halvings that come faster than a scaler at work halves."""

from __future__ import annotations

import math

import numpy as np

from spike.domain.detect.evidence import Evidence
from spike.domain.incident import Kind, Signature
from spike.domain.signals import LOSS_SCALE, Series

COLLAPSE = 8.0
"""Three halvings in a row: GLM-130B's scale did so 30 steps before its loss moved."""

WITHIN_ROWS = 6
"""Rows within which they count as one fall."""

FLOOR = 1.0
"""Scalers stop at 1; below it a gradient is scaled down, which no working configuration needs."""


def find_collapse(series: Series | None, startup_rows: int) -> tuple[Evidence, ...]:
    """Falls of the loss scale; they raise an incident only where the scale ends at its floor."""
    if series is None or series.steps.size < 3:
        return ()
    falls = 1 + np.flatnonzero((series.values[1:] < series.values[:-1]) & (series.values[1:] > 0))
    if falls.size == 0:
        return ()
    values, steps = series.values.tolist(), series.steps.tolist()
    found: list[Evidence] = []
    end = 0
    for row in falls.tolist():
        if row < end:
            continue
        last = row
        while last < len(values) and 0 < values[last] < values[last - 1] and last - row < 64:
            last += 1
        before, bottom = values[row - 1], values[last - 1]
        if last > row and bottom > 0 and before / bottom >= COLLAPSE and last - row <= WITHIN_ROWS * 10:
            found.append(_evidence(steps, row, last - 1, before, bottom, early=row < startup_rows, end=len(values)))
        end = last
    return tuple(found)


def _evidence(
    steps: list[int], first: int, last: int, before: float, bottom: float, *, early: bool, end: int
) -> Evidence:
    effect = math.log(before / bottom)
    signature = Signature(
        LOSS_SCALE,
        Kind.SKIPPED_STEPS,
        "log",
        math.log(before),
        0.0,
        math.log(COLLAPSE) / 2,
        -1,
        steps[first],
        steps[last],
        bottom,
        steps[last],
    )
    at_floor = bottom <= FLOOR < before and not early
    hint = f"the loss scale falls from {before:g} to {bottom:g}"
    return Evidence(
        signature, effect, math.inf, last == end - 1, False, last - first + 1, may_raise=at_floor, hints=(hint,)
    )
