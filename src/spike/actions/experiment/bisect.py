"""What is the cause? Choose the next trial, run it, eliminate; stop at one cause or say what cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spike.actions.experiment.bench import Bench, Unavailable, open_bench
from spike.actions.experiment.experiments import cost, names, prepare, run_experiment
from spike.actions.experiment.investigation import Investigation
from spike.actions.experiment.localise import localise
from spike.actions.experiment.observations import baseline_facts, clipping_fact, commit_facts, earlier_checkpoint_facts
from spike.actions.experiment.suspect_samples import Located, narrow_step
from spike.casefile.codec import to_payload
from spike.domain.conclude import Conclusion, conclude
from spike.domain.eliminate import Candidate, Evidence, rank_experiments
from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.playbook import Playbook
from spike.domain.trial import Factor, OutcomeKind
from spike.domain.verdict import Place, Status, Suggestion, Verdict

VERDICT_SCHEMA = "spike.verdict/1"


@dataclass(slots=True)
class Search:
    """A bisect at work: what is known, what could not be run, what was chosen and why."""

    bench: Bench
    playbooks: Sequence[Playbook]
    facts: dict[str, Fact] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    choices: list[Candidate] = field(default_factory=list)

    def evidence(self) -> Evidence:
        """Everything measured so far."""
        return Evidence(
            facts=dict(self.facts),
            outcomes={name: result.outcome.kind for name, result in self.bench.results.items()},
            trial_ids={name: result.spec.id for name, result in self.bench.results.items()},
        )

    def learn(self, *facts: Fact) -> None:
        """Add facts. A measured one is never replaced by an unmeasured one, and a trial's by a file's neither.

        Where two sources disagree on whether something was changed, "yes" stays: it keeps hypotheses alive, and a
        trial decides.
        """
        for fact in facts:
            known = self.facts.get(fact.name)
            is_known = known is not None and known.value != NOT_MEASURED
            stays = fact.value == NOT_MEASURED or (fact.name.endswith(".changed") and self.value(fact.name) == "yes")
            if not (is_known and stays):
                self.facts[fact.name] = fact

    def value(self, fact: str) -> str:
        """The fact's value; "" where it is not known at all."""
        return self.facts[fact].value if fact in self.facts else ""

    @property
    def num_trials(self) -> int:
        """Trials of this case that answer something: baseline, repeats and experiments."""
        healthy = 1 if self.bench.healthy is not None else 0
        return len(self.bench.results) + len(self.bench.repeats) + healthy


def bisect(investigation: Investigation, playbooks: Sequence[Playbook]) -> tuple[Verdict, Search]:
    """Run trials until one cause is established or nothing that can be run separates the rest."""
    bench = open_bench(investigation)
    search = Search(bench, playbooks)
    if investigation.checks is not None:
        search.learn(*investigation.checks.facts)
    if bench.baseline.performed.run.traces:
        search.learn(*baseline_facts(bench))
    search.learn(*commit_facts(bench), clipping_fact(bench))
    if bench.licence.holds and bench.replay.outcome.kind is not OutcomeKind.UNTESTABLE:
        _experiment(search)
    conclusion = conclude(playbooks, search.evidence(), bench.licence, bench.baseline.noise, search.unavailable)
    located = Located(Place())
    if conclusion.cause and bench.licence.holds:
        located = localise(bench, _playbook(playbooks, conclusion.cause), search.evidence())
    verdict = _verdict(search, conclusion, located)
    case = investigation.case
    case.write_json("facts.json", {"schema": "spike.facts/1", "facts": [to_payload(f) for f in search.facts.values()]})
    case.write_json("verdict.json", to_payload(verdict, schema=VERDICT_SCHEMA))
    case.record("bisect", f"{verdict.status.value}: {verdict.cause or 'no cause'}", 0, ("verdict.json", "facts.json"))
    return verdict, search


def _playbook(playbooks: Sequence[Playbook], cause: str) -> Playbook:
    return next(p for p in playbooks if p.id == cause)


def _experiment(search: Search) -> None:
    limit = search.bench.investigation.run.limits.max_trials
    while search.num_trials < limit:
        available = {n: cost(search.bench, n) for n in names() if n not in search.unavailable}
        ranked = rank_experiments(search.playbooks, search.evidence(), available)
        if not ranked:
            return
        best = ranked[0]
        try:
            prepared = prepare(search.bench, best.experiment)
        except Unavailable as reason:
            search.unavailable[best.experiment] = str(reason)
            continue
        search.choices.append(best)
        run_experiment(search.bench, best.experiment, prepared)
        _learn_from(search, best.experiment)
    search.unavailable |= dict.fromkeys(names(), f"the limit of {limit} trials was reached")


def _learn_from(search: Search, experiment: str) -> None:
    bench = search.bench
    kind = bench.results[experiment].outcome.kind
    match experiment:
        case "other-commit":
            search.learn(*commit_facts(bench), clipping_fact(bench))
        case "earlier-checkpoint":
            search.learn(*earlier_checkpoint_facts(bench))
        case "control-batch" if kind is OutcomeKind.ABSENT:
            narrow_step(bench)


def _verdict(search: Search, conclusion: Conclusion, located: Located) -> Verdict:
    return Verdict(
        status=conclusion.status,
        cause_class=conclusion.cause_class,
        cause=conclusion.cause,
        step=_step(search, conclusion),
        because=conclusion.because,
        where=located.place,
        evidence=tuple(r.spec.id for r in search.bench.results.values()),
        findings=(*located.findings, *conclusion.findings),
        rejected=conclusion.rejected,
        inseparable=conclusion.inseparable,
        num_trials=search.num_trials,
        next=conclusion.next or _settling(search, conclusion),
    )


def _settling(search: Search, conclusion: Conclusion) -> tuple[Suggestion, ...]:
    if conclusion.status is Status.ESTABLISHED:
        return ()
    return tuple(Suggestion(name, reason) for name, reason in list(search.unavailable.items())[:6])


def _step(search: Search, conclusion: Conclusion) -> int | None:
    """Where the cause first acts, in attempted steps."""
    if not conclusion.cause:
        return None
    bench, evidence = search.bench, search.evidence()
    playbook = _playbook(search.playbooks, conclusion.cause)
    wanted = [*playbook.facts, *playbook.supported_by, *(f for way in playbook.confirm for f in way.facts)]
    for name, values in wanted:
        fact = evidence.facts.get(name)
        # A checkpoint shows what had happened by the time it was written, not when.
        if fact is not None and fact.step is not None and fact.value in values and not name.startswith("checkpoint."):
            return fact.step
    experiments = {e for way in playbook.confirm for e in (*way.trials, way.reversal) if e}
    if any(_acts_on_loaded_state(search, e) for e in experiments):
        return bench.first_step + 1
    return bench.suspect_step if bench.suspect_step is not None else bench.onset


def _acts_on_loaded_state(search: Search, experiment: str) -> bool:
    result = search.bench.results.get(experiment)
    intervention = result.spec.intervention if result is not None else None
    return (
        result is not None
        and result.outcome.kind is OutcomeKind.ABSENT
        and intervention is not None
        and intervention.factor in (Factor.CHECKPOINT, Factor.OPTIMIZER_STATE, Factor.CODE)
    )
