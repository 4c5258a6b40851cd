"""What is left of a swinging loss without its swing? Each phase's own level, followed over neighbouring periods."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.track import Track

NEIGHBOURS = 3
"""Periods on either side whose rows of the same phase say what is usual there: the median of seven."""

ALIKE = 0.4
"""A row of the same phase that stands out by this share as much is one of a kind with it."""

BEYOND = 2.2
"""A row that stands out this many times as far as any of its kind does so for another reason."""


def without_season(track: Track, rows: int) -> Track:
    """The track with the swing of `rows` rows taken out of its transformed values."""
    y = track.y
    usable = np.isfinite(y)
    swing = np.where(usable, y - _level(np.where(usable, y, np.nan), rows), np.nan)
    reach = NEIGHBOURS * rows
    padded = np.pad(swing, reach, constant_values=np.nan)
    shifts = [reach + k * rows for k in range(-NEIGHBOURS, NEIGHBOURS + 1) if k]
    # Sorted with what is missing at the end, the median stands in the middle of what is there.
    mates = np.sort(np.stack([padded[shift : shift + y.size] for shift in shifts]), axis=0)
    count = np.count_nonzero(np.isfinite(mates), axis=0)
    place = np.arange(y.size)
    low, high = mates[np.maximum(count - 1, 0) // 2, place], mates[count // 2 % len(shifts), place]
    season = np.where(count > 0, (low + np.where(count % 2 == 0, high, low)) / 2.0, 0.0)
    return replace(track, y=np.where(usable, y - season, y))


def is_in_phase(track: Track, peak: int, rows: int) -> bool:
    """Whether row `peak` stands out because its phase does: rows one to three periods away stand out alike."""
    swing = _swing(track, peak, rows)
    mates = [peak + k * rows for k in range(-NEIGHBOURS, NEIGHBOURS + 1) if k]
    swings = [_swing(track, row, rows) for row in mates if 0 <= row < len(track) and math.isfinite(track.at(row))]
    alike = sum(s > ALIKE * swing for s in swings)
    return swing > 0 and alike >= 2 and swing < BEYOND * max(swings)


def _swing(track: Track, row: int, rows: int) -> float:
    """How far a row is above the rows within a period around it."""
    first = max(0, row - rows + 1)
    around = sorted(
        y for other, y in enumerate(track.between(first, row + rows), first) if other != row and math.isfinite(y)
    )
    return track.at(row) - around[len(around) // 2] if around else 0.0


def _level(y: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Running mean over about one period, edges shortened."""
    half = max(1, rows // 2)
    padded = np.where(np.isfinite(y), y, np.nanmedian(y) if np.isfinite(y).any() else 0.0)
    sums = np.concatenate([[0.0], np.cumsum(padded)])
    index = np.arange(y.size)
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, y.size)
    return np.asarray((sums[last] - sums[first]) / (last - first))
