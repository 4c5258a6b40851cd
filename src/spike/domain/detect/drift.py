"""Does the loss creep up without any single step that stands out? Block levels against the best earlier level."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.baseline import MAD_TO_SIGMA
from spike.domain.detect.constants import Constants
from spike.domain.detect.evidence import Evidence
from spike.domain.detect.local import usual_before
from spike.domain.detect.track import Track
from spike.domain.incident import Kind, Signature

BLOCKS = 24
"""A record is cut into this many blocks: a creep longer than an eighth of the record spans at least three."""

SMALLEST_BLOCK = 12

LAST_BLOCKS = 2
"""So many blocks in a row must be above: one high block is a hard stretch of data."""


def find_drift(track: Track, taken: list[tuple[int, int]], constants: Constants) -> tuple[Evidence, ...]:
    """At most one drift: the record's last levels against its best one. `taken` are rows of other departures."""
    usual = np.isfinite(track.y)
    for first, last in taken:
        usual[first : last + 1] = False
    rows = np.flatnonzero(usual)
    size = max(SMALLEST_BLOCK, rows.size // BLOCKS)
    num_blocks = rows.size // size
    if num_blocks < LAST_BLOCKS + 3:
        return ()
    blocks = rows[: num_blocks * size].reshape(num_blocks, size)
    values = track.y[blocks]
    levels = np.median(values, axis=1).tolist()
    error = _standard_error(values, levels)
    # The last block that is as low as the lowest: a flat stretch ends where the creep begins.
    best = max(index for index, level in enumerate(levels) if level <= min(levels) + 2.0 * error)
    above = levels[-LAST_BLOCKS:]
    if best >= len(blocks) - LAST_BLOCKS or best == 0:
        return ()
    rise = min(above) - levels[best]
    enough = constants.drift_rise if track.transform == "log" else constants.drift_rise * abs(levels[best])
    if rise < max(enough, constants.drift_sigmas * error) or not _is_gradual(levels[best:]):
        return ()
    return (_evidence(track, blocks, levels, best),)


def _standard_error(values: NDArray[np.float64], levels: list[float]) -> float:
    """Standard error of a block's median, measured on neighbouring blocks, so that slow noise counts."""
    low, high = (int(share * (values.shape[1] - 1)) for share in (0.16, 0.84))
    parted = np.partition(values, (low, high), axis=1)
    within = 1.2533 * float(np.median((parted[:, high] - parted[:, low]) / 2)) / math.sqrt(values.shape[1])
    bends = np.abs(np.diff(levels, 2))
    between = MAD_TO_SIGMA * float(np.median(bends)) / math.sqrt(6.0)
    return max(within, between)


def _is_gradual(levels: list[float]) -> bool:
    """Whether the rise is spread out: no single block step is most of it (that would be a level shift)."""
    rise = levels[-1] - levels[0]
    largest = max(b - a for a, b in pairwise(levels))
    return largest < 0.7 * rise


def _evidence(track: Track, blocks: NDArray[np.int64], levels: list[float], best: int) -> Evidence:
    onset = track.step(int(blocks[best, -1]))
    last = track.step(int(blocks[-1, -1]))
    high = max(range(best, len(levels)), key=lambda index: levels[index])
    peak_row = int(blocks[high, blocks.shape[1] // 2])
    usual = usual_before(track, onset)
    centre, scale = levels[best], usual[1] if usual is not None else 0.0
    effect = levels[high] - centre
    value = math.exp(levels[high]) if track.transform == "log" else levels[high]
    signature = Signature(
        track.name,
        Kind.SLOW_DRIFT,
        track.transform,
        centre,
        scale,
        0.5 * effect,
        1,
        onset,
        track.step(peak_row),
        value,
        last,
    )
    sigmas = effect / scale if scale > 0 else math.inf
    return Evidence(signature, effect, sigmas, True, False, len(blocks) - best, is_abrupt=False)
