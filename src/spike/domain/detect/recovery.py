"""Did the loss come back to its trend, or only down? The rows behind an incident against the trend before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spike.domain.detect.constants import Constants
from spike.domain.detect.track import Track


@dataclass(frozen=True, slots=True)
class Recovery:
    """The loss behind an incident, against the trend before it."""

    is_known: bool
    """False where too few rows follow."""
    shift_nats: float
    """Mean distance above the trend, in the loss's own units."""
    error_nats: float
    """Standard error of that distance."""

    def is_back(self, constants: Constants) -> bool:
        """Not stuck: the shift is within the stuck bound, or within its own error."""
        bound = max(constants.stuck_nats, constants.stuck_sigmas * self.error_nats)
        return self.is_known and self.shift_nats < bound


def recovery(track: Track, onset: int, last: int, until: int, taken: set[int], constants: Constants) -> Recovery:
    """Compare up to `trend_rows` usual rows before step `onset` with as many between steps `last` and `until`.

    `taken` are steps of any departure; they count on neither side. The trend is a line in the logarithm of the
    row number, fitted to the rows before; its own error grows with the distance, and the answer says so.
    """
    before, after = _sides(track, onset, last, until, taken, constants.trend_rows)
    if len(after) < 2 or len(before) < 3:
        return Recovery(bool(after) and len(before) >= 1 and _close(track, before, after), 0.0, 0.0)
    after = after[: max(len(before), 24)]
    later = after[len(after) // 3 :] if len(after) >= 12 else after
    x = np.log1p(np.asarray(before, dtype=float))
    y = np.asarray([track.y[row] for row in before])
    slope, level, middle = _line(x, y)
    at = np.log1p(np.asarray(later, dtype=float))
    expected = level + slope * (at - middle)
    residual = np.asarray([track.y[row] for row in later]) - expected
    noise = _noise(y - (level + slope * (x - middle)))
    spread = float(np.sqrt(np.sum((x - middle) ** 2))) or 1.0
    reach = float(np.mean(at)) - middle
    error = noise * math.sqrt(1.57 / len(later) + 1.57 / len(before) + (reach / spread) ** 2)
    unit = math.exp(float(np.median(expected))) if track.transform == "log" else 1.0
    return Recovery(True, float(np.median(residual)) * unit, error * unit)


def _sides(track: Track, onset: int, last: int, until: int, taken: set[int], most: int) -> tuple[list[int], list[int]]:
    usual = [
        row
        for row, step in enumerate(track.steps)
        if math.isfinite(track.y[row]) and (step not in taken) and not onset <= step <= last
    ]
    before = [row for row in usual if track.steps[row] < onset][-most:]
    after = [row for row in usual if last < track.steps[row] < until][:most]
    return before, after


def _close(track: Track, before: list[int], after: list[int]) -> bool:
    """With a row or two on a side only the prior speaks."""
    old = sorted(track.y[row] for row in before)[len(before) // 2]
    return min(track.y[row] for row in after) - old < 1.5 * track.prior


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """(slope, level at the middle, middle) of a robust line: least squares, refitted without far residuals."""
    keep = np.ones(len(x), dtype=bool)
    slope = 0.0
    for _ in range(3):
        middle = float(np.mean(x[keep]))
        level = float(np.median(y[keep]))
        centred = x[keep] - middle
        weight = float(np.sum(centred**2))
        slope = float(np.sum(centred * (y[keep] - level)) / weight) if weight > 0 and keep.sum() >= 12 else 0.0
        residual = y - (level + slope * (x - middle))
        keep = np.abs(residual - np.median(residual)) <= 3.0 * max(_noise(residual), 1e-12)
    level += float(np.median(residual[keep]))
    return slope, level, middle


def _noise(residual: np.ndarray) -> float:
    return 1.4826 * float(np.median(np.abs(residual - np.median(residual))))
