"""What was usual just before a step? A small two-sided-free view for signatures outside the main pass."""

from __future__ import annotations

import math

import numpy as np

from spike.domain.detect.baseline import MAD_TO_SIGMA
from spike.domain.detect.track import Track

LOCAL_ROWS = 48


def usual_before(track: Track, step: int, rows: int = LOCAL_ROWS) -> tuple[float, float] | None:
    """(centre, scale) of the last finite rows before `step`, in transformed units; None where there are none.

    With fewer than eight rows the scale is the prior.
    """
    end = int(np.searchsorted(track.steps, step))
    before = track.y[max(0, end - 4 * rows) : end]
    before = before[np.isfinite(before)]
    if before.size < rows < end:
        before = track.y[:end][np.isfinite(track.y[:end])]
    before = before[-rows:]
    if before.size == 0:
        return None
    centre = float(np.sort(before[-(rows // 2) :])[min(before.size, rows // 2) // 2])
    if before.size < 8:
        return centre, track.prior
    steps = np.sort(np.abs(np.diff(before)))
    # Differences of neighbours are free of the trend; each holds the noise of two rows.
    scale = MAD_TO_SIGMA * float(steps[steps.size // 2]) / math.sqrt(2.0)
    return centre, max(scale, track.floor, 1e-6)
