"""Does the record follow trials that differ from it in their random numbers only?

A command that does not restore its generators draws other dropout masks than the run did. Its replay is then never
equal to the record, and what can be asked is whether both saw the same data from the same state: step by step the
record must lie as near to the trials as they lie to each other, and much nearer than to the same trials a few steps
earlier or later, which saw other batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from spike.domain.signals import GRAD_NORM, LOSS, Signals
from spike.domain.trial import Grade, Licence

FEWEST_STEPS = 10
"""Healthy steps to compare. Of unrelated batches, the distance of ten is below NEARER_THAN of another ten's about once
in 250 times (the F distribution with ten and ten degrees of freedom), and here it must be so for every lag."""
AS_NEAR = 1.5
"""The record may be this many times as far from the trials as they are from each other."""
NEARER_THAN = 0.4
"""... and at most this share of the distance to the same trials at other steps."""
LAGS = (-3, -2, -1, 1, 2, 3)

Values = Mapping[int, float]
"""By logged step."""


def judge_seeded(record: Signals, trials: Sequence[Signals], *, first_step: int, onset: int) -> Licence:
    """A licence within noise, from the healthy logged steps after `first_step`, or the refusal with its reason.

    `trials` are unchanged but for their seeds, and known to have seen the same batches as each other.
    """
    told: list[str] = []
    refused = ""
    for name in (LOSS, GRAD_NORM):
        rows = [_values(signals, name, first_step, onset) for signals in (record, *trials)]
        if not all(rows):
            continue
        problem = _strays(name, rows[0], rows[1:])
        if problem:
            refused = refused or problem
        else:
            told.append(name)
    if not told:
        return Licence(Grade.REFUSED, refused or "the record and the trials share no logged loss or gradient norm")
    steps = sorted(_values(record, told[0], first_step, onset))
    reason = (
        f"{' and '.join(told)} of steps {steps[0]}-{steps[-1]} follow the record as closely as {len(trials)} unchanged "
        "trials that differ in their random numbers only follow each other: the command does not restore its generators"
    )
    return Licence(Grade.WITHIN_NOISE, reason, tuple(told), len(steps))


def _strays(name: str, record: Values, trials: Sequence[Values]) -> str:
    """Why this signal does not show that record and trials are the same experiment, or ""."""
    steps = [s for s in record if all(s in t for t in trials)]
    if len(steps) < FEWEST_STEPS:
        return f"only {len(steps)} healthy steps can be compared, {FEWEST_STEPS} are needed where seeds differ"
    among = max(_distance(a, b, 0) for a, b in combinations(trials, 2))
    away = max(_distance(record, t, 0) for t in trials)
    elsewhere = min(_distance(record, t, lag) for t in trials for lag in LAGS)
    if away > AS_NEAR * among:
        times = away / among if among else math.inf
        return f"{name} of the record is {times:.3g} times as far from the trials as they are from each other"
    if away > NEARER_THAN * elsewhere:
        return f"random numbers move {name} nearly as much as other batches do, so that following it proves nothing"
    return ""


def _values(signals: Signals, name: str, first_step: int, onset: int) -> Values:
    series = signals.get(name)
    if series is None:
        return {}
    rows = zip(series.steps, series.values, strict=True)
    return {int(s): float(v) for s, v in rows if first_step <= s < onset and math.isfinite(v)}


def _distance(left: Values, right: Values, lag: int) -> float:
    """Root mean square of left at a step minus right `lag` steps later."""
    squares = [(value - right[step + lag]) ** 2 for step, value in left.items() if step + lag in right]
    return math.sqrt(sum(squares) / len(squares)) if squares else math.inf
