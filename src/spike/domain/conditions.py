"""Does the resumed window keep each promise of the gate? One condition a function; unmeasured is not held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from spike.domain.gate import Condition, ConditionState
from spike.domain.incident import Incident
from spike.domain.measured import NotMeasured, measured
from spike.domain.receipt import Receipt
from spike.domain.signals import LOSS, Series
from spike.domain.trace import RankTrace, StepRecord
from spike.domain.trial import NoiseFloor, Outcome, OutcomeKind

TREND_SIGMAS = 4.0
"""The mean residual of the window may lie this many standard errors off the pre-incident trend."""
UPDATE_RATIO = 2.0
"""An update norm of twice the largest healthy one is another regime (Marin saw a doubling before every spike)."""
SLOWDOWN = 1.5
"""Median step time against the healthy replayed steps; below this, timing noise of a shared machine."""
HELD_OUT_RELATIVE = 0.02
"""A held-out loss may be two per cent worse than the last good checkpoint's: a short window of training at a
constant rate moves it by less."""
TREND_HISTORY = 32
"""Healthy steps of the record that the trend is fitted to. Losses fall ever more slowly: a line through a long history
promises more than any healthy run keeps, one through the recent past is held for as long again."""


def signature_gone(outcome: Outcome, trial: str) -> Condition:
    """The incident must be absent, not merely softer."""
    state = ConditionState.HOLDS if outcome.kind is OutcomeKind.ABSENT else ConditionState.FAILS
    if outcome.kind is OutcomeKind.UNTESTABLE:
        state = ConditionState.NOT_MEASURED
    return Condition("signature-gone", state, outcome.reason, (trial,))


def loss_on_trend(
    record: Series | None, replayed: Series | None, incident: Incident, last_good: int, trial: str
) -> Condition:
    """The window's loss against the trend of the record before the incident.

    A straight line through the last healthy steps is extended over the window; the mean residual of the window
    must lie within `TREND_SIGMAS` standard errors of it, and within the incident's own threshold.
    """
    name = "loss-on-trend"
    if record is None or replayed is None:
        return Condition(name, ConditionState.NOT_MEASURED, f"there is no {LOSS} in the record or in the trial")
    before = [(int(s), float(v)) for s, v in zip(record.steps, record.values, strict=True)]
    healthy = [(s, v) for s, v in before if s < incident.onset_step and math.isfinite(v)][-TREND_HISTORY:]
    window = [
        (int(s), float(v))
        for s, v in zip(replayed.steps, replayed.values, strict=True)
        if s >= max(incident.onset_step, last_good)
    ]
    if len(healthy) < 8 or not window:
        return Condition(name, ConditionState.NOT_MEASURED, "too few healthy or resumed steps to compare with a trend")
    if not all(math.isfinite(v) for _, v in window):
        bad = next(s for s, v in window if not math.isfinite(v))
        return Condition(name, ConditionState.FAILS, f"the loss of step {bad} is not finite", (trial,))
    slope, level, centre = _line(healthy)
    residuals = [v - (level + slope * (s - centre)) for s, v in healthy]
    spread = 1.4826 * median([abs(r - median(residuals)) for r in residuals])
    error = spread * math.sqrt(1 / len(window) + 4 / len(healthy))
    mean = sum(v - (level + slope * (s - centre)) for s, v in window) / len(window)
    bound = max(TREND_SIGMAS * error, 1e-12)
    text = f"mean loss of {len(window)} steps lies {mean:+.4g} off the trend before the incident (bound {bound:.4g})"
    return Condition(name, ConditionState.HOLDS if mean <= bound else ConditionState.FAILS, text, (trial,))


def _line(rows: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Slope, level and centre of the least-squares line through rows."""
    centre = sum(s for s, _ in rows) / len(rows)
    level = sum(v for _, v in rows) / len(rows)
    spread = sum((s - centre) ** 2 for s, _ in rows)
    slope = sum((s - centre) * (v - level) for s, v in rows) / spread if spread else 0.0
    return slope, level, centre


def update_norm(trace: RankTrace, onset: int, reference: Sequence[RankTrace], trial: str) -> Condition:
    """Update norms of the window against healthy ones: before the onset, in this trial or in unchanged ones."""
    # The step right before the onset is the suspect one: its update is what the onset shows.
    steps = [s for t in (*reference, trace) for s in t.steps if s.step < onset - 1]
    healthy = [u for s in steps if (u := measured(s.update_norm)) is not None]
    window = [u for s in trace.steps if s.step >= onset and s.applied and (u := measured(s.update_norm)) is not None]
    if not healthy or not window:
        text = "no update norm was traced on both sides of the onset"
        return Condition("update-norm", ConditionState.NOT_MEASURED, text)
    bound = UPDATE_RATIO * max(healthy)
    worst = max(window)
    holds = math.isfinite(worst) and worst <= bound
    text = f"largest update norm {worst:.4g}, bound {bound:.4g} ({UPDATE_RATIO:g} times the largest healthy one)"
    return Condition("update-norm", ConditionState.HOLDS if holds else ConditionState.FAILS, text, (trial,))


def throughput(trace: RankTrace, baseline: RankTrace, trial: str) -> Condition:
    """Median step time against the unchanged trial's, on the same machine."""
    ours, theirs = (_median_seconds(t.steps) for t in (trace, baseline))
    if ours is None or theirs is None or theirs <= 0:
        return Condition("throughput", ConditionState.NOT_MEASURED, "fewer than three timed steps")
    ratio = ours / theirs
    state = ConditionState.HOLDS if ratio <= SLOWDOWN else ConditionState.FAILS
    text = f"median step {ours * 1e3:.4g} ms, {ratio:.2f} times the unchanged trial's (bound {SLOWDOWN:g})"
    return Condition("throughput", state, text, (trial,))


def _median_seconds(steps: Sequence[StepRecord]) -> float | None:
    timed = [s.seconds for s in steps[1:] if s.seconds > 0]
    return median(timed) if len(timed) >= 3 else None


def load_receipt(receipt: Receipt | NotMeasured, trial: str, *, replaces_moments: bool) -> Condition:
    """The state as loaded must be the checkpoint's, apart from what the remedy itself replaces."""
    if isinstance(receipt, NotMeasured):
        return Condition("load-receipt", ConditionState.NOT_MEASURED, receipt.not_measured)
    wrong = list(receipt.parameters) + ([] if replaces_moments else list(receipt.moments))
    if wrong:
        first = wrong[0]
        text = f"{len(wrong)} tensors are not the checkpoint's, first {first.name} of rank {first.rank}: {first.why}"
        return Condition("load-receipt", ConditionState.FAILS, text, (trial,))
    if not receipt.num_parameters:
        return Condition("load-receipt", ConditionState.NOT_MEASURED, "no live parameter was fingerprinted")
    moments = "moments replaced by the remedy" if replaces_moments else f"{receipt.num_moments} moments"
    text = f"{receipt.num_parameters} parameters and {moments} equal the checkpoint's"
    return Condition("load-receipt", ConditionState.HOLDS, text, (trial,))


def skip_counters(traces: Sequence[RankTrace], declared: Sequence[int], trial: str) -> Condition:
    """Exactly the declared steps may be withheld, on every rank."""
    withheld = {s.step for t in traces for s in t.steps if not s.applied}
    extra = sorted(withheld - set(declared))
    if not any(t.steps for t in traces):
        return Condition("skip-counters", ConditionState.NOT_MEASURED, "no step was traced")
    if extra:
        text = f"the update of step {extra[0]} was withheld and not declared ({len(extra)} such steps)"
        return Condition("skip-counters", ConditionState.FAILS, text, (trial,))
    text = f"{len(withheld)} withheld updates, all declared" if withheld else "every update was applied"
    return Condition("skip-counters", ConditionState.HOLDS, text, (trial,))


def held_out(before: float | NotMeasured, after: float | NotMeasured, trial: str) -> Condition:
    """The held-out number of the resumed run against the last good checkpoint's; lower is better."""
    for value in (before, after):
        if isinstance(value, NotMeasured):
            return Condition("held-out", ConditionState.NOT_MEASURED, value.not_measured)
    assert isinstance(before, float)
    assert isinstance(after, float)
    bound = before + abs(before) * HELD_OUT_RELATIVE
    holds = math.isfinite(after) and after <= bound
    text = f"held-out {after:.6g} after the window, {before:.6g} at the last good checkpoint (bound {bound:.6g})"
    return Condition("held-out", ConditionState.HOLDS if holds else ConditionState.FAILS, text, (trial,))


def healthy_steps_match(
    own: RankTrace, baseline: RankTrace, first_change: int, noise: NoiseFloor, trial: str
) -> Condition:
    """The control: until the remedy acts, the window must be the unchanged trial."""
    pairs = [(s, baseline.step(s.step)) for s in own.steps if s.step < first_change]
    known = [(a, b) for a, b in pairs if b is not None]
    if not known:
        text = "the remedy acts from the first step on, so no step can be held against the unchanged trial"
        return Condition("control", ConditionState.NOT_MEASURED, text, (trial,))
    tolerance = 4.0 * noise.of("loss")
    worst = max(abs(a.loss - b.loss) for a, b in known)
    state = ConditionState.HOLDS if worst <= tolerance else ConditionState.FAILS
    return Condition("control", state, f"{len(known)} steps before the remedy differ by at most {worst:.3g}", (trial,))
