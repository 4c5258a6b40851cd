"""May the run be resumed with this one change? A longer trial with the remedy, held to the contract."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spike.actions.experiment.bench import Bench, Unavailable, open_healthy, uses_knob
from spike.actions.experiment.experiments import prepare
from spike.actions.experiment.investigation import Investigation
from spike.actions.experiment.trials import Performed, judge, perform
from spike.casefile.codec import from_payload, to_payload
from spike.domain.case import PinnedCheckpoint
from spike.domain.conditions import (
    healthy_steps_match,
    held_out,
    load_receipt,
    loss_on_trend,
    signature_gone,
    skip_counters,
    throughput,
    update_norm,
)
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.gate import Condition, ConditionState, GateDecision
from spike.domain.measured import NotMeasured
from spike.domain.playbook import Playbook, Remedy
from spike.domain.receipt import load_receipt as compare_receipt
from spike.domain.remote import is_url
from spike.domain.signals import LOSS
from spike.domain.trace import RankTrace
from spike.domain.trial import Factor, OutcomeKind, TrialResult, TrialSpec
from spike.domain.verdict import Status, Verdict
from spike.readers.source_tree import read_source

GATE_STEPS = 24
"""Steps beyond the judged window that the resumed run must also pass."""
MOST_SAVE_STEPS = 200
"""A run that saves more rarely is not trained on to its next checkpoint for the sake of the held-out number."""
GATE_SCHEMA = "spike.gate/1"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The remedy under test."""

    change: str
    """Intervention that tries it."""
    do: str
    because: str


def open_gate(
    bench: Bench,
    playbooks: Sequence[Playbook],
    *,
    change: str = "",
    waived: Collection[str] = (),
    operator: str = "",
) -> GateDecision:
    """Run the gate trial and decide.

    `change` overrides the remedy that the verdict's playbook prefers; `waived` names conditions that cannot be
    measured here and that `operator` answers for. A failing condition cannot be waived.
    """
    investigation = bench.investigation
    verdict = _verdict(investigation)
    chosen = _choose(verdict, playbooks, change)
    performed, result = _trial(bench, verdict, chosen)
    conditions = [_cause_known(verdict), *_conditions(bench, performed, result)]
    extra = next((p.gate for p in playbooks if p.id == verdict.cause), ())
    names = {c.name for c in conditions}
    conditions += [
        Condition(name, ConditionState.NOT_MEASURED, f"the playbook of {verdict.cause} asks for it")
        for name in extra
        if name not in names
    ]
    conditions = [_waive(c, waived, operator) for c in conditions]
    decision = GateDecision(
        is_open=all(c.state is ConditionState.HOLDS or c.waived_by for c in conditions),
        remedy=chosen.do,
        conditions=tuple(conditions),
        causal_note=_causal_note(bench, verdict, chosen, performed),
        resume_command=_resume_command(investigation, performed.run.spec, chosen),
        rollback_command=_rollback_command(investigation, performed.run.spec),
        trials=(performed.id,),
    )
    investigation.case.write_json("gate.json", to_payload(decision, schema=GATE_SCHEMA))
    word = "open" if decision.is_open else "closed"
    investigation.case.record("gate", f"{word}: {chosen.do}", 0 if decision.is_open else 1, ("gate.json",))
    return decision


def _verdict(investigation: Investigation) -> Verdict:
    payload = investigation.case.read_json("verdict.json")
    if payload is None:
        raise SpikeError("no verdict yet, so there is no remedy to gate", hint="spike bisect")
    return from_payload(Verdict, payload, schema="spike.verdict/1", source="verdict.json")


def _choose(verdict: Verdict, playbooks: Sequence[Playbook], change: str) -> Chosen:
    if change:
        return Chosen(change, f"resume with the change {change!r}, chosen by the operator", "chosen by the operator")
    remedies: tuple[Remedy, ...] = next((p.remedies for p in playbooks if p.id == verdict.cause), ())
    for remedy in remedies:
        if remedy.change:
            return Chosen(remedy.change, remedy.do, remedy.because)
    if remedies:
        # A remedy outside the process (another node): the unchanged command must simply hold.
        return Chosen("", remedies[0].do, remedies[0].because)
    raise SpikeError(
        f"the verdict is {verdict.status.value} and names no remedy: {verdict.because}",
        hint="spike gate --change NAME to test a change of your own, or spike report",
        exit_code=ExitCode.INCONCLUSIVE,
    )


def _trial(bench: Bench, verdict: Verdict, chosen: Chosen) -> tuple[Performed, TrialResult]:
    investigation = bench.investigation
    spec = _spec(bench, verdict, chosen)
    performed = perform(investigation, spec)
    by_knob = uses_knob(investigation, spec)
    result = judge(investigation, performed, bench.baseline, by_knob=by_knob)
    if by_knob and result.outcome.kind is OutcomeKind.UNTESTABLE:
        performed = perform(investigation, replace(spec, id=f"{spec.id}-by-probe", by_probe=True))
        result = judge(investigation, performed, bench.baseline)
    return performed, result


def _spec(bench: Bench, verdict: Verdict, chosen: Chosen) -> TrialSpec:
    base = bench.baseline.performed.run.spec
    stop = max(base.stop_after + GATE_STEPS, _next_save(bench))
    purpose = f"resume with one change through step {stop}: {chosen.do}"
    if not chosen.change:
        return replace(
            base, id="gate", purpose=purpose, stop_after=stop, capture_steps=(), module_steps=(), role="gate"
        )
    if verdict.step is not None and bench.suspect_step is None:
        batches = {b.step for b in bench.baseline.performed.run.batches}
        bench.suspect_step = verdict.step if verdict.step in batches and verdict.where.samples else None
    try:
        prepared = prepare(bench, chosen.change, until=stop)
    except Unavailable as reason:
        raise SpikeError(
            f"the remedy {chosen.change!r} cannot be tried here: {reason}",
            hint="spike gate --change NAME",
            exit_code=ExitCode.INCONCLUSIVE,
        ) from reason
    return replace(prepared.spec, id=f"gate-{chosen.change}", purpose=purpose, stop_after=stop, role="gate")


def _next_save(bench: Bench) -> int:
    """A step by which the command has saved once more, where a held-out number is wanted of what it saves."""
    good, earlier = bench.investigation.last_good, bench.earlier()
    if not bench.investigation.run.holdout or earlier is None:
        return 0
    interval = good.step - earlier.step
    return good.step + interval + 1 if interval <= MOST_SAVE_STEPS else 0


def _cause_known(verdict: Verdict) -> Condition:
    match verdict.status:
        case Status.ESTABLISHED:
            state, text = ConditionState.HOLDS, f"{verdict.cause} is established: {verdict.because}"
        case Status.SUPPORTED:
            state, text = ConditionState.NOT_MEASURED, f"{verdict.cause} is only supported: {verdict.because}"
        case Status.UNDETERMINED:
            state, text = ConditionState.NOT_MEASURED, f"no cause is known: {verdict.because}"
    return Condition("cause-established", state, text, verdict.evidence)


def _conditions(bench: Bench, performed: Performed, result: TrialResult) -> list[Condition]:
    investigation, trial = bench.investigation, performed.id
    gone = signature_gone(result.outcome, trial)
    if not performed.run.traces or not bench.baseline.performed.run.traces:
        return [gone]
    own, baseline = performed.run.traces[0], bench.baseline.performed.run.traces[0]
    intervention = performed.run.spec.intervention
    declared = intervention.steps if intervention is not None and intervention.name == "skip-batch" else ()
    first = min(intervention.steps, default=own.first_step + 1) if intervention is not None else bench.onset
    start = next((p for p in _pins(investigation) if p.original == performed.run.spec.checkpoint), None)
    receipt = (
        compare_receipt(performed.run.traces, bench.scan(start), bench.shards(performed.run, start))
        if start is not None
        else NotMeasured("the checkpoint of the gate trial is not pinned in the case")
    )
    replaces = intervention is not None and intervention.factor is Factor.OPTIMIZER_STATE
    before, after = _held_out(performed)
    return [
        gone,
        loss_on_trend(
            investigation.record.get(LOSS),
            performed.signals.get(LOSS),
            investigation.incident,
            investigation.last_good.step,
            trial,
        ),
        # A remedy that acts from the first step on leaves no step of this trial to compare; the unchanged trial from
        # the same checkpoint, which shows the incident, is its control.
        *(
            [healthy_steps_match(own, baseline, first, bench.baseline.noise, trial)]
            if first > own.first_step + 1
            else []
        ),
        update_norm(own, bench.onset, [baseline, *_healthy_traces(bench)], trial),
        _throughput(bench, own, trial),
        load_receipt(receipt, trial, replaces_moments=replaces),
        skip_counters(performed.run.traces, declared, trial),
        held_out(before, after, trial),
    ]


def _throughput(bench: Bench, own: RankTrace, trial: str) -> Condition:
    """Against the unchanged trial; one that looks slow is held against one more, run now: the machine may be busier."""
    base = bench.baseline.performed.run
    found = throughput(own, base.traces[0], trial)
    if found.state is not ConditionState.FAILS:
        return found
    control = replace(
        base.spec,
        id="gate-control",
        purpose="the unchanged command right after the gate's trial, for the time that a step takes now",
        capture_steps=(),
        module_steps=(),
        role="repeat",
    )
    performed = perform(bench.investigation, control)
    return throughput(own, performed.run.traces[0], trial) if performed.run.traces else found


def _healthy_traces(bench: Bench) -> tuple[RankTrace, ...]:
    """Traces of the unchanged command in an earlier state, where no healthy step lies before the onset otherwise."""
    if bench.healthy_steps():
        return ()
    healthy = open_healthy(bench)
    return healthy.performed.run.traces if healthy is not None else ()


def _pins(investigation: Investigation) -> list[PinnedCheckpoint]:
    facts = investigation.case.facts
    return [p for p in (facts.last_good, *facts.earlier) if p is not None]


def _held_out(performed: Performed) -> tuple[float | NotMeasured, float | NotMeasured]:
    """The two held-out numbers that the lab measured inside the trial's view."""
    from spike.lab.holdout import read_holdout

    return read_holdout(Path(performed.run.directory))


def _waive(condition: Condition, waived: Collection[str], operator: str) -> Condition:
    if condition.name in waived and condition.state is ConditionState.NOT_MEASURED:
        return replace(condition, waived_by=operator or "unnamed operator")
    return condition


def _causal_note(bench: Bench, verdict: Verdict, chosen: Chosen, performed: Performed) -> str:
    replayed = bench.baseline.performed.id
    repeats = ", ".join(p.id for p in bench.repeats)
    kind = bench.replay.outcome.kind.value
    parts = [
        f"From the same checkpoint, the unchanged command gives the incident as {kind} ({replayed}"
        f"{', again in ' + repeats if repeats else ''}); with this one change it is judged in {performed.id}.",
        chosen.because.rstrip(".") + ".",
    ]
    if verdict.status is Status.ESTABLISHED:
        parts.append(f"The cause is {verdict.because}.")
    else:
        parts.append(f"The cause is {verdict.status.value} only, so a coincidence is not excluded: {verdict.because}.")
    return " ".join(parts)


def _resume_command(investigation: Investigation, spec: TrialSpec, chosen: Chosen) -> str:
    """The launch command from the gated checkpoint, with the change where a command can hold it.

    A change that only the probe made is not in the command: it has to be made by hand first, and the comment says so.
    """
    run, change = investigation.run, spec.intervention
    line = run.launch.replace("{checkpoint}", shlex.quote(_resumable(investigation, spec)))
    line = line.replace("{workdir}", shlex.quote(run.directory)).replace("{step}", str(spec.first_step))
    start = f"cd {shlex.quote(run.cwd or run.directory)} && "
    if change is None:
        return start + line
    if uses_knob(investigation, spec):
        knob = run.knob(change.name, change.factor.value) or ""
        value = change.parameters[0][1] if change.parameters else ""
        first = str(value[0]).rpartition(":")[2] if isinstance(value, tuple) and value else str(value)
        return f"{start}{line} {knob.replace('{value}', first)}"
    if change.factor is Factor.CODE:
        return f"{_checkout(run.code or run.directory, spec.commit)} && {start}{line}"
    if change.factor is Factor.CHECKPOINT:
        return start + line
    return f"{start}{line}  # only after: {chosen.do}"


def _checkout(directory: str, commit: str) -> str:
    """Put the work tree at this commit; changes that were never committed are put aside, not lost."""
    git, state = f"git -C {shlex.quote(directory)}", read_source(Path(directory))
    if isinstance(state, NotMeasured) or not state.patch:
        return f"{git} checkout {commit}"
    aside = f"{git} stash push"
    return aside if state.commit == commit else f"{aside} && {git} checkout {commit}"


def _resumable(investigation: Investigation, spec: TrialSpec) -> str:
    """The path that the gated command took: of a checkpoint in a store its copy, which is known to load."""
    pin = next((p for p in _pins(investigation) if p.original == spec.checkpoint), None)
    if pin is None or not is_url(pin.original):
        return spec.checkpoint
    return str(investigation.pinned_path(pin))


def _rollback_command(investigation: Investigation, spec: TrialSpec) -> str:
    """Put the checkpoint that the run is resumed from back as it was frozen."""
    good = next((p for p in _pins(investigation) if p.original == spec.checkpoint), investigation.last_good)
    pinned = investigation.pinned_path(good)
    source = shlex.quote(str(pinned))
    if is_url(good.original):
        several = "--recursive " if pinned.is_dir() else ""
        tool = "aws s3 cp" if good.original.startswith("s3://") else "# copy with the store's own tool:"
        return f"{tool} {several}{source} {shlex.quote(good.original)}"
    return f"cp -aT --no-preserve=mode {source} {shlex.quote(good.original)}"
