"""spike detect: find incidents in a run's signals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.options import JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spike.actions.detect import RunDetection
    from spike.domain.incident import Incident

SEVERITIES = ("transient", "lasting", "fatal", "never")
MOST_SHOWN = 12
"""Incidents told in full; the others get one line."""


def detect(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Metric files or run directories; without any, the run of --run."),
    ] = None,
    run: RunOption = Path(),
    step: Annotated[
        int | None, typer.Option("--step", "-s", help="Tell only of the incident nearest to this step.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Mildest severity that exits 1: transient, lasting, fatal or never.")
    ] = "transient",
    columns: Annotated[
        list[str] | None, typer.Option("--map", help="A column that spike cannot guess: loss=objective.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw the whole record to this .svg or .html file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find spikes, divergence, non-finite values, level shifts, drifts, drops and skipped steps.

    Everything is judged against the run's own noise. Exit 1: an incident was found.
    """
    from spike.actions.detect import runs_payload
    from spike.domain.errors import ExitCode, SpikeError

    if fail_on not in SEVERITIES:
        raise SpikeError(f"--fail-on {fail_on} is not known", hint=f"one of {', '.join(SEVERITIES)}")
    if plot is not None and plot.suffix not in (".svg", ".html"):
        raise SpikeError(f"--plot {plot} is neither .svg nor .html", hint="spike detect --plot signals.svg")
    found = [_chosen(one, step) for one in _found(paths or [], run, _mapping(columns or []))]
    if plot is not None:
        _draw(found[0], plot)
    if as_json:
        emit_json({**runs_payload(found), "ranks": _ranks_payload(found)})
    else:
        _tell(found, paths or [])
    incidents = [i for one in found for i in one.detection.incidents]
    worst = any(_fails(i, fail_on) for i in incidents)
    finish(ExitCode.ANSWER_NO if worst else ExitCode.PASSED)


def _found(paths: list[Path], run: Path, columns: dict[str, str]) -> Sequence[RunDetection]:
    from spike.actions.detect import RunDetection, detect_paths, detect_run
    from spike.readers.run_file import load_run_or_bare

    described = load_run_or_bare(run)
    if paths:
        return detect_paths(paths, dict(described.columns) | columns, dict(described.detect))
    from dataclasses import replace

    known = dict(described.columns) | columns
    signals, detection = detect_run(replace(described, columns=tuple(known.items())))
    return [RunDetection(described.directory, signals, detection, Path(described.directory))]


def _mapping(columns: list[str]) -> dict[str, str]:
    from spike.domain.errors import SpikeError

    pairs: dict[str, str] = {}
    for text in columns:
        name, equals, column = text.partition("=")
        if not equals or not name or not column:
            raise SpikeError(f"--map {text} is not SIGNAL=COLUMN", hint="spike detect --map loss=objective")
        pairs[name] = column
    return pairs


def _chosen(one: RunDetection, step: int | None) -> RunDetection:
    if step is None:
        return one
    from dataclasses import replace

    from spike.actions.detect import primary_incident

    near = primary_incident(one.detection, step)
    incidents = () if near is None else (near,)
    return replace(one, detection=replace(one.detection, incidents=incidents))


def _fails(incident: Incident, fail_on: str) -> bool:
    order = SEVERITIES.index(incident.severity.value)
    return order >= SEVERITIES.index(fail_on)


def _draw(one: RunDetection, path: Path) -> None:
    from spike.report.figures import styled, to_svg
    from spike.report.plot import figure

    chart = figure(one.signals, one.detection)
    if path.suffix == ".svg":
        path.write_text(to_svg(chart, "signals"), encoding="utf-8")
    else:
        styled(chart).save(str(path), inline=True)
    talk(f"drew {path}")


def _ranks_payload(found: Sequence[RunDetection]) -> list[dict[str, Any]]:
    """Whether the ranks of each run stayed together, where it has several."""
    from spike.actions.rank_sync import rank_sync
    from spike.report.rank_table import rank_payload

    told = ((one.source, rank_sync(one.signals, one.base)) for one in found)
    return [{"source": source, **rank_payload(sync)} for source, sync in told if sync is not None]


def _tell(found: Sequence[RunDetection], paths: list[Path]) -> None:
    for one in found:
        if len(found) > 1:
            answer(f"== {one.source}")
        _tell_one(one)
        if len(found) > 1:
            answer("")
    incidents = [i for one in found for i in one.detection.incidents]
    if incidents and not paths:
        answer("next: spike freeze, which keeps the evidence before anything changes")
    elif incidents:
        answer("next: spike init in the run's directory, then spike freeze: it keeps the evidence")


def _tell_one(one: RunDetection) -> None:
    from spike.actions.detect import primary_incident
    from spike.report.plot import terminal_chart

    _tell_sources(one)
    incidents = one.detection.incidents
    if not incidents:
        answer("no incident: every signal stays within this run's own noise")
    for number, incident in enumerate(incidents, start=1):
        _tell_incident(number, incident, in_full=number <= MOST_SHOWN)
    worst = primary_incident(one.detection)
    if worst is not None:
        chart = terminal_chart(one.signals, worst)
        if chart:
            answer("")
            answer(chart)
            answer("")
    _tell_ranks(one)
    for notice in one.detection.notices:
        answer(f"benign: {notice.pattern}{_steps(notice.steps)}: {notice.why_benign}")
    for _, sentence in one.signals.notes:
        answer(f"note: {sentence}")
    for damage in one.signals.damages:
        place = f" line {damage.line} (byte {damage.byte_offset})" if damage.line else ""
        answer(f"{'skipped' if damage.benign else 'damaged'}: {damage.source}{place}: {damage.reason}")


def _tell_ranks(one: RunDetection) -> None:
    from spike.actions.rank_sync import rank_sync
    from spike.report.rank_table import rank_lines

    sync = rank_sync(one.signals, one.base)
    for line in rank_lines(sync) if sync is not None else ():
        answer(line)


def _tell_sources(one: RunDetection) -> None:
    for source in one.signals.sources:
        span = f"steps {source.first_step}-{source.last_step}" if source.first_step is not None else "no steps"
        answer(f"read {source.path} ({source.format}, {source.num_rows} rows, {span})")


def _tell_incident(number: int, incident: Incident, *, in_full: bool) -> None:
    from spike.report.phrases import KIND_WORDS, incident_words, recovery_words

    rank = f" on rank {incident.rank}" if incident.rank is not None else ""
    head = f"{number}. {KIND_WORDS[incident.kind]} at step {incident.onset_step}{rank}, {incident.severity.value}"
    if not in_full:
        answer(f"{head}: {_ratio(incident)} of usual at step {incident.peak_step}")
        return
    answer(head)
    answer(f"   {incident_words(incident)} {recovery_words(incident)}")
    for hint in incident.hints:
        answer(f"   look: {hint}")


def _ratio(incident: Incident) -> Any:
    return f"{incident.ratio:.3g} times"


def _steps(steps: tuple[int, ...]) -> str:
    if not steps:
        return ""
    shown = ", ".join(str(s) for s in steps[:6]) + (", ..." if len(steps) > 6 else "")
    return f" (steps {shown})" if len(steps) > 1 else f" (step {shown})"
