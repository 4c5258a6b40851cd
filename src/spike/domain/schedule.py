"""Which learning rate should this step have had? The schedule, continued from its own healthy history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

HISTORY_STEPS = 64
"""Healthy steps the continuation is fitted to: long enough to see a slope, short enough to follow a cosine."""
JUMP_RELATIVE = 0.10
"""A departure below ten per cent of the expected rate softens or sharpens nothing visibly."""
JUMP_RESIDUALS = 5.0
"""A departure must also be this many times the worst misfit of the healthy history."""


@dataclass(frozen=True, slots=True)
class Departure:
    """The first step whose learning rate left the schedule."""

    step: int
    used: float
    expected: float

    @property
    def ratio(self) -> float:
        """Used over expected."""
        return self.used / self.expected if self.expected else math.inf


class Schedule:
    """A straight line through the recent learning rates, which any smooth schedule is over a short window."""

    def __init__(self, steps: Sequence[int], rates: Sequence[float]) -> None:
        """`steps` and `rates` are the healthy history, ascending; at least one row. Raises `ValueError` for none."""
        if not steps:
            raise ValueError("a schedule needs at least one learning rate")
        recent = list(zip(steps, rates, strict=True))[-HISTORY_STEPS:]
        self._anchor_step, self._anchor = recent[-1]
        self._slope = _median_slope(recent)
        self._misfit = max((abs(rate - self.at(step)) for step, rate in recent), default=0.0)
        self._floor = min(rate for _, rate in recent)
        self._usual_change = max((abs(b - a) / max(t - s, 1) for (s, a), (t, b) in pairwise(recent)), default=0.0)

    def at(self, step: int) -> float:
        """Expected rate at `step`; never negative."""
        return max(self._anchor + self._slope * (step - self._anchor_step), 0.0)

    def departs(self, step: int, used: float, *, before: float) -> bool:
        """True where `used` jumps: off the continuation, and off `before`, the rate of the step before.

        A knee (warm-up ends, decay sets in) leaves the straight line as well, but without a jump.
        """
        expected = self.at(step)
        distance, change = abs(used - expected), abs(used - before)
        floor = JUMP_RELATIVE * max(expected, self._floor)
        return (
            distance > JUMP_RESIDUALS * self._misfit
            and change > JUMP_RESIDUALS * self._usual_change
            and min(distance, change) > floor
        )


def _median_slope(rows: Sequence[tuple[int, float]]) -> float:
    slopes = sorted(
        (after - before) / (step - previous) for (previous, before), (step, after) in pairwise(rows) if step > previous
    )
    return slopes[len(slopes) // 2] if slopes else 0.0


def first_departure(steps: Sequence[int], rates: Sequence[float], *, healthy_until: int, last: int) -> Departure | None:
    """The first step after `healthy_until` and up to `last` whose rate departs from the history before it."""
    history = [(s, r) for s, r in zip(steps, rates, strict=True) if s <= healthy_until and math.isfinite(r)]
    if not history:
        return None
    schedule = Schedule([s for s, _ in history], [r for _, r in history])
    before = history[-1][1]
    for step, rate in zip(steps, rates, strict=True):
        if not healthy_until < step <= last:
            continue
        if schedule.departs(step, rate, before=before):
            return Departure(int(step), float(rate), schedule.at(step))
        before = rate
    return None
