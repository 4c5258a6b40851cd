"""How far out is rare for this very run? An upper tail estimated from its own healthy prediction errors."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.recent import Recent

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

FEWEST_ROWS = 40
"""Fewer errors than this have two in their upper twentieth: the normal tail stands."""

FIRST_REFIT, LAST_REFIT = 16, 256
"""Rows between two fits, at the beginning and in the end; a quarter of the rows that were seen in between."""

PER_ROWS = 1000
"""False alarms are counted per this many rows."""

Array = NDArray[np.float64]


def _early_refits() -> tuple[int, ...]:
    found = [FEWEST_ROWS]
    while found[-1] < 4 * LAST_REFIT:
        found.append(found[-1] + min(LAST_REFIT, max(FIRST_REFIT, found[-1] // 4)))
    return tuple(found)


EARLY_REFITS = _early_refits()


def next_refit(num_seen: int) -> int:
    """The number of errors at which the tail is fitted again, behind `num_seen`."""
    last = EARLY_REFITS[-1]
    if num_seen < last:
        return EARLY_REFITS[bisect_right(EARLY_REFITS, num_seen)]
    return last + LAST_REFIT * ((num_seen - last) // LAST_REFIT + 1)


def rare(windows: Array, false_alarms: float) -> tuple[Array, Array]:
    """Distances upward and downward that a thousand healthy rows exceed `false_alarms` times on average.

    `windows` has one set of standardised errors a row, shape (sets, errors).
    """
    size = windows.shape[1]
    first = int(size * (1.0 - TAIL_SHARE))
    parted = np.partition(windows, (size - first - 1, first), axis=1)
    tails = np.sort(np.concatenate([parted[:, first:], -parted[:, : size - first]]), axis=1)
    limits = _threshold(tails, false_alarms)
    return limits[: windows.shape[0]], limits[windows.shape[0] :]


def rare_above(tail: Array, false_alarms: float) -> float:
    """The upward distance of one set, given its sorted upper twentieth."""
    return float(_threshold(tail[None, :], false_alarms)[0])


def usual_limit(false_alarms: float) -> float:
    """The distance of a normal noise: what stands until enough rows were seen."""
    return NORMAL_TAIL + NORMAL_EXCESS * math.log(TAIL_SHARE * PER_ROWS / false_alarms)


class Tail:
    """The newest healthy standardised errors of one signal, with the limits that they set."""

    __slots__ = ("_false_alarms", "_next", "errors", "limits", "num_seen")

    def __init__(self, capacity: int, false_alarms: float) -> None:
        self.errors = Recent(capacity)
        self.num_seen = 0
        self._false_alarms = false_alarms
        self._next = next_refit(0)
        self.limits = (usual_limit(false_alarms), usual_limit(false_alarms))
        """Upward and downward, as of the last fit."""

    def add(self, z: float) -> None:
        """Remember one healthy standardised error."""
        self.errors.append(z)
        self.num_seen += 1
        if self.num_seen == self._next:
            self._fit()

    def extend(self, errors: Array, limits: tuple[float, float]) -> None:
        """Remember many whose limits were followed with `limits_along`."""
        self.errors.extend(errors)
        self.num_seen += errors.size
        self.limits = limits
        self._next = next_refit(self.num_seen)

    def limits_along(self, errors: Array) -> tuple[Array, Array]:
        """The limits that stand when each of these next errors is judged, and behind the last: shape (errors + 1,)."""
        up, down = np.full(errors.size + 1, self.limits[0]), np.full(errors.size + 1, self.limits[1])
        at, due = self._next, []
        while at <= self.num_seen + errors.size:
            due.append(at - self.num_seen)
            at = next_refit(at)
        if not due:
            return up, down
        known = self.errors.last()
        together = np.concatenate([known, errors])
        for counts, windows in _windows(together, known.size, due, self.errors.keep):
            above, below = rare(windows, self._false_alarms)
            for count, a, b in zip(counts, above.tolist(), below.tolist(), strict=True):
                up[count:], down[count:] = a, b
        return up, down

    def quantile(self, share: float, direction: int) -> float:
        """The value below which this share of the errors lies in a direction; 0 where there are none."""
        if len(self.errors) == 0:
            return 0.0
        place = min(len(self.errors) - 1, int(share * len(self.errors)))
        return float(np.partition(direction * self.errors.last(), place)[place])

    def _fit(self) -> None:
        up, down = rare(self.errors.last()[None, :], self._false_alarms)
        self.limits = (float(up[0]), float(down[0]))
        self._next = next_refit(self.num_seen)


def _windows(together: Array, known: int, due: list[int], keep: int) -> list[tuple[list[int], Array]]:
    """The errors that each fit sees, those of equal number together."""
    short = [count for count in due if known + count < keep]
    full = [count for count in due if known + count >= keep]
    found = [([count], together[None, : known + count]) for count in short]
    if full:
        every = np.lib.stride_tricks.sliding_window_view(together, keep)
        found.append((full, every[[known + count - keep for count in full]]))
    return found


def _threshold(tails: Array, false_alarms: float) -> Array:
    """Distances by a generalized Pareto fit, drawn towards a normal tail where rows are few.

    `tails` holds sorted upper twentieths, shape (sets, errors). The fit is by probability-weighted moments
    (Hosking and Wallis, Technometrics 29, 1987).
    """
    if tails.shape[1] < FEWEST_ROWS * TAIL_SHARE:
        return np.full(tails.shape[0], usual_limit(false_alarms))
    start = np.maximum(tails[:, :1], 1.0)
    excess = np.maximum(tails - start, 0.0)
    m = np.count_nonzero(excess, axis=1).astype(float)
    weight = m / (m + PRIOR_EXCEEDANCES)
    mean = (excess.sum(axis=1) + PRIOR_EXCEEDANCES * NORMAL_EXCESS) / (m + PRIOR_EXCEEDANCES)
    mean = np.where(m > 0, np.maximum(mean, NORMAL_EXCESS * 0.8), NORMAL_EXCESS)
    shape = _shape(excess, m) * weight
    odds = TAIL_SHARE * PER_ROWS / false_alarms
    bent = np.maximum(shape, 1e-3)
    heavy = mean * (1.0 - bent) / bent * (odds**bent - 1.0)
    return np.asarray(start[:, 0] + np.where(shape < 1e-3, mean * math.log(odds), heavy))


def _shape(excess: Array, m: Array) -> Array:
    """Generalized Pareto shapes of sorted excesses (zeros first), 0 for anything lighter than exponential."""
    size = np.maximum(m, 1.0)
    place = np.arange(excess.shape[1])[None, :] - (excess.shape[1] - m[:, None])
    first = excess.sum(axis=1) / size
    weighted = ((1.0 - (place + 0.65) / size[:, None]) * excess).sum(axis=1) / size
    spread = first - 2.0 * weighted
    shape = 2.0 - first / np.where(spread > 0, spread, 1.0) - SHAPE_MARGIN
    shape = np.where(spread > 0, np.clip(shape, 0.0, HEAVIEST_SHAPE), HEAVIEST_SHAPE)
    return np.where(m < 8, 0.0, shape)
