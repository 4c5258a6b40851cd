"""How far out is rare for this very run? An upper tail estimated from its own healthy prediction errors."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque

TAIL_SHARE = 0.05
"""The tail begins at the upper twentieth: enough rows to fit, far enough out to be a tail."""

NORMAL_TAIL = 1.65
"""Upper twentieth of a normal noise, in scales; used until enough rows were seen."""

NORMAL_EXCESS = 0.43
"""Mean excess of a normal noise beyond it."""

PRIOR_EXCEEDANCES = 12.0
"""Weight of the normal tail: a fit on a handful of rows must not decide."""

HEAVIEST_SHAPE = 0.5
"""Largest generalized Pareto shape believed: beyond it the variance would be infinite."""

SHAPE_MARGIN = 0.1
"""The shape's own standard error at a hundred exceedances; subtracted, so that noise looks no heavier than it is."""

REFIT_ROWS = 16
"""A fit on two thousand rows does not change within this many."""


class Tail:
    """The upper tail of standardised errors: a generalized Pareto fit by probability-weighted moments.

    Source of the fit: Hosking and Wallis, Technometrics 29 (1987).
    """

    def __init__(self, capacity: int) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._capacity = capacity
        self._adds = 0
        self._cached = (-1, 0.0)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, z: float) -> None:
        """Remember one healthy standardised error."""
        self._adds += 1
        if len(self._order) >= self._capacity:
            oldest = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._order.append(z)
        insort(self._sorted, z)

    def fill(self, values: list[float]) -> None:
        """Remember many at once; the newest stay where they are more than the capacity."""
        self._order = deque(values[-self._capacity :])
        self._sorted = sorted(self._order)
        self._adds += REFIT_ROWS

    def quantile(self, share: float) -> float:
        """The value below which this share of the errors lies; 0 where there are none."""
        if not self._sorted:
            return 0.0
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))]

    def threshold(self, false_alarms: float, rows: int = 1000) -> float:
        """Distance that `rows` healthy rows exceed `false_alarms` times on average."""
        version = self._adds // REFIT_ROWS
        if self._cached[0] != version:
            self._cached = (version, self._threshold(false_alarms, rows))
        return self._cached[1]

    def _threshold(self, false_alarms: float, rows: int) -> float:
        start, mean, shape = self._fit()
        odds = TAIL_SHARE * rows / false_alarms
        if shape < 1e-3:
            return start + mean * math.log(odds)
        scale = mean * (1.0 - shape)
        return float(start + scale / shape * (odds**shape - 1.0))

    def _fit(self) -> tuple[float, float, float]:
        """(start of the tail, mean excess, shape), drawn towards a normal tail where rows are few."""
        n = len(self._sorted)
        first = int(n * (1.0 - TAIL_SHARE))
        tail = self._sorted[first:]
        if n < 40 or not tail:
            return NORMAL_TAIL, NORMAL_EXCESS, 0.0
        start = max(self._sorted[first], 1.0)
        excesses = [z - start for z in tail[bisect_right(tail, start) :]]
        if not excesses:
            return start, NORMAL_EXCESS, 0.0
        m = len(excesses)
        mean = (sum(excesses) + PRIOR_EXCEEDANCES * NORMAL_EXCESS) / (m + PRIOR_EXCEEDANCES)
        return start, max(mean, NORMAL_EXCESS * 0.8), _shape(excesses) * m / (m + PRIOR_EXCEEDANCES)


def _shape(excesses: list[float]) -> float:
    """Generalized Pareto shape of sorted excesses, 0 for anything lighter than exponential."""
    m = len(excesses)
    if m < 8:
        return 0.0
    first = sum(excesses) / m
    weighted = sum((1.0 - (index + 0.65) / m) * value for index, value in enumerate(excesses)) / m
    if first <= 2.0 * weighted:
        return HEAVIEST_SHAPE
    return min(HEAVIEST_SHAPE, max(0.0, 2.0 - first / (first - 2.0 * weighted) - SHAPE_MARGIN))
