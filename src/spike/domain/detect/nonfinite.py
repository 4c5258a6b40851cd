"""Which steps have no finite loss or gradient, which were skipped, and which of them are a scaler at work?

Cross-checks the columns against each other, because each of them is repaired by some stack: transformers logs a
NaN loss as 0.0, Megatron leaves the field out, a scaler's skip shows only in the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spike.domain.detect.constants import Constants
from spike.domain.detect.evidence import Evidence
from spike.domain.detect.local import usual_before
from spike.domain.detect.track import Track
from spike.domain.incident import Kind, Notice, Signature
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, SKIPPED, Series


@dataclass(frozen=True, slots=True)
class _Row:
    step: int
    loss: float | None
    grad_norm: float | None
    skipped: float
    """Steps skipped since the row before, by a counter or an overflow line."""
    lr_stood: bool
    """The learning rate did not advance although it does so around here."""
    scale_fell: bool

    @property
    def filtered(self) -> bool:
        """A loss of exactly 0.0 beside a gradient that is not finite: a NaN that the logger replaced."""
        return self.loss == 0.0 and self.grad_norm is not None and not math.isfinite(self.grad_norm)

    @property
    def loss_lost(self) -> bool:
        return self.filtered or (self.loss is not None and not math.isfinite(self.loss))

    @property
    def grad_lost(self) -> bool:
        return self.grad_norm is not None and not math.isfinite(self.grad_norm)

    @property
    def is_skip(self) -> bool:
        return not self.loss_lost and (self.skipped > 0 or self.grad_lost)

    @property
    def is_scaler_skip(self) -> bool:
        return self.skipped > 0 or (self.grad_lost and (self.lr_stood or self.scale_fell))


@dataclass(frozen=True, slots=True)
class NonFinite:
    """What was found."""

    evidence: tuple[Evidence, ...]
    notices: tuple[Notice, ...]
    filtered_steps: frozenset[int]
    """Steps whose loss of 0.0 stands for a NaN; the loss track must not see them."""


def find_nonfinite(
    loss: Series | None,
    grad_norm: Series | None,
    others: dict[str, Series],
    tracks: dict[str, Track],
    constants: Constants,
) -> NonFinite:
    """Runs of lost losses and of skipped steps, as evidence or as notices."""
    rows = _rows(loss, grad_norm, others)
    evidence: list[Evidence] = []
    notices: list[Notice] = []
    for run in _runs(rows, lambda row: row.loss_lost, gap=0):
        evidence.append(_lost(rows, run, tracks))
        evidence.extend(_lost_beside(rows, run, tracks))
    for run in _runs(rows, lambda row: row.is_skip, gap=2):
        _judge_skips(rows, run, tracks, constants, evidence, notices)
    return NonFinite(tuple(evidence), tuple(_joined(notices)), frozenset(row.step for row in rows if row.filtered))


def _rows(loss: Series | None, grad_norm: Series | None, others: dict[str, Series]) -> list[_Row]:
    losses = _by_step(loss)
    norms = _by_step(grad_norm)
    skipped = _by_step(others.get(SKIPPED))
    stood = _stood_still(others.get(LEARNING_RATE))
    fell = _fell(others.get(LOSS_SCALE))
    steps = sorted(losses.keys() | norms.keys() | {step for step, count in skipped.items() if count > 0})
    return [_Row(s, losses.get(s), norms.get(s), skipped.get(s, 0.0), s in stood, s in fell) for s in steps]


def _by_step(series: Series | None) -> dict[int, float]:
    if series is None:
        return {}
    return dict(zip((int(s) for s in series.steps), (float(v) for v in series.values), strict=True))


def _stood_still(series: Series | None) -> set[int]:
    """Steps whose learning rate equals the previous row's, where the rows around them differ."""
    if series is None or series.steps.size < 4:
        return set()
    values = [float(v) for v in series.values]
    same = [False, *(a == b for a, b in pairwise(values))]
    if sum(same) > 0.5 * len(same):
        return set()
    return {int(step) for step, flag in zip(series.steps, same, strict=True) if flag}


def _fell(series: Series | None) -> set[int]:
    """Steps at which the loss scale is lower than in the row before, and those rows before."""
    if series is None:
        return set()
    found: set[int] = set()
    for index in range(1, series.steps.size):
        if series.values[index] < series.values[index - 1]:
            found.update((int(series.steps[index - 1]), int(series.steps[index])))
    return found


def _runs(rows: Sequence[_Row], test: object, gap: int) -> list[tuple[int, int]]:
    """(first, last) row numbers of runs of rows that pass, bridging up to `gap` rows that do not."""
    assert callable(test)
    found: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        if not test(row):
            continue
        if found and index - found[-1][1] <= gap + 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return found


def _lost(rows: list[_Row], run: tuple[int, int], tracks: dict[str, Track]) -> Evidence:
    first, last = rows[run[0]], rows[run[1]]
    filtered = any(row.filtered for row in rows[run[0] : run[1] + 1])
    hints: tuple[str, ...] = ()
    if filtered:
        hints = ("the loss is logged as exactly 0.0 beside a gradient norm that is not finite: a filtered NaN",)
    value = first.loss if first.loss is not None and not math.isfinite(first.loss) else math.nan
    signature = _signature(tracks.get(LOSS), LOSS, Kind.NON_FINITE, first.step, last.step, value)
    ends = run[1] >= len(rows) - 1
    return Evidence(signature, math.inf, math.inf, ends, False, run[1] - run[0] + 1, hints=hints)


def _lost_beside(rows: list[_Row], run: tuple[int, int], tracks: dict[str, Track]) -> list[Evidence]:
    """The gradient norm's part in a lost loss, where it is not finite in the same rows."""
    lost = [row for row in rows[run[0] : run[1] + 1] if row.grad_lost]
    return [_lost_norm(lost, tracks, run[1] >= len(rows) - 1)] if lost else []


def _lost_norm(lost: list[_Row], tracks: dict[str, Track], ends: bool, *, may_raise: bool = False) -> Evidence:
    first, last = lost[0], lost[-1]
    signature = _signature(tracks.get(GRAD_NORM), GRAD_NORM, Kind.NON_FINITE, first.step, last.step, _value(first))
    return Evidence(signature, math.inf, math.inf, ends, False, len(lost), may_raise=may_raise)


def _judge_skips(
    rows: list[_Row],
    run: tuple[int, int],
    tracks: dict[str, Track],
    constants: Constants,
    evidence: list[Evidence],
    notices: list[Notice],
) -> None:
    inside = rows[run[0] : run[1] + 1]
    bad = [row for row in inside if row.is_skip]
    count = sum(max(row.skipped, 1.0) for row in bad)
    ends = run[1] >= len(rows) - 1
    by_scaler = sum(row.is_scaler_skip for row in bad) >= 0.5 * len(bad)
    steps = tuple(row.step for row in bad)
    lost_near = any(row.loss_lost for row in rows[max(0, run[0] - 1) : run[1] + 3])
    early = run[0] < constants.ready_rows and run[1] < max(constants.startup_rows, constants.startup_share * len(rows))
    if early and by_scaler and not ends and not lost_near:
        why = "the loss scaler starts high and halves until the gradients fit; the steps behind it are healthy"
        notices.append(Notice("start-up-scaler-search", steps, why))
    elif by_scaler and count < constants.skipped_run and not lost_near:
        why = "one overflow: the scaler withheld the step, halved its scale and went on"
        notices.append(Notice("single-scaler-skip", steps, why))
        evidence.extend(_takes_part(bad, tracks, ends))
    elif not by_scaler and len(bad) < constants.nonfinite_run and not ends and not lost_near:
        why = "the gradient norm is not finite once and the losses behind it are: the update was withheld"
        notices.append(Notice("single-scaler-skip", steps, why))
        evidence.extend(_takes_part(bad, tracks, ends))
    elif by_scaler and any(row.skipped > 0 or row.scale_fell or row.lr_stood for row in bad):
        signal = SKIPPED if any(row.skipped > 0 for row in bad) else GRAD_NORM
        evidence.append(_skips(bad, signal, ends, tracks))
    else:
        evidence.append(_lost_norm(bad, tracks, ends, may_raise=True))


def _takes_part(bad: list[_Row], tracks: dict[str, Track], ends: bool) -> list[Evidence]:
    """A benign skip is no incident, but it belongs to one that happens at the same time."""
    if not any(row.grad_lost for row in bad):
        return [_skips(bad, SKIPPED, ends, tracks, may_raise=False)]
    return [_lost_norm([row for row in bad if row.grad_lost], tracks, ends)]


def _skips(bad: list[_Row], signal: str, ends: bool, tracks: dict[str, Track], *, may_raise: bool = True) -> Evidence:
    if signal == SKIPPED:
        signature = Signature(
            SKIPPED,
            Kind.SKIPPED_STEPS,
            "identity",
            0.0,
            0.0,
            0.5,
            1,
            bad[0].step,
            bad[0].step,
            max(row.skipped for row in bad),
            bad[-1].step,
        )
    else:
        signature = _signature(
            tracks.get(GRAD_NORM), GRAD_NORM, Kind.SKIPPED_STEPS, bad[0].step, bad[-1].step, _value(bad[0])
        )
    return Evidence(signature, math.inf, math.inf, ends, False, len(bad), may_raise=may_raise)


def _value(row: _Row) -> float:
    return row.grad_norm if row.grad_norm is not None else math.nan


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
