"""What may be said in the end? From the evidence to a status, with the reason for not saying more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spike.domain.eliminate import (
    Confirmed,
    Evidence,
    confirmed,
    confirming,
    contradiction,
    is_confirmed,
    open_experiments,
    support,
    surviving,
)
from spike.domain.playbook import REPLAY, Playbook
from spike.domain.trial import Grade, Licence, NoiseFloor, OutcomeKind
from spike.domain.verdict import CauseClass, Finding, Rejected, Status, Strength, Suggestion

CLEAN_REPEATS = 2
"""An incident that stays away must stay away this often before its absence says anything."""
EXACT = frozenset({Grade.BIT_EXACT, Grade.LOG_EXACT})


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict without its place: what elimination alone can say."""

    status: Status
    cause_class: CauseClass
    cause: str
    because: str
    findings: tuple[Finding, ...]
    rejected: tuple[Rejected, ...]
    inseparable: tuple[str, ...]
    next: tuple[Suggestion, ...]


def conclude(
    playbooks: Sequence[Playbook],
    evidence: Evidence,
    licence: Licence | None,
    noise: NoiseFloor,
    unavailable: dict[str, str],
) -> Conclusion:
    """Conclude from everything measured.

    `licence` is None where no trial could be run at all; `unavailable` maps experiments that could not be run to
    the reason. No licence, no verdict: facts alone can point (`next`), not decide.
    """
    if licence is None or not licence.holds:
        # What an unlicensed trial showed is no evidence; what was measured without a comparison still is.
        evidence = replace(evidence, outcomes={}, trial_ids={})
    rejected = tuple(r for p in playbooks if (r := contradiction(p, evidence)) is not None)
    left = surviving(playbooks, evidence)
    suggestions = _suggestions(left, evidence, unavailable)
    if licence is None or not licence.holds:
        reason = "no trial could be run" if licence is None else f"the replay is not licensed: {licence.reason}"
        return _undetermined(reason, evidence, rejected, left, suggestions)
    proven = [p for p in left if is_confirmed(p, evidence)]
    if len(proven) > 1:
        names = tuple(p.id for p in proven)
        same_class = len({p.cause_class for p in proven}) == 1
        reason = f"the trials cannot separate {' from '.join(names)}"
        if not same_class:
            return _undetermined(reason, evidence, rejected, proven, suggestions)
        best = proven[0]
        return _named(Status.SUPPORTED, best, reason, evidence, rejected, names[1:], suggestions)
    if len(proven) == 1:
        return _one_proven(proven[0], left, evidence, licence, noise, rejected, suggestions)
    return _none_proven(left, evidence, rejected, suggestions)


def _one_proven(
    playbook: Playbook,
    left: Sequence[Playbook],
    evidence: Evidence,
    licence: Licence,
    noise: NoiseFloor,
    rejected: tuple[Rejected, ...],
    suggestions: tuple[Suggestion, ...],
) -> Conclusion:
    weak = _weakness(evidence, licence, noise)
    rivals = tuple(p.id for p in left if p is not playbook and support(p, evidence) and open_experiments(p, evidence))
    if weak:
        return _named(Status.SUPPORTED, playbook, weak, evidence, rejected, rivals, suggestions)
    if rivals:
        reason = f"its confirmation holds, but {' and '.join(rivals)} could not be excluded"
        return _named(Status.SUPPORTED, playbook, reason, evidence, rejected, rivals, suggestions)
    experiments = confirming(playbook, evidence)
    trials = " and ".join(f"{evidence.trial_ids.get(e, e)} ({evidence.outcomes[e].value})" for e in experiments)
    reason = f"confirmed by {trials}" if trials else "confirmed by the facts its playbook names"
    others = tuple(Rejected(p.id, _not_confirmed(p, evidence)) for p in left if p is not playbook)
    return _named(Status.ESTABLISHED, playbook, reason, evidence, rejected + others, (), ())


def _weakness(evidence: Evidence, licence: Licence, noise: NoiseFloor) -> str:
    """Why an incident that did not come back proves less; "" where it did come back or absence is well measured."""
    if evidence.decided(REPLAY) is not OutcomeKind.ABSENT:
        return ""
    if licence.grade not in EXACT:
        return f"the incident stayed away on replay, and the licence is only {licence.grade.value}"
    if noise.num_repeats < CLEAN_REPEATS:
        return f"the incident stayed away, but only {noise.num_repeats + 1} replays were made"
    return ""


def _not_confirmed(playbook: Playbook, evidence: Evidence) -> str:
    if any(confirmed(way, evidence) is Confirmed.NO for way in playbook.confirm):
        return "nothing contradicts it, and its own confirmation failed"
    return "nothing supports it, and another cause is confirmed by an intervention of its own"


def _none_proven(
    left: Sequence[Playbook], evidence: Evidence, rejected: tuple[Rejected, ...], suggestions: tuple[Suggestion, ...]
) -> Conclusion:
    standing = [p for p in left if not _failed(p, evidence)]
    if len(standing) == 1 and support(standing[0], evidence):
        reason = "it fits every trial and fact and is the only one that does, and no intervention has confirmed it"
        return _named(Status.SUPPORTED, standing[0], reason, evidence, rejected, (), suggestions)
    if not left:
        return _undetermined(
            "every known hypothesis is contradicted by the evidence; the cause is none that the playbooks know",
            evidence,
            rejected,
            (),
            suggestions,
        )
    if not standing:
        reason = "no hypothesis that is left could be confirmed; the cause is probably none that the playbooks know"
        return _undetermined(reason, evidence, rejected, (), suggestions)
    names = ", ".join(p.id for p in standing)
    return _undetermined(f"the trials leave {names}, and none is confirmed", evidence, rejected, standing, suggestions)


def _failed(playbook: Playbook, evidence: Evidence) -> bool:
    return bool(playbook.confirm) and all(confirmed(way, evidence) is Confirmed.NO for way in playbook.confirm)


def _suggestions(left: Sequence[Playbook], evidence: Evidence, unavailable: dict[str, str]) -> tuple[Suggestion, ...]:
    wanted = dict.fromkeys(e for p in left for e in open_experiments(p, evidence))
    return tuple(Suggestion(e, unavailable.get(e, "not run yet")) for e in wanted)


def _undetermined(
    because: str,
    evidence: Evidence,
    rejected: tuple[Rejected, ...],
    left: Sequence[Playbook],
    suggestions: tuple[Suggestion, ...],
) -> Conclusion:
    return Conclusion(
        status=Status.UNDETERMINED,
        cause_class=CauseClass.NONE,
        cause="",
        because=because,
        findings=_findings(None, evidence),
        rejected=rejected,
        inseparable=tuple(p.id for p in left),
        next=suggestions,
    )


def _named(
    status: Status,
    playbook: Playbook,
    because: str,
    evidence: Evidence,
    rejected: tuple[Rejected, ...],
    inseparable: tuple[str, ...],
    suggestions: tuple[Suggestion, ...],
) -> Conclusion:
    return Conclusion(
        status=status,
        cause_class=playbook.cause_class,
        cause=playbook.id,
        because=because,
        findings=_findings(playbook, evidence),
        rejected=rejected,
        inseparable=inseparable,
        next=suggestions,
    )


def _findings(playbook: Playbook | None, evidence: Evidence) -> tuple[Finding, ...]:
    """Measured facts and outcomes, the playbook's own first; with a strength each."""
    relevant = dict((*playbook.facts, *playbook.supported_by)) if playbook else {}
    for way in playbook.confirm if playbook else ():
        relevant |= dict(way.facts)
    found = []
    for name, fact in evidence.facts.items():
        if evidence.value(name) is None:
            continue
        strength = Strength.ASSOCIATED if fact.value in relevant.get(name, ()) else Strength.OBSERVED
        found.append(Finding(fact.statement, strength, fact.evidence))
    for experiment, outcome in evidence.outcomes.items():
        trial = evidence.trial_ids.get(experiment, experiment)
        strength = Strength.OBSERVED if experiment == REPLAY else Strength.INTERVENED
        if outcome is OutcomeKind.UNTESTABLE:
            strength = Strength.OBSERVED
        change = "the unchanged command" if experiment == REPLAY else f"with {experiment}"
        found.append(Finding(f"{change}, the incident is {outcome.value}", strength, (trial,)))
    order = [Strength.INTERVENED, Strength.ASSOCIATED, Strength.OBSERVED]
    return tuple(sorted(found, key=lambda f: order.index(f.strength)))
