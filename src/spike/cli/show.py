"""spike show: look at a captured batch, a trial, the signals, the tensors of a checkpoint, the formats."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, progress, talk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spike.actions.show import BatchView, Sample, TrialView
    from spike.casefile.case import Case
    from spike.casefile.signals_store import Cell

MAX_SAMPLES = 16
"""Samples of one tensor that are printed; --json has them all."""

show = typer.Typer(
    no_args_is_help=True,
    help="Look at what is really in a batch, a trial, the signals, a checkpoint.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
TrialArgument = Annotated[str, typer.Argument(help="The trial: T003-skip-batch, its number, or its name.")]


def _case(run: Path, case: Path | None) -> Case:
    from spike.actions.status import run_and_case
    from spike.domain.errors import SpikeError

    described, opened = run_and_case(run, case)
    if opened is None:
        raise SpikeError(f"the run in {described.directory} has no case yet", hint="spike freeze")
    return opened


@show.command("batch")
def batch(
    trial: TrialArgument,
    step: Annotated[int | None, typer.Option("--step", "-s", help="Only this step.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank.")] = None,
    run: RunOption = Path(),
    case: CaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the batches that a trial kept: token ids, how they repeat, and as text where they are bytes."""
    from spike.actions.show import show_batch

    found = show_batch(_case(run, case), trial, step=step, rank=rank)
    if as_json:
        from spike.casefile.codec import to_payload

        emit_json({"schema": "spike.show-batch/1", "batches": [to_payload(b) for b in found]})
        return
    for view in found:
        for line in _batch_lines(view):
            answer(line)


def _batch_lines(view: BatchView) -> Iterator[str]:
    from spike.report.text import visible

    where = view.captured
    yield f"step {where.step}, rank {where.rank}, micro-batch {where.micro}, content {where.digest}"
    for tensor in view.tensors:
        shape = "x".join(str(n) for n in tensor.shape) or "scalar"
        yield f"  {visible(tensor.site)}: {tensor.dtype} {shape} {tensor.summary}".rstrip()
        for sample in tensor.samples[:MAX_SAMPLES]:
            yield f"    {_sample_line(sample)}"
        if len(tensor.samples) > MAX_SAMPLES:
            yield f"    and {len(tensor.samples) - MAX_SAMPLES} more; --json has them all"


def _sample_line(sample: Sample) -> str:
    from spike.report.text import visible

    token, share = sample.most_common
    facts = f"{sample.num_distinct} distinct of {sample.num_ids}, most common {token} ({share:.0%})"
    if sample.num_ignored:
        facts += f", {sample.num_ignored} ignored"
    if sample.text:
        shown = visible(sample.text)
        return f"{sample.position:>4}  {facts}: {shown[:120]!r}{'…' if len(shown) > 120 else ''}"
    ids = " ".join(str(i) for i in sample.ids[:16])
    return f"{sample.position:>4}  {facts}: {ids}{' …' if sample.num_ids > 16 else ''}"


@show.command("trial")
def trial(trial: TrialArgument, run: RunOption = Path(), case: CaseOption = None, as_json: JsonOption = False) -> None:
    """Show what a trial declared, what was observed in the live process, and what became of the incident."""
    from spike.actions.show import show_trial

    found = show_trial(_case(run, case), trial)
    if as_json:
        emit_json(_trial_payload(found))
        return
    from spike.report.terminal import labelled

    answer(labelled(_trial_lines(found)))


def _trial_payload(found: TrialView) -> dict[str, Any]:
    from spike.casefile.codec import to_payload

    return {
        "schema": "spike.show-trial/1",
        "declared": to_payload(found.spec),
        "observed": to_payload(found.result) if found.result is not None else None,
        "effects": [to_payload(e) | {"rank": t.process.rank} for t in found.traces for e in t.effects],
        "processes": [to_payload(t.process) for t in found.traces],
    }


def _trial_lines(found: TrialView) -> Iterator[tuple[str, str]]:
    from spike.report.phrases import change_words, effect_words, share_words

    spec, result = found.spec, found.result
    yield "trial", f"{spec.id} ({spec.role}): {spec.purpose}"
    yield "window", f"steps {spec.first_step + 1} to {spec.stop_after}, from {spec.checkpoint or 'the start'}"
    change = spec.intervention
    yield "declared", f"{change_words(change)} [{change.factor.value}]" if change is not None else "no change"
    if spec.commit:
        yield "code", f"commit {spec.commit}"
    if result is None:
        yield "outcome", "none: the trial has not come to an end, or is a repeat that only measures the noise"
    else:
        for d in result.differences:
            yield "observed", f"{d.factor.value} at {d.where}: {d.baseline} -> {d.trial}"
        if not result.differences:
            yield "observed", "no difference from the baseline trial"
        yield "effect", effect_words(result)
        yield "outcome", f"{result.outcome.kind.value}, {share_words(result)} left: {result.outcome.reason}"
        yield "guard", result.guard
    for trace in found.traces:
        process = trace.process
        yield (
            f"rank {process.rank}",
            f"{process.host} {process.device}, {len(trace.steps)} steps, ended {trace.end or '-'}",
        )
        for effect in trace.effects[:8]:
            acted = "acted" if effect.took_effect else "did not act"
            yield "", f"step {effect.step}: {effect.what} {effect.before} -> {effect.after} ({acted})"
        for error in trace.errors:
            yield "", f"inside the probe: {error}"


@show.command("tensor")
def tensor(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, file or directory.")],
    tensor_name: Annotated[str, typer.Argument(metavar="[NAME]", help="A tensor's name, or a part of it.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show type, shape and statistics of tensors, read without running anything in the checkpoint."""
    from spike.actions.show import show_tensor
    from spike.casefile.codec import to_payload
    from spike.domain.errors import ExitCode, InputUnreadable
    from spike.report.terminal import table_text
    from spike.report.text import name, number, visible

    if not checkpoint.exists():
        raise InputUnreadable(f"there is no {checkpoint}", hint="spike check lists the checkpoints of a run")
    with progress("reading") as advance:
        found = show_tensor(checkpoint, tensor_name, on_bytes=advance)
    if as_json:
        emit_json({"schema": "spike.show-tensor/1", **to_payload(found)})
    else:
        about = found.checkpoint
        reason = f": {visible(about.reason)}" if about.reason else ""
        answer(f"{name(about.path)}: {about.layout}, {about.integrity.value}{reason}, {about.num_tensors:,} tensors")
        rows = [
            (
                name(f"{t.name}.{t.key}" if t.key else t.name),
                t.role.value,
                t.dtype,
                "x".join(str(n) for n in t.shape) or "scalar",
                number(t.num_nonfinite),
                number(t.absmax),
                number(t.l2),
                number(t.num_zeros),
                number(t.num_saturated),
                t.digest[:12] if isinstance(t.digest, str) else "not measured",
            )
            for t in found.tensors
        ]
        header = ("tensor", "role", "type", "shape", "non-finite", "largest", "l2", "zeros", "saturated", "sha-256")
        answer(table_text(header, rows))
        for where, why in found.unreadable:
            answer(f"unreadable: {name(where)}: {visible(why)}")
    if found.unreadable:
        raise typer.Exit(int(ExitCode.UNREADABLE))


@show.command("signals")
def signals(
    sql: Annotated[
        str,
        typer.Option("--sql", help="One SELECT over the table `signals`; without it, a line a signal."),
    ] = "",
    run: RunOption = Path(),
    case: CaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the signals of a case in SQL (DuckDB's); the query sees a copy of them and can reach nothing else.

    The table `signals` has a row for every logged value: name (loss, grad_norm, lr, ... or the log's own), rank (NULL
    for the whole job), step (as logged), value (NaN and infinities included), superseded (a restart replaced the row),
    source (the file).

    Example: spike show signals --sql "SELECT step, value FROM signals WHERE name = 'loss' AND NOT isfinite(value)"
    """
    from spike.actions.show import show_signals

    found = show_signals(_case(run, case), sql)
    if as_json:
        rows = [[_json_cell(cell) for cell in row] for row in found.rows]
        emit_json(
            {"schema": "spike.show-signals/1", "columns": list(found.columns), "rows": rows, "is_cut": found.is_cut}
        )
        return
    from spike.report.terminal import table_text
    from spike.report.text import visible

    answer(
        table_text([visible(c) for c in found.columns], [[visible(_cell(cell)) for cell in row] for row in found.rows])
    )
    if found.is_cut:
        talk(f"only the first {len(found.rows):,} rows are shown; add a LIMIT, or count and group")


def _cell(cell: Cell) -> str:
    return "NULL" if cell is None else f"{cell:.9g}" if isinstance(cell, float) else str(cell)


def _json_cell(cell: Cell) -> Cell:
    """JSON has no infinities: they are written as in every other artefact."""
    if not isinstance(cell, float) or math.isfinite(cell):
        return cell
    return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"


@show.command("formats")
def formats(as_json: JsonOption = False) -> None:
    """List the formats of checkpoints, metrics and hardware events that this spike reads."""
    from spike.actions.show import show_formats
    from spike.report.terminal import table_text

    found = show_formats()
    if as_json:
        rows = [{"kind": f.kind, "name": f.name, "about": f.about} for f in found]
        emit_json({"schema": "spike.show-formats/1", "formats": rows})
        return
    answer(table_text(("kind", "format", "about"), [(f.kind, f.name, f.about) for f in found]))
