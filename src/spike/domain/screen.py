"""Could one of these new rows be the start of an incident? A quick look that errs on the side of yes.

The detector reads thousands of rows to answer; a watch asks it at once where this says yes, and otherwise now and then.
A slow drift or a small lasting shift passes the screen: those take hundreds of rows to show anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spike.domain.signals import SKIPPED

SIGMAS = 4.0
"""Below the 6 scales that the detector asks of a single row, by more than this screen's scale may be wrong."""
LEVEL_ROWS = 8
"""The level is the median of this many rows before: near enough to lag behind no trend."""
SCALE_ROWS = 128
"""Rows that the scale is taken from, as many as in the detector."""
FEWEST_ROWS = 40
"""A record shorter than this is always worth the detector's time, which is short then."""
LEAST_SCALE = 1e-4
"""A smaller relative noise is rounding."""


def is_worth_a_look(name: str, values: NDArray[np.float64], num_new: int) -> bool:
    """Whether any of the last `num_new` rows of a signal might be anomalous."""
    if num_new <= 0:
        return False
    new = values[-num_new:]
    if not np.isfinite(new).all():
        return True
    if name == SKIPPED:
        return bool((new > 0).any())
    if values.size < FEWEST_ROWS or num_new > SCALE_ROWS:
        return True
    recent = values[-(num_new + SCALE_ROWS + LEVEL_ROWS) :]
    recent = recent[np.isfinite(recent)]
    if recent.size < FEWEST_ROWS:
        return True
    y = np.log(recent) if (recent > 0).all() else recent / max(float(np.median(np.abs(recent))), 1e-12)
    level = np.median(np.lib.stride_tricks.sliding_window_view(y[:-1], LEVEL_ROWS), axis=1)
    away = y[LEVEL_ROWS:] - level
    before = away[:-num_new]
    if before.size < FEWEST_ROWS - LEVEL_ROWS:
        return True
    centre = float(np.median(before))
    scale = max(1.4826 * float(np.median(np.abs(before - centre))), LEAST_SCALE)
    return bool((np.abs(away[-num_new:] - centre) > SIGMAS * scale).any())
