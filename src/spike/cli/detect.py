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
    from spike.domain.signals import Damage, Source

SEVERITIES = ("transient", "lasting", "fatal", "never")
MOST_SHOWN = 8
"""Incidents told; of more than these the worst, after a summary."""
MOST_LINES = 8
"""Files, notices and damages of one run that are listed."""


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
    show_all: Annotated[
        bool,
        typer.Option("--all", help="List every incident, file, notice and damage; by default the worst and first."),
    ] = False,
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
        _tell(found, paths or [], show_all)
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
    from spike.domain.errors import SpikeError
    from spike.report.figures import styled, to_svg
    from spike.report.plot import figure

    incidents = one.detection.incidents
    chart = figure(one.signals, one.detection, _worst(incidents) if len(incidents) > MOST_SHOWN else incidents)
    if chart is None:
        raise SpikeError(
            f"there is no loss and no gradient norm to draw to {path}", hint="spike detect --map loss=COLUMN"
        )
    if path.suffix == ".svg":
        path.write_text(to_svg(chart, "signals"), encoding="utf-8")
    else:
        styled(chart).save(str(path), inline=True)
    talk(f"drew {path}")


def _ranks_payload(found: Sequence[RunDetection]) -> list[dict[str, Any]]:
    """Whether the ranks of each run stayed together, where it has several."""
    from spike.actions.checks.rank_sync import rank_sync
    from spike.report.rank_table import rank_payload

    told = ((one.source, rank_sync(one.signals, one.base)) for one in found)
    return [{"source": source, **rank_payload(sync)} for source, sync in told if sync is not None]


def _tell(found: Sequence[RunDetection], paths: list[Path], show_all: bool) -> None:
    for one in found:
        if len(found) > 1:
            answer(f"== {one.source}")
        _tell_one(one, show_all)
        if len(found) > 1:
            answer("")
    incidents = [i for one in found for i in one.detection.incidents]
    if incidents and not paths:
        answer("next: spike freeze, which keeps the evidence before anything changes")
    elif incidents:
        answer("next: spike init in the run's directory, then spike freeze: it keeps the evidence")


def _tell_one(one: RunDetection, show_all: bool) -> None:
    from spike.actions.detect import primary_incident
    from spike.report.plot import terminal_chart
    from spike.report.text import visible

    sources = [_source_line(source) for source in one.signals.sources]
    _tell_some(sources, "files", show_all)
    incidents = one.detection.incidents
    if not incidents:
        answer("no incident: every signal stays within this run's own noise")
    told = incidents if show_all or len(incidents) <= MOST_SHOWN else _worst(incidents)
    if len(told) < len(incidents):
        answer(_summary(incidents))
        answer(f"the {len(told)} worst:")
    for number, incident in enumerate(incidents, start=1):
        if incident in told:
            _tell_incident(number, incident)
    if len(told) < len(incidents):
        answer(f"{len(incidents) - len(told)} more: --all lists them, --json has them")
    worst = primary_incident(one.detection)
    if worst is not None:
        chart = terminal_chart(one.signals, worst)
        if chart:
            answer("")
            answer(chart)
            answer("")
    _tell_ranks(one)
    _tell_some(
        [f"benign: {n.pattern}{_steps(n.steps)}: {n.why_benign}" for n in one.detection.notices], "notices", show_all
    )
    _tell_some([f"note: {visible(sentence)}" for _, sentence in one.signals.notes], "notes", show_all)
    damages = sorted(one.signals.damages, key=lambda damage: damage.benign)
    _tell_some([_damage_line(damage) for damage in damages], "places that could not be read", show_all)


def _tell_some(lines: list[str], what: str, show_all: bool) -> None:
    shown = lines if show_all or len(lines) <= MOST_LINES + 1 else lines[:MOST_LINES]
    for line in shown:
        answer(line)
    if len(shown) < len(lines):
        answer(f"and {len(lines) - len(shown):,} more {what}: --all lists them, --json has them")


def _damage_line(damage: Damage) -> str:
    from spike.report.text import visible

    place = f" line {damage.line} (byte {damage.byte_offset})" if damage.line else ""
    return f"{'skipped' if damage.benign else 'damaged'}: {visible(damage.source)}{place}: {visible(damage.reason)}"


def _worst(incidents: Sequence[Incident]) -> list[Incident]:
    """The worst few, in the order in which primary_incident chooses."""
    from dataclasses import replace

    from spike.actions.detect import primary_incident
    from spike.domain.incident import Detection

    left = Detection(tuple(incidents))
    found: list[Incident] = []
    while len(found) < MOST_SHOWN:
        worst = primary_incident(left)
        assert worst is not None
        found.append(worst)
        left = replace(left, incidents=tuple(i for i in left.incidents if i is not worst))
    return found


def _summary(incidents: Sequence[Incident]) -> str:
    """Counts by severity and kind, and where they lie."""
    from collections import Counter

    from spike.report.phrases import KIND_WORDS

    severities = Counter(i.severity.value for i in incidents)
    kinds = Counter(KIND_WORDS[i.kind] for i in incidents)
    first, last = incidents[0].onset_step, incidents[-1].onset_step
    return (
        f"{len(incidents)} incidents between steps {first} and {last}: "
        f"{', '.join(f'{severities[s]} {s}' for s in reversed(SEVERITIES) if severities[s])}; "
        f"{', '.join(f'{count} x {kind}' for kind, count in kinds.most_common())}"
    )


def _tell_ranks(one: RunDetection) -> None:
    from spike.actions.checks.rank_sync import rank_sync
    from spike.report.rank_table import rank_lines

    sync = rank_sync(one.signals, one.base)
    for line in rank_lines(sync) if sync is not None else ():
        answer(line)


def _source_line(source: Source) -> str:
    from spike.report.text import visible

    span = f"steps {source.first_step}-{source.last_step}" if source.first_step is not None else "no steps"
    return f"read {visible(source.path)} ({source.format}, {source.num_rows} rows, {span})"


def _tell_incident(number: int, incident: Incident) -> None:
    from spike.report.phrases import KIND_WORDS, incident_words, recovery_words

    rank = f" on rank {incident.rank}" if incident.rank is not None else ""
    answer(f"{number}. {KIND_WORDS[incident.kind]} at step {incident.onset_step}{rank}, {incident.severity.value}")
    answer(f"   {incident_words(incident)} {recovery_words(incident)}")
    for hint in incident.hints:
        answer(f"   look: {hint}")


def _steps(steps: tuple[int, ...]) -> str:
    if not steps:
        return ""
    shown = ", ".join(str(s) for s in steps[:6]) + (", ..." if len(steps) > 6 else "")
    return f" (steps {shown})" if len(steps) > 1 else f" (step {shown})"
