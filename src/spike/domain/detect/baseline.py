"""What would the next healthy row be, and how far off could it be? A robust, trend-aware, clean baseline.

Nothing that was rejected ever enters: neither outliers nor non-finite values. The scale is measured on the
baseline's own one-row-ahead errors, so whatever the trend model misses is part of the noise.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from spike.domain.detect.constants import Constants

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal noise, as a standard deviation."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median of normal noise, in those of a mean."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the next row should be, in transformed units."""

    centre: float
    slope: float
    """Per unit of log row number, already shrunk to what is significant."""
    scale: float
    is_ready: bool


class Baseline:
    """The last healthy rows of one signal."""

    def __init__(self, constants: Constants, prior: float, floor: float) -> None:
        self._constants = constants
        self._prior = prior
        self._floor = max(floor, constants.min_scale)
        self._rows: deque[tuple[int, float]] = deque(maxlen=constants.window_rows)
        self._errors: deque[float] = deque()
        self._sorted: list[float] = []
        self.num_accepted = 0

    def forecast(self, row: int) -> Forecast:
        """Centre and scale for row number `row` (0-based)."""
        n = len(self._rows)
        scale = self.scale()
        if n == 0:
            return Forecast(math.nan, 0.0, scale, False)
        if n < 6:
            return Forecast(_median([y for _, y in self._rows]), 0.0, scale, False)
        rows = list(self._rows)
        half = n // 2
        older, newer = rows[:half], rows[half:]
        level, before = _median([y for _, y in newer]), _median([y for _, y in older])
        x2, x1 = _middle(newer), _middle(older)
        change = _shrunk(level - before, 1.5 * MEDIAN_ERROR * scale * math.sqrt(2.0 / half))
        slope = change / (x2 - x1) if x2 > x1 else 0.0
        centre = level + slope * (math.log1p(row) - x2)
        return Forecast(centre, slope, scale, self.num_accepted >= self._constants.ready_rows)

    def scale(self) -> float:
        """Robust standard deviation of the one-row-ahead errors, with the fading weight of the prior."""
        n = len(self._sorted)
        weight = self._constants.prior_rows * max(0.0, 1.0 - n / self._constants.window_rows)
        own = MAD_TO_SIGMA * _middle_value(self._sorted) if n else 0.0
        if n + weight <= 0:
            return max(self._prior, self._floor)
        return max(math.sqrt((n * own**2 + weight * self._prior**2) / (n + weight)), self._floor)

    def accept(self, row: int, y: float, error: float | None) -> None:
        """Take one healthy row in; `error` is its distance from the forecast, None where there was none."""
        self._rows.append((row, y))
        self.num_accepted += 1
        if error is not None:
            self.note_error(error)

    def note_error(self, error: float) -> None:
        """Let an error count for the scale without letting its row into the centre."""
        if len(self._errors) >= self._constants.noise_rows:
            del self._sorted[bisect_left(self._sorted, self._errors.popleft())]
        self._errors.append(abs(error))
        insort(self._sorted, abs(error))

    def forget_from(self, row: int, num_errors: int) -> None:
        """Take back everything from `row` on, and the last `num_errors` errors: they belong to a departure."""
        while self._rows and self._rows[-1][0] >= row:
            self._rows.pop()
            self.num_accepted -= 1
        for _ in range(min(num_errors, len(self._errors))):
            del self._sorted[bisect_left(self._sorted, self._errors.pop())]

    def restart(self, rows: list[tuple[int, float]]) -> None:
        """Begin again at a new level, keeping what is known of the noise."""
        self._rows.clear()
        self._rows.extend(rows)
        self.num_accepted = len(rows)


def _median(values: list[float]) -> float:
    return _middle_value(sorted(values))


def _middle_value(ordered: list[float]) -> float:
    n = len(ordered)
    if n == 0:
        return 0.0
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2.0


def _middle(rows: list[tuple[int, float]]) -> float:
    return sum(math.log1p(row) for row, _ in rows) / len(rows)


def _shrunk(value: float, by: float) -> float:
    return math.copysign(max(0.0, abs(value) - by), value)
