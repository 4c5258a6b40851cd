"""What is left of a swinging loss without its swing? Each phase's own level, followed over neighbouring periods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.track import Track

NEIGHBOURS = 3
"""Periods on either side whose rows of the same phase say what is usual there: the median of seven."""


def without_season(track: Track, rows: int) -> Track:
    """The track with the swing of `rows` rows taken out of its transformed values."""
    y = np.asarray(track.y, dtype=float)
    usable = np.isfinite(y)
    trend = _level(np.where(usable, y, np.nan), rows)
    season = np.zeros_like(y)
    swing = y - trend
    for row in range(y.size):
        mates = [row + k * rows for k in range(-NEIGHBOURS, NEIGHBOURS + 1)]
        values = [swing[m] for m in mates if m != row and 0 <= m < y.size and np.isfinite(swing[m])]
        season[row] = float(np.median(values)) if values else 0.0
    return replace(track, y=tuple(np.where(usable, y - season, y).tolist()))


def _level(y: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Running mean over about one period, edges shortened."""
    half = max(1, rows // 2)
    padded = np.where(np.isfinite(y), y, np.nanmedian(y) if np.isfinite(y).any() else 0.0)
    sums = np.concatenate([[0.0], np.cumsum(padded)])
    index = np.arange(y.size)
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, y.size)
    return np.asarray((sums[last] - sums[first]) / (last - first))
