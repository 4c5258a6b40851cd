"""How does a trial become facts? View, probe, command, traces: one call, and nothing of the run has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from spike.domain.errors import ExitCode, SpikeError
from spike.domain.run import Run
from spike.domain.trace import RankTrace
from spike.domain.trial import Intervention, TrialRun, TrialSpec
from spike.lab import command, source
from spike.lab.evaluate import evaluate
from spike.lab.guards.choice import Mechanism, mechanisms
from spike.lab.guards.entry import Entry
from spike.lab.launch import Finished, OnStep, run_command
from spike.lab.logged import collect_logs
from spike.lab.placement import placement
from spike.lab.plans import plan, write_plan
from spike.lab.roots import Wanted
from spike.lab.staging import probe_environment, stage_probe
from spike.lab.traces import PATHS, read_batches, read_traces, write_paths
from spike.lab.view import View, importable, prepare, remove_tree, scratch_for

DIGESTS = "checkpoint_digests.json"
"""Where the caller may put the checkpoint's tensor digests, in the trial directory, for the probe to compare."""

_OWN_FILES = ("plan.json", "knob.json", "guard.json", "holdout.json", PATHS, "stdout.log", "stderr.log")
_OWN_FOLDERS = ("trace", "batches", "metrics", "stage")
_TEXTS = frozenset({".jsonl", ".json", ".csv", ".tsv", ".log", ".out", ".txt"})
_TAIL_LINES = 40
_TAIL_BYTES = 32 << 10
_NOT_FOUND = (126, 127)

Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Everything that one trial needs; self-contained, so that another machine can run it."""

    run: Run
    spec: TrialSpec
    directory: str
    """Trial directory, absolute; plan, logs, traces, batches and metrics go below it."""
    pinned: str
    """Absolute path of the intact copy of `spec.checkpoint`; "" where there is none."""
    metric_files: tuple[str, ...]
    """Files and directories that the run logs to, absolute or relative to the run."""
    hide: tuple[str, ...] = ()
    """Paths that the trial must not see: later checkpoints, for a command that resumes from the newest."""
    place: tuple[tuple[str, str], ...] = ()
    """(source, destination), both absolute: what the trial sees at the destination."""
    patch: str = ""
    """Recorded uncommitted changes, applied on top of `spec.commit` or `commit`."""
    commit: str = ""
    """Recorded commit, where the tree has moved on since; "" uses the code that is there."""


def _nothing(done: int, total: int) -> None:
    del done, total


def _unchanged(text: str) -> str:
    return text


def run_trial(request: TrialRequest, *, on_step: OnStep = _nothing, redact: Redact = _unchanged) -> TrialRun:
    """Run one trial under the strongest guard that works, and read what it left.

    `ended` is "interrupted" after Ctrl-C or TERM: the trial is over and cleaned up, and the caller should stop.
    Raises SpikeError where the trial cannot be set up at all: no launch command, code that cannot be had, or no guard.
    """
    if not request.run.launch:
        raise SpikeError(
            "spike.yaml names no launch command, so nothing can be replayed",
            hint="add `launch:` with the training command and {checkpoint}",
        )
    directory = Path(request.directory)
    clean(directory)
    options = mechanisms()
    for mechanism in options:
        found = _attempt(request, directory, mechanism, on_step, redact)
        if isinstance(found, TrialRun):
            return found
    raise SpikeError(
        f"no guard could protect {request.run.directory} from trial {request.spec.id}: {found}",
        hint="set SPIKE_SCRATCH to a directory on a local disk, or unset SPIKE_GUARD",
        exit_code=ExitCode.INCONCLUSIVE,
    )


def clean(directory: Path) -> None:
    """Remove what an earlier attempt of this trial left; its specification stays."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in _OWN_FILES:
        (directory / name).unlink(missing_ok=True)
    for name in _OWN_FOLDERS:
        shutil.rmtree(directory / name, ignore_errors=True)


def _attempt(
    request: TrialRequest, directory: Path, mechanism: Mechanism, on_step: OnStep, redact: Redact
) -> TrialRun | str:
    """The trial under this guard, or why the guard did not hold."""
    run, spec = request.run, request.spec
    scratch = scratch_for(directory, run)
    remove_tree(scratch)
    scratch.mkdir(parents=True)
    try:
        view = prepare(_wanted(request, directory, scratch, mechanism), mechanism, scratch)
        entry = _entry(request, directory, view)
        finished = run_command(
            entry,
            directory,
            first_step=spec.first_step,
            stop_after=spec.stop_after,
            limit_s=run.limits.trial_minutes * 60.0,
            on_step=on_step,
        )
        if finished.ended == "guard-failed":
            return f"{mechanism.guard}: {finished.report.failed_stage}: {finished.report.error}"
        _write_guard(directory, mechanism, finished)
        _refuse_changes(view, request)
        metrics = directory / "metrics"
        metrics.mkdir(exist_ok=True)
        collect_logs(view.written(), run.directory, metrics)
        for path in metrics.rglob("*"):
            if path.suffix in _TEXTS:
                _redact_file(path, redact)
        found = _facts(request, directory, view, finished, redact)
        if spec.role == "gate" and run.holdout and found.ended == "window-complete":
            evaluate(view, run, directory, _checkpoint(request, view), spec.first_step, redact)
        return found
    finally:
        if not os.environ.get("SPIKE_KEEP_VIEW"):
            remove_tree(scratch)
        for place in {importable(directory), importable(scratch)} - {directory, scratch}:
            remove_tree(place)


def _metric_places(request: TrialRequest) -> tuple[str, ...]:
    return tuple(os.path.normpath(Path(request.run.directory) / name) for name in request.metric_files)


def _wanted(request: TrialRequest, directory: Path, scratch: Path, mechanism: Mechanism) -> Wanted:
    run, spec = request.run, request.spec
    place = (*placement(spec.checkpoint, request.pinned, scratch, mechanism.guard), *request.place)
    wanted = Wanted(run, directory, request.pinned, place, (), request.hide, _metric_places(request))
    commit = spec.commit or request.commit
    if not commit:
        return wanted
    state = source.materialise(run.code or run.directory, commit, request.patch, scratch / "code")
    return replace(
        wanted,
        merge=((state.files, state.root),),
        hide=(*request.hide, *state.absent),
        code_root=state.root,
    )


def _checkpoint(request: TrialRequest, view: View) -> str:
    """The checkpoint's path as the trial sees it: the original one, or the pinned copy where that cannot be shown."""
    original = request.spec.checkpoint
    seen = view.path(original)
    wanted = any(original == destination for destination, _ in view.placed)
    shown = (original, True) in view.placed or (not wanted and Path(original).exists())
    return seen if shown or not request.pinned else request.pinned


def _value(change: Intervention) -> str:
    """The first parameter as one value for a knob's {value}."""
    if not change.parameters:
        return ""
    value = change.parameters[0][1]
    if not isinstance(value, tuple):
        return str(value)
    # A rate for each step, "201:0.00185": a command takes one, and that of the first step is what it has to reach.
    return str(value[0]).rpartition(":")[2] if value else ""


def _knob(request: TrialRequest, directory: Path) -> str:
    """Arguments by which the command itself makes the change, recorded in knob.json; "" where there are none."""
    change = request.spec.intervention
    arguments = request.run.knob(change.name, change.factor.value) if change is not None else None
    if change is None or arguments is None or request.spec.by_probe:
        return ""
    filled = arguments.replace("{value}", _value(change))
    facts = {"schema": "spike.knob/1", "intervention": change.name, "value": _value(change), "arguments": filled}
    (directory / "knob.json").write_text(json.dumps(facts, indent=2) + "\n")
    return filled


def _entry(request: TrialRequest, directory: Path, view: View) -> Entry:
    run, spec = request.run, request.spec
    checkpoint = _checkpoint(request, view)
    knob = _knob(request, directory)
    digests = directory / DIGESTS
    plan_path = directory / "plan.json"
    payload = plan(
        spec,
        str(directory),
        checkpoint=checkpoint,
        digests=str(digests) if digests.exists() else "",
        knob=spec.intervention.name if knob and spec.intervention else "",
    )
    write_plan(plan_path, payload)
    argv = command.arguments(
        run.launch,
        checkpoint=checkpoint,
        step=spec.first_step,
        workdir=view.path(run.directory),
        extra=knob,
        rewrite=view.rewrite,
    )
    cwd = view.path(run.cwd or run.directory)
    stage = stage_probe(importable(directory) / "stage")
    return replace(view.entry, argv=argv, cwd=cwd, env=probe_environment(stage, plan_path, view.environment(run, cwd)))


def _write_guard(directory: Path, mechanism: Mechanism, finished: Finished) -> None:
    """What kept the run safe, and where that was done in another way than wanted (writes held in memory)."""
    facts = {
        "schema": "spike.guard/1",
        "guard": mechanism.guard,
        "user_namespace": mechanism.user_namespace,
        "pid_namespace": mechanism.pid_namespace,
        "notes": list(finished.report.notes),
    }
    (directory / "guard.json").write_text(json.dumps(facts, indent=2) + "\n")


def _refuse_changes(view: View, request: TrialRequest) -> None:
    """A guard that is not the kernel's is checked afterwards: a changed run is never passed over."""
    changed = view.changes_outside()
    if changed:
        raise SpikeError(
            f"{len(changed)} files of the run changed during trial {request.spec.id}, first {changed[0]} "
            f"(guard: {view.guard})",
            hint="spike verify compares the evidence; end the run itself if it is still writing",
            exit_code=ExitCode.ANSWER_NO,
        )


def _ended(finished: Finished, traces: tuple[RankTrace, ...]) -> str:
    complete = bool(traces) and len(traces) >= traces[0].process.world
    if complete and all(trace.end == "window-complete" for trace in traces):
        return "window-complete"
    if finished.ended == "exited" and not traces and finished.report.code in _NOT_FOUND:
        return "launch-failed"
    return finished.ended


def _facts(request: TrialRequest, directory: Path, view: View, finished: Finished, redact: Redact) -> TrialRun:
    for name in ("stdout.log", "stderr.log"):
        _redact_file(directory / name, redact)
        shutil.copyfile(directory / name, directory / "metrics" / name)
    write_paths(directory, view.seen_to_real())
    traces = read_traces(directory)
    said = finished.report.error or _tail(directory / "stderr.log") or _tail(directory / "stdout.log")
    return TrialRun(
        spec=request.spec,
        ended=_ended(finished, traces),
        exit_code=finished.report.code,
        seconds=finished.seconds,
        guard=view.guard,
        traces=traces,
        batches=read_batches(directory),
        metrics_dir=str(directory / "metrics"),
        stderr_tail=redact(view.real_text(said)),
        directory=str(directory),
    )


def _redact_file(path: Path, redact: Redact) -> None:
    """Logs stay in the case, which is handed to others; rewritten only where something is redacted."""
    temporary = path.with_name(path.name + ".tmp")
    changed = False
    with (
        path.open(errors="surrogateescape", newline="") as lines,
        temporary.open("w", errors="surrogateescape", newline="") as kept,
    ):
        for line in lines:
            clean_line = redact(line)
            changed = changed or clean_line != line
            kept.write(clean_line)
    if changed:
        temporary.replace(path)
    else:
        temporary.unlink()


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])
