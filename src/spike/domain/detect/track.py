"""Which signals can be judged, and in which units? Series prepared for the detector, with stale ones set aside."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.constants import Constants
from spike.domain.signals import GRAD_NORM, LOSS, UPDATE_NORM, Series

STALE_SHARE = 0.5
"""A column that repeats its previous value in more than this share of its rows was not computed in them."""

LONG_SHARE = 50
"""A record that starts later than this many of its row distances is an excerpt: the run was warm already."""

LARGEST = 1e100
"""Values are held below this, so that their squares are numbers; nobody's loss is larger and finite."""

STILL_FALLING = 0.9
"""... unless the loss fell below this share of its first rows within the first dozen."""


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One signal of one rank, ready to be judged."""

    name: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    """As logged."""
    y: NDArray[np.float64]
    """Transformed; NaN where the value is not finite, minus infinity where a logarithm cannot take it."""
    transform: str
    prior: float
    """Noise assumed before it was seen, in transformed units."""
    floor: float
    """Half a unit of the last printed digit, in transformed units."""
    is_excerpt: bool
    """The record starts in the middle of a run: its first rows are a usable baseline."""

    def __len__(self) -> int:
        return int(self.steps.size)

    def at(self, row: int) -> float:
        """The transformed value of a row."""
        return float(self.y[row])

    def between(self, first: int, end: int) -> list[float]:
        """The transformed values of rows `first` to before `end`."""
        return list(self.y[first:end].tolist())

    def step(self, row: int) -> int:
        """The step of a row."""
        return int(self.steps[row])

    def value(self, row: int) -> float:
        """The value of a row as logged."""
        return float(self.values[row])


def track(series: Series, constants: Constants) -> Track:
    """The series as a track: logarithmic where it is positive throughout (zeros aside), else as it is."""
    values = np.asarray(series.values, dtype=np.float64)
    finite = np.isfinite(values)
    num_finite, num_positive = int(np.count_nonzero(finite)), int(np.count_nonzero(finite & (values > 0)))
    is_negative = bool(np.any(values[finite] < 0)) if num_finite else False
    logarithmic = num_positive > 0 and not is_negative and num_positive > 0.5 * num_finite
    prior = constants.grad_norm_prior if series.name in (GRAD_NORM, UPDATE_NORM) else constants.loss_prior
    rounding = 0.5 * 10.0 ** (1 - series.digits) if series.digits < 12 else 0.0
    if logarithmic:
        with np.errstate(divide="ignore", invalid="ignore"):
            y, spread = np.where(finite, np.log(values), np.nan), 1.0
    else:
        usual = float(np.median(np.abs(values[finite]))) if num_finite else 1.0
        y = np.where(finite, np.clip(values, -LARGEST, LARGEST), np.nan)
        spread = min(max(usual, 1e-12), LARGEST)
    return Track(
        series.name,
        np.asarray(series.steps, dtype=np.int64),
        values,
        y,
        "log" if logarithmic else "identity",
        prior * spread,
        rounding * spread,
        _is_excerpt(series, y),
    )


def _is_excerpt(series: Series, y: NDArray[np.float64]) -> bool:
    steps = series.steps
    if steps.size < 2 or int(steps[0]) <= LONG_SHARE * max(1, int(steps[1] - steps[0])):
        return False
    if series.name != LOSS:
        return True
    first = [v for v in y[:12].tolist() if math.isfinite(v)]
    third = max(1, len(first) // 3)
    return not first or sum(first[-third:]) / third > sum(first[:third]) / third + math.log(STILL_FALLING)


def is_stale(series: Series) -> bool:
    """Whether the column mostly repeats itself: an old value carried along, or a constant zero never computed.

    A column that starts at its usual value or comes back to it is a calm signal, not a stale one.
    """
    values = series.values[np.isfinite(series.values)]
    if values.size < 3:
        return bool(values.size) and bool(np.all(values == 0.0))
    repeats = int(np.count_nonzero(values[1:] == values[:-1]))
    if repeats <= STALE_SHARE * (values.size - 1):
        return False
    distinct, counts = np.unique(values, return_counts=True)
    place = int(np.argmax(counts))
    usual, count = float(distinct[place]), int(counts[place])
    return usual == 0.0 or float(values[0]) != usual or count <= STALE_SHARE * values.size
