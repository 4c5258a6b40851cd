"""Which hypotheses are left, what would separate them, and what may be concluded?

Elimination over playbooks: a measured fact or a trial's outcome that a hypothesis forbids rejects it; the next
experiment is the one that separates most pairs per cost; a verdict is `established` only through a confirmation
that a playbook names. Nothing here knows any particular cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.playbook import REPLAY, Confirmation, Expectation, Playbook, Wanted
from spike.domain.trial import OutcomeKind
from spike.domain.verdict import Rejected

CONFIRMING_WEIGHT = 1.0
"""Value of running an open confirmation, in pairs separated: on a par with separating one pair."""
SUPPORT_WEIGHT = 2.0
"""Added for each supporting fact of the hypothesis whose confirmation it is: follow the evidence first."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What has been measured so far."""

    facts: Mapping[str, Fact] = field(default_factory=dict)
    outcomes: Mapping[str, OutcomeKind] = field(default_factory=dict)
    """By experiment name: an intervention's name, `replay`, or one with `-placebo` or `-reversal` behind it."""
    trial_ids: Mapping[str, str] = field(default_factory=dict)

    def value(self, fact: str) -> str | None:
        """The fact's value, or None where it was not measured."""
        found = self.facts.get(fact)
        return None if found is None or found.value == NOT_MEASURED else found.value

    def decided(self, experiment: str) -> OutcomeKind | None:
        """Reproduced, absent or different; None where the experiment was not run or was untestable."""
        outcome = self.outcomes.get(experiment)
        return None if outcome is OutcomeKind.UNTESTABLE else outcome


class Confirmed(StrEnum):
    """How far one way of confirming a hypothesis has come."""

    YES = "yes"
    NO = "no"
    """An experiment or fact answered against it."""
    OPEN = "open"
    """Something it needs has not been measured."""


def contradiction(playbook: Playbook, evidence: Evidence) -> Rejected | None:
    """Why the evidence excludes this hypothesis, or None."""
    for name, values in playbook.facts:
        value = evidence.value(name)
        if value is not None and value not in values:
            return Rejected(playbook.id, f"{evidence.facts[name].statement} ({name}: {value})")
    for experiment, expected in playbook.trials:
        outcome = evidence.decided(experiment)
        if outcome is not None and _contradicts(expected, outcome):
            trial = evidence.trial_ids.get(experiment, experiment)
            return Rejected(playbook.id, f"{trial} was {outcome.value}, and it would have been {expected.value}")
    return None


def _contradicts(expected: Expectation, outcome: OutcomeKind) -> bool:
    match expected:
        case Expectation.ANY:
            return False
        case Expectation.REPRODUCED:
            return outcome is OutcomeKind.ABSENT
        case Expectation.ABSENT:
            return outcome is OutcomeKind.REPRODUCED


def surviving(playbooks: Iterable[Playbook], evidence: Evidence) -> tuple[Playbook, ...]:
    """The hypotheses that nothing contradicts, in the given order. More evidence never brings one back."""
    return tuple(p for p in playbooks if contradiction(p, evidence) is None)


def support(playbook: Playbook, evidence: Evidence) -> int:
    """How many of its supporting facts were measured with a fitting value."""
    return sum(evidence.value(name) in values for name, values in playbook.supported_by)


def confirmed(way: Confirmation, evidence: Evidence) -> Confirmed:
    """Whether this way of confirming has succeeded, failed, or is open."""
    parts = [_facts_confirmed(way.facts, evidence)]
    parts += [_experiment_confirmed(trial, OutcomeKind.ABSENT, evidence) for trial in way.trials]
    for control in (way.placebo, way.reversal):
        if control:
            parts.append(_experiment_confirmed(control, OutcomeKind.REPRODUCED, evidence))
    if Confirmed.NO in parts:
        return Confirmed.NO
    return Confirmed.OPEN if Confirmed.OPEN in parts else Confirmed.YES


def _facts_confirmed(wanted: Wanted, evidence: Evidence) -> Confirmed:
    values = [(evidence.value(name), fitting) for name, fitting in wanted]
    if any(value is not None and value not in fitting for value, fitting in values):
        return Confirmed.NO
    return Confirmed.OPEN if any(value is None for value, _ in values) else Confirmed.YES


def _experiment_confirmed(experiment: str, wanted: OutcomeKind, evidence: Evidence) -> Confirmed:
    outcome = evidence.decided(experiment)
    if outcome is None:
        return Confirmed.OPEN
    return Confirmed.YES if outcome is wanted else Confirmed.NO


def is_confirmed(playbook: Playbook, evidence: Evidence) -> bool:
    """True where any of its ways to confirm has succeeded."""
    return any(confirmed(way, evidence) is Confirmed.YES for way in playbook.confirm)


def confirming(playbook: Playbook, evidence: Evidence) -> tuple[str, ...]:
    """Experiments of one successful confirmation, its controls included; () where none has succeeded."""
    for way in playbook.confirm:
        if confirmed(way, evidence) is Confirmed.YES:
            return tuple(e for e in (*way.trials, way.placebo, way.reversal) if e)
    return ()


def open_experiments(playbook: Playbook, evidence: Evidence) -> tuple[str, ...]:
    """Experiments that would carry an open confirmation further, the deciding one before its controls."""
    wanted: list[str] = []
    for way in playbook.confirm:
        if confirmed(way, evidence) is not Confirmed.OPEN:
            continue
        for experiment in (*way.trials, way.placebo, way.reversal):
            if experiment and experiment not in evidence.outcomes:
                wanted.append(experiment)
                break
    return tuple(dict.fromkeys(wanted))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An experiment that could be run next, and what it is worth."""

    experiment: str
    value: float
    cost: float
    separates: tuple[tuple[str, str], ...]
    """Pairs of hypotheses that it tells apart."""

    @property
    def worth(self) -> float:
        """Value for cost."""
        return self.value / max(self.cost, 1e-9)


def rank_experiments(
    playbooks: Sequence[Playbook], evidence: Evidence, available: Mapping[str, float]
) -> tuple[Candidate, ...]:
    """The experiments worth running, best first. `available` maps names to costs (replayed steps, say).

    Deterministic: equal worth is ordered by name.
    """
    left = _contenders(surviving(playbooks, evidence), evidence)
    if len(left) == 1 and is_confirmed(left[0], evidence):
        return ()
    candidates = []
    for experiment, cost in available.items():
        if experiment in evidence.outcomes or experiment == REPLAY:
            continue
        pairs = tuple(
            (a.id, b.id)
            for a in left
            for b in left
            if a.expects(experiment) is Expectation.REPRODUCED and b.expects(experiment) is Expectation.ABSENT
        )
        value = float(len(pairs)) + _confirming_value(experiment, left, evidence)
        if value > 0:
            candidates.append(Candidate(experiment, value, cost, pairs))
    return tuple(sorted(candidates, key=lambda c: (-c.worth, c.experiment)))


def _contenders(left: Sequence[Playbook], evidence: Evidence) -> Sequence[Playbook]:
    """Once a hypothesis is confirmed by its own intervention, only those with evidence behind them still compete."""
    proven = [p for p in left if is_confirmed(p, evidence)]
    return [p for p in left if p in proven or support(p, evidence)] if proven else left


def _confirming_value(experiment: str, left: Sequence[Playbook], evidence: Evidence) -> float:
    return sum(
        CONFIRMING_WEIGHT + SUPPORT_WEIGHT * support(p, evidence)
        for p in left
        if not is_confirmed(p, evidence) and experiment in open_experiments(p, evidence)
    )
