"""What happened when this trial was run? Run it (or find that it was run), and judge it against its baseline."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from spike.actions.experiment.investigation import Investigation
from spike.casefile.codec import from_payload, to_payload
from spike.domain.detect.ranks import seen_by
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.factors import Uncontrolled, differences, identical_results, observe, undeclared
from spike.domain.licence import step_offset
from spike.domain.noise import TOLERANCE_IN_SPREADS
from spike.domain.outcome import Window, judge_outcome
from spike.domain.redaction import redact
from spike.domain.remote import is_url, shown_url
from spike.domain.signals import Series, Signals
from spike.domain.traced import completed, renumbered
from spike.domain.trial import (
    Factor,
    FactorDifference,
    Intervention,
    NoiseFloor,
    Outcome,
    OutcomeKind,
    TrialResult,
    TrialRun,
    TrialSpec,
)
from spike.lab.catalogue import interventions
from spike.lab.runner import TrialRequest, run_trial
from spike.lab.traces import read_batches, read_traces
from spike.readers.checkpoints import find_checkpoints
from spike.readers.metrics import read_signals

UNJUDGED = ("repeat", "control")
"""Roles of trials that are compared with, and have no outcome of their own that the journal would hold."""
UNTOUCHED = "untouched"
"""What a rank says of a change that is for others."""
ASSUMED_STEPS = "assumed-steps"
"""The note of the console reader on rows that had no step of their own."""
TRIAL_SCHEMA, RUN_SCHEMA, OUTCOME_SCHEMA = "spike.trial/1", "spike.trial-run/1", "spike.outcome/1"


@dataclass(frozen=True, slots=True)
class Performed:
    """A trial with what it logged, ready to be judged."""

    run: TrialRun
    signals: Signals
    """The trial's own log, completed from its trace where the log has no loss or gradient norm."""

    @property
    def id(self) -> str:
        """The trial's id."""
        return self.run.spec.id


def perform(investigation: Investigation, spec: TrialSpec) -> Performed:
    """Run the trial, or reload it where the same spec was run before in this case.

    `spec.id` is the part after the number ("control-batch"); the number is given here.
    """
    known = _find_same(investigation, spec)
    if known is not None:
        return known
    own_id = _left_unfinished(investigation, spec) or f"T{_next_number(investigation):03d}-{spec.id}"
    numbered = replace(spec, id=own_id)
    directory = investigation.case.trial_dir(numbered.id)
    investigation.case.write_json(f"trials/{numbered.id}/trial.json", to_payload(numbered, schema=TRIAL_SCHEMA))
    investigation.talk(f"{numbered.id}: {numbered.purpose}")
    run = run_trial(
        _request(investigation, numbered, directory),
        on_step=lambda done, total: investigation.on_step(numbered.id, done, total),
        redact=redact,
    )
    stored = replace(run, traces=(), batches=())
    investigation.case.write_json(f"trials/{numbered.id}/run.json", to_payload(stored, schema=RUN_SCHEMA))
    if run.ended == "interrupted":
        # The lab has ended its processes and cleaned up; the command ends here, and goes on when typed again.
        raise KeyboardInterrupt
    if numbered.role in UNJUDGED:
        # Noise floor and controls stand on it: its files must not change unseen either.
        summary = f"ran to its end: {run.ended}"
        investigation.case.record(f"trial {numbered.id}", summary, 0, (f"trials/{numbered.id}",))
    return Performed(run, _signals(investigation, run))


def _next_number(investigation: Investigation) -> int:
    numbers = [int(name[1:4]) for name in investigation.case.trial_ids() if name[:1] == "T" and name[1:4].isdigit()]
    return max(numbers, default=0) + 1


def _left_unfinished(investigation: Investigation, spec: TrialSpec) -> str:
    """Id of the same trial that a killed command had begun, to be run again in its place; "" where there is none."""
    case = investigation.case
    for trial_id in case.trial_ids():
        payload = case.read_json(f"trials/{trial_id}/trial.json")
        if payload is None or (case.path / "trials" / trial_id / "run.json").exists():
            continue
        stored = from_payload(TrialSpec, payload, schema=TRIAL_SCHEMA, source=f"trials/{trial_id}/trial.json")
        if replace(stored, id=spec.id, purpose=spec.purpose) == spec:
            return trial_id
    return ""


def _find_same(investigation: Investigation, spec: TrialSpec) -> Performed | None:
    """A finished trial of this case with the same spec; an interrupted one is run again."""
    for trial_id in investigation.case.trial_ids():
        payload = investigation.case.read_json(f"trials/{trial_id}/trial.json")
        finished = investigation.case.read_json(f"trials/{trial_id}/run.json")
        if payload is None or finished is None:
            continue
        stored = from_payload(TrialSpec, payload, schema=TRIAL_SCHEMA, source=f"trials/{trial_id}/trial.json")
        if replace(stored, id=spec.id, purpose=spec.purpose) != spec:
            continue
        run = from_payload(TrialRun, finished, schema=RUN_SCHEMA, source=f"trials/{trial_id}/run.json")
        if run.ended == "interrupted":
            continue
        directory = investigation.case.path / "trials" / trial_id
        loaded = replace(
            run,
            traces=read_traces(directory),
            batches=read_batches(directory),
            metrics_dir=str(directory / "metrics"),
            directory=str(directory),
        )
        return Performed(loaded, _signals(investigation, loaded))
    return None


def _request(investigation: Investigation, spec: TrialSpec, directory: Path) -> TrialRequest:
    """The lab's request: where the checkpoint's intact bytes are, and what a command must not resume from instead."""
    facts, run = investigation.case.facts, investigation.run
    pins = [p for p in (facts.last_good, *facts.earlier, *facts.suspect) if p is not None]
    pinned = next((p for p in pins if p.original == spec.checkpoint), None)
    hide: tuple[str, ...] = ()
    place: tuple[tuple[str, str], ...] = ()
    if "{checkpoint}" not in run.launch:
        hide = _later_checkpoints(investigation, spec.first_step)
        place = _pointers(spec, directory)
    return TrialRequest(
        run=run,
        spec=spec,
        directory=str(directory),
        pinned=str(investigation.pinned_path(pinned)) if pinned is not None else "",
        metric_files=tuple(source.path for source in investigation.record.sources if not is_url(source.path)),
        hide=hide,
        place=place,
        commit="" if spec.commit else investigation.code.commit,
        patch="" if spec.commit else investigation.code.patch,
    )


def _later_checkpoints(investigation: Investigation, step: int) -> tuple[str, ...]:
    """Checkpoints that a command which resumes from the newest would take instead."""
    run = investigation.run
    if is_url(run.checkpoints):
        raise SpikeError(
            f"the launch command has no {{checkpoint}}: it would resume from {shown_url(run.checkpoints)} by itself,"
            " and no trial can hide what lies in an object store",
            hint="put {checkpoint} where the command takes the path to resume from: launch: in spike.yaml",
        )
    found = find_checkpoints(Path(run.directory), run.checkpoints)
    return tuple(c.path for c in found if isinstance(c.step, int) and c.step > step)


POINTERS = ("latest", "latest_checkpointed_iteration.txt")
"""Files by which DeepSpeed and Megatron name the checkpoint to resume from."""


def _pointers(spec: TrialSpec, directory: Path) -> tuple[tuple[str, str], ...]:
    """(rewritten copy, pointer file): the pointer beside the checkpoint, naming this one."""
    placed = []
    for name in POINTERS:
        pointer = Path(spec.checkpoint).parent / name
        if not pointer.is_file():
            continue
        text = pointer.read_text(errors="replace")
        own = directory / "pointers" / name
        own.parent.mkdir(exist_ok=True)
        own.write_text(re.sub(r"\d+", lambda found: f"{spec.first_step:0{len(found[0])}d}", text, count=1))
        placed.append((str(own), str(pointer)))
    return tuple(placed)


def _signals(investigation: Investigation, run: TrialRun) -> Signals:
    logged = seen_by(_logged(investigation, run), investigation.incident.rank)
    rank = investigation.incident.rank
    traces = [t for t in run.traces if rank is None or t.process.rank == rank] or list(run.traces)
    if not traces:
        return logged
    return completed(logged, traces, offset=step_offset(logged, traces[0]))


def _logged(investigation: Investigation, run: TrialRun) -> Signals:
    """What the trial logged: the counterparts of the record's own files, completed from everything else it wrote.

    A run may log the same loss to a file in full and to the console in four digits; only like is held against like.
    """
    metrics = Path(run.metrics_dir)
    if not metrics.is_dir():
        return Signals()
    columns = dict(investigation.run.columns)
    twins = [_twin(metrics, source.path) for source in investigation.record.sources]
    # A console log that the operator redirected is the trial's own standard output.
    own = [twin if twin.is_file() else metrics / "stdout.log" for twin in twins]
    found = Signals()
    for paths in (list(dict.fromkeys(own)), [metrics]):
        names = set(found.names())
        more = _read([path for path in paths if path.exists()], metrics, columns)
        if any(pattern == ASSUMED_STEPS for pattern, _ in more.notes):
            more = renumbered(more, investigation.record, first_step=run.spec.first_step)
        found = replace(found, series=(*found.series, *(s for s in more.series if s.name not in names)))
    return found


def _twin(metrics: Path, source: str) -> Path:
    """What the trial wrote of a file of the record; of a log in an object store, the file of the same name."""
    if not is_url(source):
        return metrics / source
    name = source.rpartition("/")[2]
    return next((path for path in sorted(metrics.rglob("*")) if path.name == name), metrics / name)


def _read(paths: list[Path], base: Path, columns: dict[str, str]) -> Signals:
    try:
        return read_signals(paths, base=base, columns=columns) if paths else Signals()
    except InputUnreadable:
        return Signals()


@dataclass(frozen=True, slots=True)
class Baseline:
    """The unchanged trial that others are held against."""

    performed: Performed
    noise: NoiseFloor
    offset: int
    """Logged step minus attempted step."""
    uncontrolled: Uncontrolled = frozenset()
    """What unchanged trials differ in already; the noise floor of the factors."""


def judge(
    investigation: Investigation,
    performed: Performed,
    baseline: Baseline | None,
    *,
    by_knob: bool = False,
    shift: int = 0,
    reference: dict[str, Series] | None = None,
) -> TrialResult:
    """Judge a trial, store the result in the case and the journal.

    `baseline` is None for the baseline itself. `shift` (logged steps) and `reference` are for a trial whose
    suspect batch acts at another, healthy step.
    """
    run, spec = performed.run, performed.run.spec
    found = (
        () if baseline is None else differences(observe(baseline.performed.run), observe(run), baseline.uncontrolled)
    )
    effect = None if spec.intervention is None else _took_effect(spec.intervention, run, baseline, by_knob=by_knob)
    problem = untestable(run) or _not_one_change(spec, found, by_knob=by_knob) or _no_effect(spec, run, effect)
    if not problem and baseline is not None:
        problem = _parted_early(spec, run, baseline)
    if problem:
        outcome = Outcome(OutcomeKind.UNTESTABLE, problem)
    else:
        window = _window(investigation, spec, baseline)
        outcome = judge_outcome(
            investigation.incident, investigation.record, performed.signals, window, reference=reference, shift=shift
        )
    result = TrialResult(spec, outcome, run.guard, run.seconds, found, effect, run.ended)
    relative = f"trials/{spec.id}/outcome.json"
    payload = to_payload(result, schema=OUTCOME_SCHEMA)
    if investigation.case.read_json(relative) != payload:
        # A trial that is only judged again, with the same result, is no new act.
        investigation.case.write_json(relative, payload)
        summary = f"{outcome.kind.value}: {outcome.reason}"
        investigation.case.record(f"trial {spec.id}", summary, 0, (f"trials/{spec.id}",))
    investigation.talk(f"{spec.id}: {outcome.kind.value} - {outcome.reason}")
    return result


def untestable(run: TrialRun) -> str:
    """Why this trial shows nothing at all, or ""."""
    tail = f"; it last said: {run.stderr_tail.strip().splitlines()[-1]}" if run.stderr_tail.strip() else ""
    match run.ended:
        case "launch-failed":
            return f"the launch command could not be started{tail}"
        case "time-limit":
            return f"the command was ended after {run.seconds:.0f} s, its time limit (limits.trial_minutes){tail}"
    if not run.traces or not any(t.steps for t in run.traces):
        return f"the command made no optimizer step under the probe (exit {run.exit_code}){tail}"
    reached = min((t.steps[-1].step for t in run.traces if t.steps), default=0)
    wanted = run.spec.stop_after
    if reached < wanted and run.ended != "window-complete" and run.exit_code != 0:
        # A command that dies on the incident itself (an assertion on a NaN loss) has still shown it; what was
        # logged decides, and missing steps are found there.
        return "" if reached >= wanted - 3 else f"the command ended (exit {run.exit_code}) after step {reached}{tail}"
    return ""


def _not_one_change(spec: TrialSpec, found: tuple[FactorDifference, ...], *, by_knob: bool) -> str:
    extra = undeclared(spec.intervention.factor if spec.intervention else None, found, by_knob=by_knob)
    if not extra:
        return ""
    text = "; ".join(f"{d.factor.value} at {d.where}: {d.baseline[:60]} -> {d.trial[:60]}" for d in extra)
    return f"more than the declared change differs from the baseline: {text}"


def _took_effect(intervention: Intervention, run: TrialRun, baseline: Baseline | None, *, by_knob: bool) -> bool | None:
    """True where the live process proved the change on every rank."""
    if not interventions()[intervention.name].is_in_process:
        # The view itself makes these changes; the load receipt and the fingerprints show them.
        return bool(run.traces)
    if by_knob:
        same = baseline is not None and identical_results(baseline.performed.run, run)
        changed = baseline is None or not same or _arguments_differ(run, baseline)
        return changed and _reached_rates(intervention, run)
    reached = [t for t in run.traces if t.steps]
    is_made = any(not e.after.startswith(UNTOUCHED) for t in reached for e in t.effects)
    return is_made and all(t.effects and all(e.took_effect for e in t.effects) for t in reached)


KNOB_RATE_TOLERANCE = 0.10
"""A command's own argument sets a peak or a constant; it will do when the rates it leads to are this near."""


def _reached_rates(intervention: Intervention, run: TrialRun) -> bool:
    """True where the command's own argument led to the rates that were asked for; for other factors always."""
    wanted = intervention.parameter("lr")
    if intervention.factor is not Factor.LEARNING_RATE or not isinstance(wanted, tuple):
        return True
    rates = dict(str(item).split(":", 1) for item in wanted)
    used = [(s.lr[0], float(rates[str(s.step)])) for t in run.traces for s in t.steps if str(s.step) in rates and s.lr]
    return bool(used) and all(abs(lr - want) <= KNOB_RATE_TOLERANCE * want for lr, want in used)


def _arguments_differ(run: TrialRun, baseline: Baseline) -> bool:
    pairs = zip(run.traces, baseline.performed.run.traces, strict=False)
    return any(a.process.argv != b.process.argv for a, b in pairs)


def _no_effect(spec: TrialSpec, run: TrialRun, effect: bool | None) -> str:
    if spec.intervention is None or effect:
        return ""
    failed = [e for t in run.traces for e in t.effects if not e.took_effect]
    if failed:
        e = failed[0]
        return f"the change did not take effect at step {e.step}: {e.what} {e.before[:60]} -> {e.after[:80]}"
    errors = [error for t in run.traces for error in t.errors]
    return f"the probe never made the change{': ' + errors[0] if errors else ''}"


def _parted_early(spec: TrialSpec, run: TrialRun, baseline: Baseline) -> str:
    """A trial must equal its baseline until the change acts; else something else was changed, too."""
    intervention = spec.intervention
    if intervention is None or not intervention.steps or spec.first_step != baseline.performed.run.spec.first_step:
        return ""
    first = min(intervention.steps)
    for trace in run.traces:
        other = next((t for t in baseline.performed.run.traces if t.process.rank == trace.process.rank), None)
        for step in trace.steps:
            twin = other.step(step.step) if other is not None else None
            if twin is None or step.step >= first:
                continue
            tolerance = TOLERANCE_IN_SPREADS * baseline.noise.of("loss")
            if abs(step.loss - twin.loss) > tolerance:
                return (
                    f"the trial left its baseline at step {step.step} (loss {twin.loss:.9g} -> {step.loss:.9g}), "
                    f"before its change acts at step {first}"
                )
    return ""


def _window(investigation: Investigation, spec: TrialSpec, baseline: Baseline | None) -> Window:
    offset = baseline.offset if baseline is not None else 0
    excluded: frozenset[int] = frozenset()
    if spec.intervention is not None and spec.intervention.name == "skip-batch":
        # The loss and gradient of a withheld step are computed all the same; what counts is what follows.
        excluded = frozenset(step + offset for step in spec.intervention.steps)
    return Window(investigation.incident.onset_step, investigation.last_step, excluded)
