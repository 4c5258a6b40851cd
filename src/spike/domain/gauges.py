"""How does a live run look right now? The last values of its main signals, what is usual, and the recent course."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, Signals

COURSE_ROWS = 48
"""Rows of the course: what fits beside the numbers on 80 columns."""
USUAL_ROWS = 128
"""Rows before the last one whose median is what is usual."""
FEWEST_ROWS = 12


@dataclass(frozen=True, slots=True)
class Gauge:
    """One signal at the end of its record."""

    name: str
    last: float
    ratio: float | None
    """Last value over the median of the rows before; None where there are too few, or that is zero."""
    course: tuple[float, ...]
    """The last values, NaN and infinities included."""


def gauges(signals: Signals) -> tuple[Gauge, ...]:
    """Loss, gradient norm and learning rate, of those that are logged."""
    found: list[Gauge] = []
    for name in (LOSS, GRAD_NORM, LEARNING_RATE):
        series = signals.get(name)
        if series is None or not series.values.size:
            continue
        before = series.values[-USUAL_ROWS - 1 : -1]
        before = before[np.isfinite(before)]
        usual = float(np.median(before)) if before.size >= FEWEST_ROWS else math.nan
        last = float(series.values[-1])
        ratio = last / usual if math.isfinite(last) and math.isfinite(usual) and usual != 0 else None
        found.append(Gauge(name, last, ratio, tuple(series.values[-COURSE_ROWS:].tolist())))
    return tuple(found)
