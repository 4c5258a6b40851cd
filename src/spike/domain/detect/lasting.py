"""Is the loss a little higher from somewhere on, and for good? A step that only hundreds of rows together show.

A row half a scale too high is nothing, five hundred of them are eleven standard errors. One smooth curve through both
sides of a place, with a step at it, says how high that step is; the places are tried over the whole record, the
likeliest one is judged. What a learning curve does on its own (bends, schedules, new data) is in the noise of the same
figure over all places: a step must stand out from it. It is told late, as it must be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.baseline import MAD_TO_SIGMA
from spike.domain.detect.constants import Constants
from spike.domain.detect.evidence import Evidence
from spike.domain.detect.track import Track
from spike.domain.incident import Kind, Signature

SIDES = (96, 192, 384, 768, 1536)
"""Rows on either side of a place; the longest that fit see the smallest step."""

PLACES_A_SIDE = 8
"""Places that are tried on the length of a side."""

YOUNGEST = 4
"""A place must have this many sides of rows before it: a younger learning curve bends within a side."""

DEEPEST = 0.6
"""A fall within a side of a place, of this share of its step, has made that step."""

RAISED = 0.4
"""Share of a step by which the rows behind it are really higher than those before."""

FEWEST_PLACES = 6
"""Fewer independent places than this cannot say what a step of the record's own making is like."""

AT_ONCE = 512
"""Places whose rows are laid out together; more would take memory and no less time."""

OLD_ROWS = 1 << 20
"""Row number from which an excerpt of a long run is thought to begin."""

CUT = 3.0
"""Rows farther from their neighbours than this many scales are cut there: one hard batch is no level."""

ROUGH_ROWS = 33
"""Rows whose median a row is compared with before it is cut."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """The likeliest step of a record."""

    row: int
    """First row behind it."""
    height: float
    """In transformed units; what it adds at the place itself."""
    errors: float
    """The same in standard errors, measured on all places of the record."""
    scale: float
    """Noise of one row."""
    rows: int
    """Rows on either side that were compared."""


def find_lasting(track: Track, taken: list[tuple[int, int]], constants: Constants) -> tuple[Evidence, ...]:
    """At most one lasting step up. `taken` are rows of other departures, which are left out."""
    if track.transform != "log" or len(track) < 2 * SIDES[0] + constants.window_rows:
        return ()
    usual = np.isfinite(track.y)
    usual[: constants.window_rows] = False
    for first, last in taken:
        usual[first : last + 1] = False
    rows = np.flatnonzero(usual)
    y, first = track.y[rows], constants.window_rows if not track.is_excerpt else OLD_ROWS
    y, scale = trimmed(y)
    found = [step for side in SIDES if (step := likeliest(y, scale, side, first)) is not None]
    enough = [
        step
        for step in found
        if step.errors > constants.lasting_errors and step.height > max(constants.min_shift, 0.25 * step.scale)
    ]
    if not enough:
        return ()
    best = max(enough, key=lambda step: step.errors)
    return (_evidence(track, rows, best),)


def likeliest(y: Array, scale: float, side: int, first: int) -> Step | None:
    """The step that stands out most among all places, comparing `side` rows on either side; None if there is none.

    `scale` is the noise of one row, `first` the row number of the first value: places too near to the beginning of a
    run bend too much.
    """
    if y.size < (FEWEST_PLACES + 1) * side:
        return None
    stride = side // PLACES_A_SIDE
    places = np.arange(side, y.size - side + 1, stride)
    places = places[places + first >= YOUNGEST * side]
    if places.size < FEWEST_PLACES * PLACES_A_SIDE:
        return None
    weights = _weights(side)
    windows = np.lib.stride_tricks.sliding_window_view(y, 2 * side)
    parts = np.split(places - side, range(AT_ONCE, places.size, AT_ONCE))
    heights = np.concatenate([windows[part] @ weights for part in parts])
    middle = float(np.median(heights))
    usual = MAD_TO_SIGMA * float(np.median(np.abs(heights - middle)))
    error = max(usual, scale * float(np.sqrt(weights @ weights)))
    best = int(np.argmax(heights))
    place, height = int(places[best]), float(heights[best])
    around = heights[max(0, best - PLACES_A_SIDE) : best + PLACES_A_SIDE + 1]
    if -float(around.min()) > DEEPEST * height or not _is_raised(y, place, side, height):
        return None  # the echo of a fall
    return Step(place, height, (height - middle) / error, scale, side)


def _weights(side: int) -> Array:
    """What each row adds to the step of a least-squares curve (level, slope, bend) with a step in its middle."""
    x = (np.arange(2 * side) - side + 0.5) / side
    design = np.stack([np.ones_like(x), x, x * x, (x > 0).astype(float)], axis=1)
    return np.asarray(np.linalg.pinv(design)[-1])


def _is_raised(y: Array, place: int, side: int, height: float) -> bool:
    """Whether the rows right behind the place, and those at the far end, are above what those before it lead to.

    The curve may fall as fast as it does on both sides; one that falls on one side only makes an echo, not a step.
    """
    before, behind = y[place - side : place], y[place : place + side]
    slope = min(0.0, max(_slope(before), _slope(behind)))
    near = side // 4
    level = float(np.mean(before[-near:]))
    soon = float(np.mean(behind[:near])) - level - slope * near
    late = float(np.mean(behind[-near:])) - level - slope * side
    return soon > RAISED * height and late > RAISED * height


def _slope(y: Array) -> float:
    x = np.arange(y.size) - (y.size - 1) / 2.0
    return float(x @ y / (x @ x))


def trimmed(y: Array) -> tuple[Array, float]:
    """The rows without far ones, and the noise of one row."""
    level = _running_mean(y, ROUGH_ROWS)
    away = y - level
    middle = float(np.median(away))
    scale = max(MAD_TO_SIGMA * float(np.median(np.abs(away - middle))), 1e-9)
    return level + np.clip(away, middle - CUT * scale, middle + CUT * scale), scale


def _running_mean(y: Array, rows: int) -> Array:
    padded = np.pad(y, rows // 2, mode="edge")
    sums = np.concatenate([[0.0], np.cumsum(padded - y[0])])
    return np.asarray((sums[rows:] - sums[:-rows]) / rows + y[0])


def _evidence(track: Track, rows: NDArray[np.int64], step: Step) -> Evidence:
    first = int(rows[step.row])
    last = len(track) - 1
    before = track.y[rows[step.row - step.rows : step.row]]
    behind = track.y[rows[step.row : step.row + step.rows]]
    centre = float(np.mean(before)) + _slope(before) * before.size / 2.0
    peak = first + int(np.argmax(np.where(np.isfinite(track.y[first:]), track.y[first:], -np.inf)))
    value = math.exp(centre + step.height)
    signature = Signature(
        track.name, Kind.LEVEL_SHIFT, track.transform, centre, step.scale, 0.5 * step.height, 1,
        track.step(first), track.step(min(peak, last)), value, track.step(last),
    )  # fmt: skip
    hint = (
        f"the loss stays {math.exp(step.height) - 1.0:.2%} above its trend: {step.errors:.0f} standard errors over"
        f" {behind.size} rows, none of which stands out"
    )
    return Evidence(
        signature, step.height, step.height / step.scale, False, True, behind.size, level=step.height, hints=(hint,)
    )
