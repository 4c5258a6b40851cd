"""How many of the next rows are calm? The judgement of one row, made of thousands at once.

A row depends on those before it only through what they leave in the baseline, the tail and the running sums. As long
as no row has to wait, all of these are sums and orders over rows that are known beforehand. So the rows are judged as
if each were calm, up to the first that is not: one that is far out, or that a running sum holds back. That one is
judged on its own, with the state as the calm rows before it have left it.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.baseline import (
    ERROR_WEIGHT,
    FLAT,
    SCALE_ROWS,
    SHORTER_BY,
    SLOPE_ROWS,
    Baseline,
    coordinates,
)
from spike.domain.detect.watch import DOWN, FARTHEST_PAIR, MEMORY_WEIGHT, UP, Memory, Watch, inflation

FEWEST, MOST = 128, 8192
"""Rows judged at once: twice as many after a stretch that was calm throughout, half as many after one that was not."""

GUESSES = 4
"""Rounds in which the rows that stay outside the baseline are guessed; nearly always the second is right."""

BLOCK = 256
"""Rows of a running average that are weighted together; a weight over more would lose digits."""

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def can_judge_many(watch: Watch) -> bool:
    """Whether rows may be judged together: the baseline is ready, has lines, and nothing is under suspicion."""
    baseline = watch.baseline
    return (
        not watch.waiting
        and baseline.num_accepted >= watch.constants.ready_rows
        and len(baseline.rows) >= SLOPE_ROWS
        and all(math.isfinite(error) for error in baseline.line_errors)
    )


def take_calm(watch: Watch, rows: NDArray[np.int64], y: Array) -> int:
    """Take in the calm rows at the beginning of these; returns their number. All of `y` must be finite."""
    with np.errstate(all="ignore"):
        look = _look(watch, rows, y)
        count = look.count
        if count == 0:
            return 0
        z, before = look.z[:count], look.before[: count + 1]
        up, down = watch.tail.limits_along(z)
        square, product = _memory(watch.memory, z[look.kept[:count]])
        sums = _sums(watch, z, before[:-1], (up, down), np.asarray(inflation(square, product))[before[:-1]])
        held = np.maximum(sums[UP], sums[DOWN]) >= min(watch.constants.cusum_hold, watch.constants.cusum_limit)
        count = _first(held)
    if count == 0:
        return 0
    _take_sums(watch, {direction: values[:count] for direction, values in sums.items()}, rows)
    z, kept, num_kept = z[:count], look.kept[:count], int(before[count])
    watch.baseline.extend(
        rows[:count][kept].astype(float),
        y[:count][kept],
        np.abs(look.error[:count]),
        [float(errors[num_kept]) for errors in look.line_errors],
        float(look.scale[count]),
    )
    if num_kept:
        watch.memory.square, watch.memory.product = float(square[num_kept]), float(product[num_kept])
        watch.memory.last = float(np.clip(z[kept][-1], -FARTHEST_PAIR, FARTHEST_PAIR))
    watch.tail.extend(z, (float(up[count]), float(down[count])))
    watch.healthy.extend(z)
    watch.recent_rows.extend(rows[:count].astype(float))
    watch.recent_z.extend(z)
    watch.highest = max(watch.highest, float(y[:count].max()))
    return count


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What each row's forecast is, given which rows before it are taken into the baseline."""

    kept: Flags
    before: NDArray[np.int64]
    """Number of kept rows before each row and behind the last."""
    error: Array
    scale: Array
    """Before each row and behind the last."""
    z: Array
    line_errors: list[Array]
    """Each line's typical error before each kept row and behind the last."""
    count: int
    """Rows from the first on for which all of this holds and none of which is far out."""


def _look(watch: Watch, rows: NDArray[np.int64], y: Array) -> _Look:
    """Guess which rows are kept, and guess again from the first wrong one on: a right guess is the only right one."""
    c = watch.constants
    kept = np.ones(y.size, dtype=bool)
    for _ in range(GUESSES):
        before = np.concatenate([[0], np.cumsum(kept)])
        centre, line_errors = _forecasts(watch.baseline, rows, y, kept, before)
        error = y - centre
        scale = _scales(watch.baseline, np.abs(error))
        z = error / scale[:-1]
        is_near = np.abs(z) < c.accept_sigmas
        right = _first(is_near != kept)
        calm = _first(~(np.abs(z) < min(c.min_sigmas, c.large_sigmas)))
        if right >= calm:
            break
        used, kept = kept, np.concatenate([kept[:right], is_near[right:]])
    else:
        kept = used  # what the figures stand on
    return _Look(kept, before, error, scale, z, line_errors, min(right, calm))


def _sums(
    watch: Watch, z: Array, before: NDArray[np.int64], limits: tuple[Array, Array], spread: Array
) -> dict[int, Array]:
    """The running sums after each row."""
    c = watch.constants
    sums = {}
    for direction, tail in zip((UP, DOWN), limits, strict=True):
        limit = watch.limit(tail[:-1], watch.baseline.num_accepted + before)
        added = np.minimum(direction * z * c.min_sigmas / limit, c.cusum_cap) / spread - c.cusum_slack
        sums[direction] = _running(added, watch.sums[direction])
    return sums


def _first(flags: Flags) -> int:
    """Number of rows before the first that is flagged."""
    place = int(np.argmax(flags))
    return place if flags[place] else flags.size


def _forecasts(
    baseline: Baseline, rows: NDArray[np.int64], y: Array, kept: Flags, before: NDArray[np.int64]
) -> tuple[Array, list[Array]]:
    """The centre for each row, and each line's typical error before each kept row and behind the last."""
    longest = max(baseline.sizes)
    known_rows, known = baseline.rows.last(longest), baseline.values.last(longest)
    origin = coordinates(known_rows)
    ahead = coordinates(rows) - origin[-1]  # near zero and near the level, so that the sums keep their digits
    away = y - known[-1]
    x = np.concatenate([origin - origin[-1], ahead[kept]])
    values = np.concatenate([known - known[-1], away[kept]])
    sums = [np.concatenate([[0.0], np.cumsum(part)]) for part in (x, values, x * x, x * values)]
    ends = known.size + before[:-1]
    lines = [_line(sums, ends, ahead, size, all_kept=bool(before[-1] == y.size)) for size in baseline.sizes]
    errors = [
        _average(np.abs(away - line)[kept], start, ERROR_WEIGHT)
        for line, start in zip(lines, baseline.line_errors, strict=True)
    ]
    best, centre = errors[0][before[:-1]], lines[0]
    for line, along in zip(lines[1:], errors[1:], strict=True):
        typical = along[before[:-1]]
        is_better = typical < SHORTER_BY * best
        centre, best = np.where(is_better, line, centre), np.where(is_better, typical, best)
    return centre + known[-1], errors


def _line(sums: list[Array], ends: NDArray[np.int64], x: Array, size: int, *, all_kept: bool) -> Array:
    """The least-squares line through the `size` kept rows before each row, at that row."""
    first = int(ends[0]) - size
    if all_kept and first >= 0:
        n: Any = size
        behind = slice(int(ends[0]), int(ends[-1]) + 1)
        sx, sy, sxx, sxy = (total[behind] - total[first : first + x.size] for total in sums)
    else:
        starts = np.maximum(ends - size, 0)
        n = ends - starts
        sx, sy, sxx, sxy = (total[ends] - total[starts] for total in sums)
    spread = sxx - sx * sx / n
    slope = np.where(spread > FLAT, (sxy - sx * sy / n) / np.where(spread > FLAT, spread, 1.0), 0.0)
    return np.asarray(sy / n + slope * (x - sx / n))


def _average(values: Array, start: float, weight: float) -> Array:
    """The exponential average before each value and behind the last: shape (values + 1,)."""
    if values.size == 0:
        return np.array([start])
    powers = (1.0 - weight) ** np.arange(1, BLOCK + 1)
    num_blocks = -(-values.size // BLOCK)
    blocks = np.zeros(num_blocks * BLOCK)
    blocks[: values.size] = values
    own = powers * np.cumsum(blocks.reshape(num_blocks, BLOCK) * (weight / powers), axis=1)
    starts = [start]
    for last in own[:-1, -1].tolist():
        starts.append(float(powers[-1]) * starts[-1] + last)
    along = own + np.multiply.outer(np.array(starts), powers)
    return np.concatenate([[start], along.ravel()[: values.size]])


def _scales(baseline: Baseline, errors: Array) -> Array:
    """The scale before each row and behind the last."""
    known = baseline.errors.last()
    keep = baseline.errors.keep
    together = np.concatenate([known, errors])
    growing = min(errors.size, keep - known.size)
    scale = np.empty(errors.size + 1)
    scale[0] = baseline.scale()
    if growing > 0:
        n = known.size + 1 + np.arange(growing)
        scale[1 : growing + 1] = baseline.scale_of(_growing_medians(known, errors[:growing]), n)
    # From a full set on, the scale is measured whenever the count of all errors is a multiple of SCALE_ROWS.
    first = growing + 1 + (-(baseline.num_errors + growing + 1)) % SCALE_ROWS
    due = np.arange(first, errors.size + 1, SCALE_ROWS)
    scale[growing + 1 :] = scale[growing]
    if due.size:
        windows = np.lib.stride_tricks.sliding_window_view(together, keep)[due + known.size - keep]
        measured = baseline.scale_of(_medians(windows), keep)
        scale[first:] = np.repeat(measured, SCALE_ROWS)[: errors.size + 1 - first]
    return scale


def _growing_medians(known: Array, errors: Array) -> Array:
    """The median after each further error."""
    ordered = sorted(known.tolist())
    found = np.empty(errors.size)
    for place, error in enumerate(errors.tolist()):
        bisect.insort(ordered, error)
        half = len(ordered) // 2
        found[place] = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0
    return found


def _medians(windows: Array) -> Array:
    half = windows.shape[1] // 2
    if windows.shape[1] % 2:
        return np.asarray(np.partition(windows, half, axis=1)[:, half])
    parted = np.partition(windows, (half - 1, half), axis=1)
    return np.asarray((parted[:, half - 1] + parted[:, half]) / 2.0)


def _memory(memory: Memory, z: Array) -> tuple[Array, Array]:
    """Mean squares and mean products of neighbours before each row and behind the last."""
    near = np.clip(z, -FARTHEST_PAIR, FARTHEST_PAIR)
    before = np.concatenate([[memory.last], near[:-1]])
    return _average(near * near, memory.square, MEMORY_WEIGHT), _average(near * before, memory.product, MEMORY_WEIGHT)


def _running(added: Array, start: float) -> Array:
    """A sum that never falls below zero, after each row (Lindley's recursion in closed form)."""
    total = np.cumsum(added) + start
    return np.asarray(total - np.minimum(np.minimum.accumulate(total), 0.0))


def _take_sums(watch: Watch, sums: dict[int, Array], rows: NDArray[np.int64]) -> None:
    for direction, values in sums.items():
        at_zero = np.flatnonzero(values <= 0.0)
        if at_zero.size == 0:
            if watch.sums[direction] == 0.0:
                watch.since[direction] = int(rows[0])
        elif at_zero[-1] + 1 < values.size:
            watch.since[direction] = int(rows[at_zero[-1] + 1])
        watch.sums[direction] = float(values[-1])
