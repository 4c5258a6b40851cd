"""Which signals can be judged, and in which units? Series prepared for the detector, with stale ones set aside."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

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
    steps: tuple[int, ...]
    values: tuple[float, ...]
    """As logged."""
    y: tuple[float, ...]
    """Transformed; NaN where the value is not finite, minus infinity where a logarithm cannot take it."""
    transform: str
    prior: float
    """Noise assumed before it was seen, in transformed units."""
    floor: float
    """Half a unit of the last printed digit, in transformed units."""
    is_excerpt: bool
    """The record starts in the middle of a run: its first rows are a usable baseline."""

    def __len__(self) -> int:
        return len(self.steps)


def track(series: Series, constants: Constants) -> Track:
    """The series as a track: logarithmic where it is positive throughout (zeros aside), else as it is."""
    values = [float(v) for v in series.values]
    finite = [v for v in values if math.isfinite(v)]
    positive = [v for v in finite if v > 0]
    logarithmic = bool(positive) and not any(v < 0 for v in finite) and len(positive) > 0.5 * len(finite)
    prior = constants.grad_norm_prior if series.name in (GRAD_NORM, UPDATE_NORM) else constants.loss_prior
    usual = sorted(abs(v) for v in finite)[len(finite) // 2] if finite else 1.0
    rounding = 0.5 * 10.0 ** (1 - series.digits) if series.digits < 12 else 0.0
    if logarithmic:
        y = tuple(_log(v) for v in values)
        return Track(
            series.name,
            tuple(int(s) for s in series.steps),
            tuple(values),
            y,
            "log",
            prior,
            rounding,
            _is_excerpt(series, y),
        )
    spread = min(max(usual, 1e-12), LARGEST)
    y = tuple(max(-LARGEST, min(LARGEST, v)) if math.isfinite(v) else math.nan for v in values)
    return Track(
        series.name,
        tuple(int(s) for s in series.steps),
        tuple(values),
        y,
        "identity",
        prior * spread,
        rounding * spread,
        _is_excerpt(series, y),
    )


def _log(value: float) -> float:
    if not math.isfinite(value):
        return math.nan
    return math.log(value) if value > 0 else -math.inf


def _is_excerpt(series: Series, y: tuple[float, ...]) -> bool:
    steps = series.steps
    if steps.size < 2 or int(steps[0]) <= LONG_SHARE * max(1, int(steps[1] - steps[0])):
        return False
    if series.name != LOSS:
        return True
    first = [v for v in y[:12] if math.isfinite(v)]
    third = max(1, len(first) // 3)
    return not first or sum(first[-third:]) / third > sum(first[:third]) / third + math.log(STILL_FALLING)


def is_stale(series: Series) -> bool:
    """Whether the column mostly repeats itself: an old value carried along, or a constant zero never computed.

    A column that starts at its usual value or comes back to it is a calm signal, not a stale one.
    """
    values = [float(v) for v in series.values if math.isfinite(v)]
    if len(values) < 3:
        return bool(values) and all(v == 0.0 for v in values)
    repeats = sum(a == b for a, b in pairwise(values))
    if repeats <= STALE_SHARE * (len(values) - 1):
        return False
    usual, count = Counter(values).most_common(1)[0]
    return usual == 0.0 or values[0] != usual or count <= STALE_SHARE * len(values)
