"""How far does the unchanged trial differ from itself? The measured noise floor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from spike.domain.factors import same_number
from spike.domain.trace import RankTrace, StepRecord
from spike.domain.trial import NoiseFloor, TrialRun

TOLERANCE_IN_SPREADS = 4.0
"""A difference counts beyond this many times the largest spread seen between repeats: with three runs (three
pairs) the largest of three spreads underestimates the range, and four times it leaves under one in a thousand."""


def noise_floor(runs: Sequence[TrialRun], *, before_step: int) -> NoiseFloor:
    """Compare every pair of unchanged trials on the attempted steps before `before_step`.

    `runs` holds the baseline and its repeats. Fewer than two runs measure nothing: num_repeats is 0 then and
    bit_exact is False.
    """
    if len(runs) < 2:
        return NoiseFloor(num_repeats=0, bit_exact=False)
    spread: dict[str, float] = {"loss": 0.0, "grad_norm": 0.0}
    exact = True
    for left, right in combinations(runs, 2):
        for a, b in _shared(left.traces, right.traces):
            if a.step >= before_step:
                continue
            exact &= same_number(a.loss, b.loss) and same_number(a.grad_norm, b.grad_norm)
            spread["loss"] = max(spread["loss"], _distance(a.loss, b.loss))
            spread["grad_norm"] = max(spread["grad_norm"], _distance(a.grad_norm, b.grad_norm))
    return NoiseFloor(num_repeats=len(runs) - 1, bit_exact=exact, spread=tuple(spread.items()))


def _shared(left: Sequence[RankTrace], right: Sequence[RankTrace]) -> list[tuple[StepRecord, StepRecord]]:
    by_place = {(t.process.rank, s.step): s for t in right for s in t.steps}
    pairs = []
    for trace in left:
        for step in trace.steps:
            other = by_place.get((trace.process.rank, step.step))
            if other is not None:
                pairs.append((step, other))
    return pairs


def _distance(left: float, right: float) -> float:
    if same_number(left, right):
        return 0.0
    distance = abs(left - right)
    return distance if distance == distance else float("inf")
