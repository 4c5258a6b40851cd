"""What was usual just before a step? A small two-sided-free view for signatures outside the main pass."""

from __future__ import annotations

import math
from itertools import pairwise

from spike.domain.detect.baseline import MAD_TO_SIGMA
from spike.domain.detect.track import Track

LOCAL_ROWS = 48


def usual_before(track: Track, step: int, rows: int = LOCAL_ROWS) -> tuple[float, float] | None:
    """(centre, scale) of the last finite rows before `step`, in transformed units; None where there are none.

    With fewer than eight rows the scale is the prior.
    """
    before = [y for s, y in zip(track.steps, track.y, strict=True) if s < step and math.isfinite(y)][-rows:]
    if not before:
        return None
    ordered = sorted(before[-(rows // 2) :])
    centre = ordered[len(ordered) // 2]
    if len(before) < 8:
        return centre, track.prior
    steps = sorted(abs(b - a) for a, b in pairwise(before))
    # Differences of neighbours are free of the trend; each holds the noise of two rows.
    scale = MAD_TO_SIGMA * steps[len(steps) // 2] / math.sqrt(2.0)
    return centre, max(scale, track.floor, 1e-6)
