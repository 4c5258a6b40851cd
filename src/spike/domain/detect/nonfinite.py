"""Which steps have no finite loss or gradient, which were skipped, and which of them are a scaler at work?

Cross-checks the columns against each other, because each of them is repaired by some stack: transformers logs a
NaN loss as 0.0, Megatron leaves the field out, a scaler's skip shows only in the learning rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.constants import Constants
from spike.domain.detect.evidence import Evidence
from spike.domain.detect.local import usual_before
from spike.domain.detect.track import Track
from spike.domain.incident import Kind, Notice, Signature
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, SKIPPED, Series

Steps = NDArray[np.int64]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


BRIDGED = 2
"""Healthy steps between two skipped ones that still belong to one run; where a row stands for several steps, none."""


@dataclass(frozen=True, slots=True, eq=False)
class NonFinite:
    """What was found."""

    evidence: tuple[Evidence, ...]
    notices: tuple[Notice, ...]
    filtered_steps: Steps
    """Steps whose loss of 0.0 stands for a NaN; the loss track must not see them."""


def find_nonfinite(
    loss: Series | None,
    grad_norm: Series | None,
    others: dict[str, Series],
    tracks: dict[str, Track],
    constants: Constants,
) -> NonFinite:
    """Runs of lost losses and of skipped steps, as evidence or as notices."""
    rows = _Rows(loss, grad_norm, others)
    evidence: list[Evidence] = []
    notices: list[Notice] = []
    for run in _runs(rows.lost, gap=0):
        evidence.append(_lost(rows, run, tracks))
        evidence.extend(_lost_beside(rows, run, tracks))
    for run in _runs(rows.is_skip, gap=BRIDGED if rows.spacing == 1 else 0):
        _judge_skips(rows, run, tracks, constants, evidence, notices)
    return NonFinite(tuple(evidence), tuple(_joined(notices)), rows.steps[rows.filtered])


class _Rows:
    """The rows of all columns by step, as arrays."""

    def __init__(self, loss: Series | None, grad_norm: Series | None, others: dict[str, Series]) -> None:
        skipped = others.get(SKIPPED)
        counted = skipped.steps[skipped.values > 0] if skipped is not None else np.empty(0, dtype=np.int64)
        judged = [s.steps for s in (loss, grad_norm) if s is not None]
        # A record of skips alone has its healthy rows in the columns beside them.
        beside = [s.steps for s in (others.get(LEARNING_RATE), others.get(LOSS_SCALE)) if s is not None]
        self.steps = _union([*(judged or beside), counted])
        self.loss, has_loss = _aligned(loss, self.steps)
        self.norm, has_norm = _aligned(grad_norm, self.steps)
        count, has_count = _aligned(skipped, self.steps)
        self.skipped = np.where(has_count, count, 0.0)
        """Steps skipped since the row before, by a counter or an overflow line."""
        self.norm_lost = has_norm & ~np.isfinite(self.norm)
        self.filtered = has_loss & (self.loss == 0.0) & self.norm_lost
        """A loss of exactly 0.0 beside a gradient that is not finite: a NaN that the logger replaced."""
        self.lost = self.filtered | (has_loss & ~np.isfinite(self.loss))
        self.is_skip = ~self.lost & ((self.skipped > 0) | self.norm_lost)
        self._rate, self._scale = others.get(LEARNING_RATE), others.get(LOSS_SCALE)

    def __len__(self) -> int:
        return int(self.steps.size)

    @cached_property
    def lr_stood(self) -> Flags:
        """The learning rate did not advance although it does so around here."""
        return np.isin(self.steps, _stood_still(self._rate))

    @cached_property
    def scale_fell(self) -> Flags:
        """The loss scale fell here or at the next row."""
        return np.isin(self.steps, _fell(self._scale))

    def step(self, row: int) -> int:
        """The step of a row."""
        return int(self.steps[row])

    @property
    def spacing(self) -> int:
        """Steps from one row to the next, at least."""
        return int(np.diff(self.steps).min(initial=1 << 40)) if self.steps.size > 1 else 1


def _union(columns: list[Steps]) -> Steps:
    """The steps of all columns, each once."""
    if len(columns) == 3 and columns[2].size == 0 and np.array_equal(columns[0], columns[1]):
        columns = columns[:1]
    together = columns[0] if len(columns) == 1 else np.concatenate(columns)
    if together.size < 2 or bool(np.all(together[1:] > together[:-1])):
        return together
    return np.unique(together)


def _aligned(series: Series | None, steps: Steps) -> tuple[Values, Flags]:
    """The column's value at each of these steps, the last where one was logged twice, and whether there is one."""
    if series is None or series.steps.size == 0:
        return np.full(steps.size, np.nan), np.zeros(steps.size, dtype=bool)
    if np.array_equal(series.steps, steps):
        return series.values, np.ones(steps.size, dtype=bool)
    place = np.searchsorted(series.steps, steps, side="right") - 1
    present = (place >= 0) & (series.steps[place] == steps)
    return np.where(present, series.values[place], np.nan), present


def _stood_still(series: Series | None) -> Steps:
    """Steps whose learning rate equals the previous row's, where the rows around them differ."""
    if series is None or series.steps.size < 4:
        return np.empty(0, dtype=np.int64)
    same = np.concatenate([[False], series.values[1:] == series.values[:-1]])
    if np.count_nonzero(same) > 0.5 * same.size:
        return np.empty(0, dtype=np.int64)
    return np.asarray(series.steps[same])


def _fell(series: Series | None) -> Steps:
    """Steps at which the loss scale is lower than in the row before, and those rows before."""
    if series is None:
        return np.empty(0, dtype=np.int64)
    falls = np.flatnonzero(series.values[1:] < series.values[:-1])
    return np.unique(np.concatenate([series.steps[falls], series.steps[falls + 1]]))


def _runs(flags: Flags, gap: int) -> list[tuple[int, int]]:
    """(first, last) row numbers of runs of flagged rows, bridging up to `gap` rows that are not."""
    rows = np.flatnonzero(flags)
    if rows.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(rows) > gap + 1)
    firsts = rows[np.concatenate([[0], breaks + 1])]
    lasts = rows[np.concatenate([breaks, [rows.size - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _lost(rows: _Rows, run: tuple[int, int], tracks: dict[str, Track]) -> Evidence:
    first, last = rows.step(run[0]), rows.step(run[1])
    hints: tuple[str, ...] = ()
    if rows.filtered[run[0] : run[1] + 1].any():
        hints = ("the loss is logged as exactly 0.0 beside a gradient norm that is not finite: a filtered NaN",)
    value = math.nan if rows.filtered[run[0]] else float(rows.loss[run[0]])
    signature = _signature(tracks.get(LOSS), LOSS, Kind.NON_FINITE, first, last, value)
    ends = run[1] >= len(rows) - 1
    return Evidence(signature, math.inf, math.inf, ends, False, run[1] - run[0] + 1, hints=hints)


def _lost_beside(rows: _Rows, run: tuple[int, int], tracks: dict[str, Track]) -> list[Evidence]:
    """The gradient norm's part in a lost loss, where it is not finite in the same rows."""
    lost = run[0] + np.flatnonzero(rows.norm_lost[run[0] : run[1] + 1])
    return [_lost_norm(rows, lost, tracks, run[1] >= len(rows) - 1)] if lost.size else []


def _lost_norm(
    rows: _Rows,
    lost: Steps,
    tracks: dict[str, Track],
    ends: bool,
    *,
    kind: Kind = Kind.NON_FINITE,
    may_raise: bool = False,
) -> Evidence:
    """The gradient norm's part: `lost` are the row numbers."""
    first, last = rows.step(int(lost[0])), rows.step(int(lost[-1]))
    signature = _signature(tracks.get(GRAD_NORM), GRAD_NORM, kind, first, last, float(rows.norm[lost[0]]))
    return Evidence(signature, math.inf, math.inf, ends, False, int(lost.size), may_raise=may_raise)


def _judge_skips(
    rows: _Rows,
    run: tuple[int, int],
    tracks: dict[str, Track],
    constants: Constants,
    evidence: list[Evidence],
    notices: list[Notice],
) -> None:
    bad = run[0] + np.flatnonzero(rows.is_skip[run[0] : run[1] + 1])
    count = float(np.maximum(rows.skipped[bad], 1.0).sum())
    ends = run[1] >= len(rows) - 1
    is_counted, is_scaled = rows.skipped[bad] > 0, rows.scale_fell[bad] | rows.lr_stood[bad]
    by_scaler = np.count_nonzero(is_counted | (rows.norm_lost[bad] & is_scaled)) >= 0.5 * bad.size
    lost_near = bool(rows.lost[max(0, run[0] - 1) : run[1] + 3].any())
    early = run[0] < constants.ready_rows and run[1] < max(constants.startup_rows, constants.startup_share * len(rows))
    if early and by_scaler and not ends and not lost_near:
        why = "the loss scaler starts high and halves until the gradients fit; the steps behind it are healthy"
        notices.append(Notice("start-up-scaler-search", _steps(rows, bad), why))
    elif by_scaler and count < constants.skipped_run and not lost_near:
        why = "one overflow: the scaler withheld the step, halved its scale and went on"
        notices.append(Notice("single-scaler-skip", _steps(rows, bad), why))
        evidence.append(_takes_part(rows, bad, tracks, ends))
    elif not by_scaler and bad.size < constants.nonfinite_run and not ends and not lost_near:
        why = "the gradient norm is not finite once and the losses behind it are: the update was withheld"
        notices.append(Notice("single-scaler-skip", _steps(rows, bad), why))
        evidence.append(_takes_part(rows, bad, tracks, ends))
    elif by_scaler and is_counted.any():
        evidence.append(_counted(rows, bad, ends))
    elif by_scaler and is_scaled.any():
        evidence.append(_lost_norm(rows, bad, tracks, ends, kind=Kind.SKIPPED_STEPS, may_raise=True))
    else:
        evidence.append(_lost_norm(rows, bad, tracks, ends, may_raise=True))


def _steps(rows: _Rows, bad: Steps) -> tuple[int, ...]:
    return tuple(rows.steps[bad].tolist())


def _takes_part(rows: _Rows, bad: Steps, tracks: dict[str, Track], ends: bool) -> Evidence:
    """A benign skip is no incident, but it belongs to one that happens at the same time."""
    lost = bad[rows.norm_lost[bad]]
    return _lost_norm(rows, lost, tracks, ends) if lost.size else _counted(rows, bad, ends, may_raise=False)


def _counted(rows: _Rows, bad: Steps, ends: bool, *, may_raise: bool = True) -> Evidence:
    """Skipped steps by a counter or by overflow lines."""
    first, last = rows.step(int(bad[0])), rows.step(int(bad[-1]))
    most = float(rows.skipped[bad].max())
    signature = Signature(SKIPPED, Kind.SKIPPED_STEPS, "identity", 0.0, 0.0, 0.5, 1, first, first, most, last)
    return Evidence(signature, math.inf, math.inf, ends, False, int(bad.size), may_raise=may_raise)


def _signature(track: Track | None, name: str, kind: Kind, onset: int, last: int, value: float) -> Signature:
    usual = usual_before(track, onset) if track is not None else None
    centre, scale = usual if usual is not None else (0.0, 0.0)
    transform = track.transform if track is not None else "identity"
    threshold = 10.0 * scale if usual is not None else math.inf
    return Signature(name, kind, transform, centre, scale, threshold, 1, onset, onset, value, last)


def _joined(notices: list[Notice]) -> list[Notice]:
    """One notice a pattern, with all its steps."""
    merged: dict[tuple[str, str], tuple[int, ...]] = {}
    for notice in notices:
        key = (notice.pattern, notice.why_benign)
        merged[key] = (*merged.get(key, ()), *notice.steps)
    return [Notice(pattern, steps, why) for (pattern, why), steps in merged.items()]
