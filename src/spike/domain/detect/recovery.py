"""Did the loss come back to its trend, or only down? One smooth curve through both sides of an incident, with a step.

An interrupted time series: the rows before and behind share a curve, and the step between them is what the incident
left. Where the step's own error is larger, the answer does not pretend to know better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.baseline import coordinate
from spike.domain.detect.constants import Constants
from spike.domain.detect.track import Track

FEWEST_BEFORE, FEWEST_AFTER = 6, 2
"""Fewer usual rows than this on a side have no curve; only the prior speaks."""

CURVED_ROWS = 40
"""From this many rows on the curve may bend; fewer cannot tell a bend from a step."""

SETTLED_SHARE = 2
"""A second look leaves out the first half of the rows behind: a loss that came back slowly has come back."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The loss behind an incident, against the trend before it."""

    is_known: bool
    """False where too few rows follow."""
    shift_nats: float
    """Step that the incident left, in the loss's own units."""
    error_nats: float
    """Standard error of that step."""

    def is_back(self, constants: Constants) -> bool:
        """Not stuck: the step is within the stuck bound, or within its own error."""
        bound = max(constants.stuck_nats, constants.stuck_sigmas * self.error_nats)
        return self.is_known and self.shift_nats < bound


def recovery(
    track: Track, onset: int, last: int, until: int, usual: NDArray[np.int64], constants: Constants
) -> Recovery:
    """Compare up to `trend_rows` usual rows before step `onset` with as many between steps `last` and `until`.

    `usual` are the finite rows outside any departure, in order; only they count.
    """
    before, after = _sides(track, onset, last, until, usual, constants.trend_rows)
    if len(after) < FEWEST_AFTER or len(before) < FEWEST_BEFORE:
        return Recovery(bool(after) and bool(before) and _close(track, before, after), 0.0, 0.0)
    before = before[-max(24, 2 * len(after)) :]  # a curve over few rows must not be bent by many old ones
    after = after[: max(len(before), 24)]
    found = _step(track, before, after)
    later = after[len(after) // SETTLED_SHARE :]
    if found.is_back(constants) or len(later) < CURVED_ROWS:
        return found
    again = _step(track, before, later)
    return again if again.is_back(constants) and again.error_nats < constants.stuck_nats else found


def _sides(
    track: Track, onset: int, last: int, until: int, usual: NDArray[np.int64], most: int
) -> tuple[list[int], list[int]]:
    first = int(np.searchsorted(track.steps, onset))
    behind, end = (int(np.searchsorted(track.steps, step)) for step in (last + 1, until))
    at = int(np.searchsorted(usual, first))
    before = usual[max(0, at - most) : at]
    start, stop = (int(np.searchsorted(usual, row)) for row in (behind, end))
    after = usual[start : min(stop, start + most)] if stop > start else usual[:0]
    return list(before.tolist()), list(after.tolist())


def _close(track: Track, before: list[int], after: list[int]) -> bool:
    """With a row or two on a side only the prior speaks."""
    old = sorted(track.at(row) for row in before)[len(before) // 2]
    return min(track.at(row) for row in after) - old < 1.5 * track.prior


def _step(track: Track, before: list[int], after: list[int]) -> Recovery:
    """Least squares of a curve and a step, refitted twice without far residuals."""
    rows = [*before, *after]
    y = np.asarray(track.y[rows])
    design = _design(rows, len(before))
    keep = np.ones(len(rows), dtype=bool)
    solution: NDArray[np.float64] = np.zeros(design.shape[1])
    noise = 0.0
    for _ in range(3):
        solution = np.asarray(np.linalg.lstsq(design[keep], y[keep], rcond=None)[0], dtype=np.float64)
        residual = y - design @ solution
        noise = 1.4826 * float(np.median(np.abs(residual[keep] - np.median(residual[keep]))))
        keep = np.abs(residual) <= 3.5 * max(noise, 1e-12)
        if keep[: len(before)].sum() < FEWEST_BEFORE or keep[len(before) :].sum() < FEWEST_AFTER:
            keep[:] = True
    inverse = np.linalg.pinv(design[keep].T @ design[keep])
    error = noise * math.sqrt(max(float(inverse[-1, -1]), 0.0)) * _inflation((y - design @ solution)[keep])
    unit = math.exp(float(np.median((design @ solution)[len(before) :]))) if track.transform == "log" else 1.0
    return Recovery(True, float(solution[-1]) * unit, error * unit)


def _inflation(residual: NDArray[np.float64]) -> float:
    """By how much the memory of the residuals widens the error: a curve that does not fit leaves a long one."""
    power = float(np.dot(residual, residual))
    if residual.size < 12 or power <= 0:
        return 1.0
    rho = float(np.dot(residual[1:], residual[:-1])) / power
    rho = min(0.99, max(0.0, rho - 1.0 / math.sqrt(residual.size)))
    return math.sqrt((1.0 + rho) / (1.0 - rho))


def _design(rows: list[int], num_before: int) -> NDArray[np.float64]:
    """Columns: level, slope, bend (where there are rows enough for one) and the step behind the incident."""
    x = np.asarray([coordinate(row) for row in rows])
    x = (x - x.mean()) / (x.std() or 1.0)
    behind = (np.arange(len(rows)) >= num_before).astype(float)
    columns = [np.ones(len(rows)), x]
    if min(num_before, len(rows) - num_before) >= CURVED_ROWS:
        columns.append(x**2)
    return np.stack([*columns, behind], axis=1)
