"""Does the loss creep up without any single step that stands out? Block levels against the best earlier level."""

from __future__ import annotations

import math
from itertools import pairwise

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
    rows = [
        row
        for row in range(len(track))
        if math.isfinite(track.y[row]) and not any(first <= row <= last for first, last in taken)
    ]
    size = max(SMALLEST_BLOCK, len(rows) // BLOCKS)
    blocks = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]
    if len(blocks) < LAST_BLOCKS + 3:
        return ()
    levels = [_median([track.y[row] for row in block]) for block in blocks]
    error = _standard_error(track, blocks)
    # The last block that is as low as the lowest: a flat stretch ends where the creep begins.
    best = max(index for index, level in enumerate(levels) if level <= min(levels) + 2.0 * error)
    above = levels[-LAST_BLOCKS:]
    if best >= len(blocks) - LAST_BLOCKS or best == 0:
        return ()
    rise = min(above) - levels[best]
    usual = constants.drift_rise if track.transform == "log" else constants.drift_rise * abs(levels[best])
    if rise < max(usual, constants.drift_sigmas * error) or not _is_gradual(levels[best:]):
        return ()
    return (_evidence(track, blocks, levels, best),)


def _standard_error(track: Track, blocks: list[list[int]]) -> float:
    """Standard error of a block's median, measured on neighbouring blocks, so that slow noise counts."""
    spreads = []
    for block in blocks:
        values = sorted(track.y[row] for row in block)
        spreads.append((values[int(0.84 * (len(values) - 1))] - values[int(0.16 * (len(values) - 1))]) / 2)
    within = 1.2533 * _median(spreads) / math.sqrt(len(blocks[0]))
    levels = [_median([track.y[row] for row in block]) for block in blocks]
    bends = [abs(a - 2 * b + c) for a, b, c in zip(levels, levels[1:], levels[2:], strict=False)]
    between = 1.4826 * _median(bends) / math.sqrt(6.0)
    return max(within, between)


def _is_gradual(levels: list[float]) -> bool:
    """Whether the rise is spread out: no single block step is most of it (that would be a level shift)."""
    rise = levels[-1] - levels[0]
    largest = max(b - a for a, b in pairwise(levels))
    return largest < 0.7 * rise


def _evidence(track: Track, blocks: list[list[int]], levels: list[float], best: int) -> Evidence:
    onset = track.steps[blocks[best][-1]]
    last = track.steps[blocks[-1][-1]]
    high = max(range(best, len(levels)), key=lambda index: levels[index])
    peak_row = blocks[high][len(blocks[high]) // 2]
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
        track.steps[peak_row],
        value,
        last,
    )
    sigmas = effect / scale if scale > 0 else math.inf
    return Evidence(signature, effect, sigmas, True, False, len(blocks) - best, is_abrupt=False)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    n = len(ordered)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2.0
