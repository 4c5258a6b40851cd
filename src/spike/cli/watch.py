"""spike watch: follow a live run and stop at the first incident."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spike.cli.options import JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish, talk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spike.actions.watch import View


def watch(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Metric files or a directory; without any, the run of --run.")
    ] = None,
    run: RunOption = Path(),
    until_healthy: Annotated[
        int | None, typer.Option("--until-healthy", help="Stop with exit 0 after this many new rows without incident.")
    ] = None,
    on_incident: Annotated[
        str | None,
        typer.Option("--on-incident", help="Run this command with the incident's JSON on stdin, and go on watching."),
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Mildest severity that counts: transient, lasting or fatal.")
    ] = "transient",
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.")] = 5.0,
    stall: Annotated[
        float | None, typer.Option("--stall", help="Seconds of silence to report; by default from the run's own pace.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow growing logs. Exit 1 at the first new incident; what was over before is left to `spike detect`."""
    from spike.domain.errors import ExitCode

    views = _views(paths or [], run, fail_on, every, stall)
    was_stalled = False
    for view in views:
        if view.is_stalled and not was_stalled:
            talk(f"no new row for {view.silent_s:.0f} s after step {view.step}: the run or its log stands still")
        was_stalled = view.is_stalled
        if view.incidents:
            _tell(view, as_json)
            if on_incident is None:
                finish(ExitCode.ANSWER_NO)
            _call(on_incident, view)
        elif not as_json:
            _show(view)
        if until_healthy is not None and view.num_new >= until_healthy and not view.incidents:
            _close(view, as_json)
            return


def _views(paths: list[Path], run: Path, fail_on: str, every: float, stall: float | None) -> Iterator[View]:
    from spike.actions.detect import metric_paths
    from spike.actions.watch import Plan
    from spike.actions.watch import watch as follow
    from spike.domain.errors import SpikeError
    from spike.domain.incident import Severity
    from spike.readers.run_file import load_run_or_bare

    if fail_on not in tuple(Severity):
        raise SpikeError(f"--fail-on {fail_on} is not known", hint=f"one of {', '.join(Severity)}")
    if every <= 0:
        raise SpikeError("--every must be more than 0 seconds", hint="spike watch --every 5")
    described = load_run_or_bare(run)
    chosen = paths or metric_paths(described)
    base = Path(described.directory) if not paths else Path()
    plan = Plan(Severity(fail_on), every, stall)
    columns, constants = dict(described.columns), dict(described.detect)
    return follow(chosen, base=base, plan=plan, columns=columns, constants=constants)


def _show(view: View) -> None:
    """One line a look: on a terminal over the last one, elsewhere only where something is new."""
    import sys

    values = "  ".join(f"{name} {value:.4g}" for name, value in view.values)
    line = f"step {view.step}  {values}  {view.num_new} new rows, healthy" if view.step is not None else "no row yet"
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _tell(view: View, as_json: bool) -> None:
    from spike.report.phrases import KIND_WORDS, incident_words

    if as_json:
        from spike.actions.watch import SCHEMA

        emit_json({**(view.payload or {}), "schema": SCHEMA, "reason": "incident", "step": view.step})
        return
    for incident in view.incidents:
        answer(f"{KIND_WORDS[incident.kind]} at step {incident.onset_step}, {incident.severity.value}")
        answer(f"   {incident_words(incident)}")
        for hint in incident.hints:
            answer(f"   look: {hint}")
    answer("next: spike freeze, which keeps the evidence before anything changes")


def _close(view: View, as_json: bool) -> None:
    if as_json:
        from spike.actions.watch import SCHEMA

        emit_json({"schema": SCHEMA, "reason": "healthy", "step": view.step, "rows": view.num_new, "incidents": []})
    else:
        answer(f"healthy: {view.num_new} new rows up to step {view.step} without an incident")


def _call(command: str, view: View) -> None:
    """The operator's own command; its failure is told and does not end the watch."""
    import json
    import subprocess

    text = json.dumps(view.payload, allow_nan=False)
    ended = subprocess.run(command, shell=True, input=text, text=True, check=False)
    if ended.returncode:
        talk(f"--on-incident ended with exit {ended.returncode}: {command}")
