"""May the replays of this case be believed? Compare the trial's own log with the record, like with like.

The trial runs the operator's command, so it writes the same log lines as the run did. Equal lines need no model
of what the stack averages or when it counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from spike.domain.factors import same_number
from spike.domain.noise import TOLERANCE_IN_SPREADS
from spike.domain.signals import FULL_DIGITS, GRAD_NORM, LEARNING_RATE, LOSS, Series, Signals
from spike.domain.trace import RankTrace, StepRecord
from spike.domain.trial import Grade, Licence, NoiseFloor

COMPARED = (LOSS, GRAD_NORM)
"""Signals that depend on weights, batch and generators at once; a schedule alone licenses nothing."""

WANTED_STEPS = 3
"""Fewer equal healthy steps than this are said to be few; one equal full-precision loss is still hard to get
by accident."""


EARLY_STEPS = 8
"""Logged steps by which a record may part from its replay before the detector sees it. A value that was corrupted
moves the loss by a digit first and out of the noise a few updates later."""

ROUNDING = 1.001
"""Half a unit of the last digit, with room for the decimal fraction that a double does not hold exactly."""
MAX_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class _Row:
    signal: str
    step: int
    record: float
    trial: float
    digits: int
    unit: float
    """Unit of the last decimal that the coarser log printed; 0 for an unrounded or scientific one."""

    @property
    def is_equal(self) -> bool:
        """Equal as far as the record printed it: the trial's value may come with more digits."""
        if same_number(self.record, self.trial):
            return True
        return abs(self.record - self.trial) <= half_last_digit(self.record, self.digits, self.unit)


def judge_licence(record: Signals, trial: Signals, *, first_step: int, onset: int, noise: NoiseFloor) -> Licence:
    """The licence from the logged steps after `first_step`.

    `onset` is the incident's first anomalous logged step. Steps before it are the healthy ones; where none was
    logged between the checkpoint and the onset, the incident's own steps may vouch, and only by equality.
    """
    rows = _shared_rows(record, trial, after=first_step - 1)
    healthy = [row for row in rows if row.step < onset]
    if healthy:
        parted = _parts_early(healthy, onset) if noise.bit_exact else None
        return _judge_rows(healthy, noise) if parted is None else _judge_until(healthy, parted, onset, noise)
    anomalous = [row for row in rows if row.step >= onset]
    if not anomalous:
        return Licence(Grade.REFUSED, _nothing_shared(record, trial))
    equal = all(row.is_equal for row in anomalous)
    if equal and any(row.record == row.record for row in anomalous):
        licence = _judge_rows(anomalous, noise)
        reason = (
            f"no healthy step was logged between the checkpoint and the onset; the incident's own: {licence.reason}"
        )
        return Licence(licence.grade, reason, licence.signals, licence.num_steps)
    return Licence(
        Grade.REFUSED,
        "no healthy step was logged between the checkpoint and the onset, and the incident's own steps differ "
        f"from the record (step {anomalous[0].step}: {anomalous[0].signal} {anomalous[0].record:.6g} logged, "
        f"{anomalous[0].trial:.6g} replayed)",
        first_difference=anomalous[0].step,
    )


def _parts_early(rows: list[_Row], onset: int) -> int | None:
    """The step from which on the record is no more what its own command computes, or None.

    Only where it was equal before, is never equal again, and parts right before the onset: the incident then began
    there, unseen. A difference that begins at the checkpoint, or heals, is one of code, data or environment.
    """
    steps = sorted({row.step for row in rows})
    differing = {row.step for row in rows if not row.is_equal}
    if not differing:
        return None
    first = min(differing)
    after = [step for step in steps if step >= first]
    is_early = len(steps) - len(after) >= WANTED_STEPS and len(after) <= EARLY_STEPS and onset > first
    return first if is_early and set(after) == differing and not _shift(rows) else None


def _judge_until(rows: list[_Row], parted: int, onset: int, noise: NoiseFloor) -> Licence:
    found = _judge_rows([row for row in rows if row.step < parted], noise)
    first = next(row for row in rows if row.step == parted and not row.is_equal)
    reason = (
        f"{found.reason}; from step {parted} on the record is not what its own command computes ({first.signal} "
        f"{first.record:.9g} logged, {first.trial:.9g} replayed): the incident acts from there, and was seen at {onset}"
    )
    return replace(found, reason=reason, first_difference=parted)


def _shared_rows(record: Signals, trial: Signals, *, after: int) -> list[_Row]:
    rows = []
    for name in COMPARED:
        left, right = record.get(name), trial.get(name)
        if left is None or right is None:
            continue
        replayed = _last_by_step(right)
        logged = _last_by_step(left)
        digits = min(left.digits, right.digits)
        coarser = left if left.digits <= right.digits else right
        unit = _unit(coarser) if coarser.digits < FULL_DIGITS - 1 else 0.0
        rows += [_Row(name, s, logged[s], v, digits, unit) for s, v in replayed.items() if s > after and s in logged]
    return sorted(rows, key=lambda row: (row.step, row.signal))


def _last_by_step(series: Series) -> dict[int, float]:
    return {int(step): float(value) for step, value in zip(series.steps, series.values, strict=True)}


def half_last_digit(value: float, digits: int, unit: float) -> float:
    """How far a rounded value may be off: half a unit of its last decimal, or of its last significant digit."""
    if digits >= FULL_DIGITS - 1 or not math.isfinite(value):
        return 0.0
    return ROUNDING * 0.5 * max(unit, 10.0 ** (1 - digits) * abs(value))


def _unit(series: Series) -> float:
    """Unit of the last decimal of a log with a fixed number of them; 0 where values have no such number."""
    finite = [float(v) for v in series.values if math.isfinite(v)]
    for decimals in range(MAX_DECIMALS + 1):
        if all(math.isclose(round(v, decimals), v, rel_tol=1e-12, abs_tol=1e-15) for v in finite):
            return 10.0**-decimals
    return 0.0


def _nothing_shared(record: Signals, trial: Signals) -> str:
    if not trial.series:
        return "the replay logged nothing that spike can read, so no step can be compared with the record"
    missing = [name for name in COMPARED if record.get(name) is None or trial.get(name) is None]
    if len(missing) == len(COMPARED):
        return f"the record and the replay share no {' or '.join(COMPARED)}"
    return "the replay logged none of the steps that the record has"


def _judge_rows(rows: list[_Row], noise: NoiseFloor) -> Licence:
    signals = tuple(dict.fromkeys(row.signal for row in rows))
    steps = sorted({row.step for row in rows})
    span = f"steps {steps[0]}-{steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    few = "" if len(steps) >= WANTED_STEPS else f"; only {len(steps)} to compare"
    differing = [row for row in rows if not row.is_equal]
    if not differing:
        digits = min(row.digits for row in rows)
        grade = Grade.BIT_EXACT if digits >= FULL_DIGITS - 1 else Grade.LOG_EXACT
        how = "in every bit" if grade is Grade.BIT_EXACT else f"in all {digits} logged digits"
        return Licence(grade, f"{' and '.join(signals)} of {span} equal the record {how}{few}", signals, len(steps))
    first = differing[0]
    beyond = [row for row in differing if not _within(row, noise)]
    blind = [name for name in signals if TOLERANCE_IN_SPREADS * noise.of(name) > _fluctuation(rows, name)]
    if blind and not beyond:
        reason = (
            f"unchanged trials differ from each other by {noise.of(blind[0]):.3g} in {blind[0]}, as much as the run "
            "fluctuates from step to step, so that agreeing within this noise proves nothing"
        )
        return Licence(Grade.REFUSED, reason, signals, len(steps), first.step)
    if not beyond and not noise.bit_exact and noise.num_repeats:
        reason = (
            f"{' and '.join(signals)} of {span} lie within {TOLERANCE_IN_SPREADS:g} times the spread of "
            f"{noise.num_repeats + 1} unchanged trials{few}"
        )
        return Licence(Grade.WITHIN_NOISE, reason, signals, len(steps), first.step)
    worst = beyond[0] if beyond else first
    reason = f"step {worst.step}: {worst.signal} is {worst.record:.9g} in the record and {worst.trial:.9g} replayed"
    shift = _shift(rows)
    if shift:
        when = "late" if shift > 0 else "early"
        reason += f"; the replay equals the record one step {when}: data or step counter shifted on resume"
    elif noise.bit_exact:
        reason += "; repeated trials agree to the bit, so this is not noise: code, data, config or environment differ"
    else:
        reason += f"; the unchanged trial differs from itself by {noise.of(worst.signal):.3g} only"
    return Licence(Grade.REFUSED, reason, signals, len(steps), worst.step)


def _fluctuation(rows: list[_Row], signal: str) -> float:
    """Median change of the record from one healthy step to the next: what an unrelated trajectory would be off by."""
    values = [row.record for row in rows if row.signal == signal and math.isfinite(row.record)]
    changes = [abs(b - a) for a, b in pairwise(values)]
    return median(changes) if changes else math.inf


def _within(row: _Row, noise: NoiseFloor) -> bool:
    return abs(row.record - row.trial) <= TOLERANCE_IN_SPREADS * noise.of(row.signal)


def _shift(rows: list[_Row]) -> int:
    """+1 where the trial's value at s + 1 is the record's at s throughout, -1 the other way, else 0."""
    for shift in (1, -1):
        trial = {(row.signal, row.step): row.trial for row in rows}
        pairs = [(row.record, trial.get((row.signal, row.step + shift))) for row in rows]
        known = [(a, b) for a, b in pairs if b is not None]
        if len(known) >= WANTED_STEPS and all(same_number(a, b) for a, b in known):
            return shift
    return 0


def step_offset(logged: Signals, trace: RankTrace) -> int:
    """Logged step minus attempted step, from which shift makes the trial's log agree with its own trace.

    Learning rate, gradient norm and loss vote; a log that agrees nowhere (averages over a window, its own loss
    definition) leaves 0, the convention of design: steps are counted from 1.
    """
    votes = {0: 0, -1: 0, 1: 0}
    for name in (GRAD_NORM, LOSS, LEARNING_RATE):
        series = logged.get(name)
        if series is None:
            continue
        seen = _last_by_step(series)
        # A constant schedule agrees at every shift and must not vote.
        if len(set(seen.values())) < 2:
            continue
        for offset in votes:
            votes[offset] += sum(_agrees(name, seen.get(s.step + offset), s, series.digits) for s in trace.steps)
    return max(votes, key=lambda offset: votes[offset])


def _agrees(name: str, logged: float | None, step: StepRecord, digits: int) -> bool:
    if logged is None:
        return False
    match name:
        case "grad_norm":
            candidates: tuple[float, ...] = (step.grad_norm,)
        case "lr":
            candidates = step.lr[:1]
        case _:
            micro = step.micro_batches
            last = micro[-1].loss if micro else step.loss
            candidates = (step.loss, step.loss / max(len(micro), 1), last, last * max(len(micro), 1))
    tolerance = max(abs(logged), 1e-30) * 10.0 ** (1 - min(digits, 7))
    return any(abs(logged - value) <= tolerance or same_number(logged, value) for value in candidates)
