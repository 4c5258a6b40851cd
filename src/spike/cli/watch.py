"""spike watch: follow a live run and stop at the first incident."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.options import JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish, talk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spike.actions.following.watch import View

QUIET_S = 60.0
"""Without a terminal a line is written this often, so that a log of the watch stays short."""
PACE_S = 30.0
"""Rows per second are those of this last stretch."""


def watch(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Metric files or a directory; without any, the run of --run.")
    ] = None,
    run: RunOption = Path(),
    until_healthy: Annotated[
        int | None,
        typer.Option(
            "--until-healthy",
            min=0,
            help="After a resume: stop with 0 when this many rows in a row, from the old incident's step on, are back "
            "on the trend before it; with 1 when four times as many were not enough.",
        ),
    ] = None,
    on_incident: Annotated[
        str | None,
        typer.Option(
            "--on-incident",
            help="Run this shell command with the incident's JSON on stdin and in SPIKE_INCIDENT, and go on watching.",
        ),
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Mildest severity that counts: transient, lasting or fatal.")
    ] = "transient",
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.")] = 1.0,
    stall: Annotated[
        float | None, typer.Option("--stall", help="Seconds of silence to report; by default from the run's own pace.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow growing logs. Exit 1 at the first new incident; what was over before is left to `spike detect`.

    A source that stands still, and a filesystem that does not answer, are told on stderr while the others are watched.
    """
    from spike.actions.following.incident_command import IncidentCommand
    from spike.domain.errors import ExitCode

    views = _views(paths or [], run, fail_on, every, stall, until_healthy)
    screen = _Screen(as_json)
    command = IncidentCommand(on_incident) if on_incident is not None else None
    for view in views:
        screen.show(view)
        for text in command.ended() if command is not None else ():
            screen.say(text)
        if view.incidents:
            screen.clear()
            if command is None:
                _tell(view, as_json)
                finish(ExitCode.ANSWER_NO)
            _call(command, view, screen)
        elif view.standing is not None and (view.standing.is_back or view.standing.has_failed):
            screen.clear()
            for text in command.close() if command is not None else ():
                screen.say(text)
            _close(view, as_json)


def _views(
    paths: list[Path], run: Path, fail_on: str, every: float, stall: float | None, until_healthy: int | None
) -> Iterator[View]:
    from spike.actions.detect import metric_paths
    from spike.actions.following.watch import Plan
    from spike.actions.following.watch import watch as follow
    from spike.domain.errors import SpikeError
    from spike.domain.incident import Severity
    from spike.readers.run_file import load_run_or_bare

    if fail_on not in tuple(Severity):
        raise SpikeError(f"--fail-on {fail_on} is not known", hint=f"one of {', '.join(Severity)}")
    if every <= 0:
        raise SpikeError("--every must be more than 0 seconds", hint="spike watch --every 1")
    described = load_run_or_bare(run)
    chosen = paths or metric_paths(described)
    base = Path(described.directory) if not paths else Path()
    plan = Plan(Severity(fail_on), every, stall, until_healthy)
    columns, constants = dict(described.columns), dict(described.detect)
    return follow(chosen, base=base, plan=plan, columns=columns, constants=constants)


class _Screen:
    """What the operator sees while nothing happens: a few lines redrawn in place, or now and then a line of a log."""

    def __init__(self, as_json: bool) -> None:
        self._on_terminal = sys.stderr.isatty() and not as_json
        self._is_quiet = as_json
        self._num_lines = 0
        self._next_line = 0.0
        self._pace: list[tuple[float, int]] = []
        """(time, rows) of the last `PACE_S`."""
        self.num_incidents = 0
        self._told: set[str] = set()

    def show(self, view: View) -> None:
        """Tell what is new, then redraw."""
        for text in self._news(view):
            self.say(text)
        now = time.monotonic()
        if self._on_terminal:
            self._draw(view, now)
        elif not self._is_quiet and now >= self._next_line and view.step is not None:
            from spike.report.live import plain_line

            self._next_line = now + QUIET_S
            state = _state(view, self.num_incidents)
            talk(f"{time.strftime('%H:%M:%S')} step {view.step}: {plain_line(view.gauges)}; {state}")

    def say(self, text: str) -> None:
        """One line of talk above the drawing."""
        from spike.report.text import visible

        self.clear()
        talk(visible(text))

    def clear(self) -> None:
        """Take the drawing away."""
        if self._num_lines:
            sys.stderr.write(f"\x1b[{self._num_lines}A\r\x1b[J")
            sys.stderr.flush()
            self._num_lines = 0

    def _news(self, view: View) -> list[str]:
        """What has begun since the last view, and what has ended."""
        now: dict[str, str] = {}
        if view.is_stalled:
            now["stalled"] = (
                f"no new row for {view.silent_s:.0f} s after step {view.step}: the run or its log stands still"
            )
        for hang in view.hanging:
            why = (
                "its first reading still goes on, or its filesystem does not answer"
                if hang.is_first
                else ("its filesystem does not answer")
            )
            now[f"hang {hang.path}"] = f"a look at {hang.path} has not come back for {hang.seconds:.0f} s: {why}"
        if view.silent:
            rest = f" and {len(view.silent) - 3} more" if len(view.silent) > 3 else ""
            listed = ", ".join(view.silent[:3])
            now[f"silent {len(view.silent)}"] = f"no new row from {listed}{rest}, while other sources go on"
        new = [text for key, text in now.items() if key not in self._told]
        ended = [key for key in self._told if key.startswith("hang ") and key not in now]
        self._told = set(now)
        return [*new, *(f"a look at {key[5:]} came back" for key in ended), *view.problems]

    def _draw(self, view: View, now: float) -> None:
        import shutil

        from spike.report.live import head_line, live_lines

        self._pace = [*(p for p in self._pace if now - p[0] <= PACE_S), (now, view.num_new)]
        (since, rows), spent = self._pace[0], now - self._pace[0][0]
        pace = (view.num_new - rows) / spent if now > since else None
        head = head_line(view.step, pace, view.num_new, _state(view, self.num_incidents))
        lines = live_lines(head, view.gauges, shutil.get_terminal_size().columns)
        self.clear()
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        self._num_lines = len(lines)


def _state(view: View, num_incidents: int) -> str:
    if view.hanging:
        return "a filesystem does not answer"
    if view.is_stalled:
        return f"no row for {view.silent_s:.0f} s"
    if view.standing is not None:
        return f"{view.standing.num_healthy} of {view.standing.wanted} healthy in a row"
    return "no new incident" if not num_incidents else f"{num_incidents} incident{'s' * (num_incidents > 1)} told"


def _tell(view: View, as_json: bool) -> None:
    from spike.report.phrases import KIND_WORDS, incident_words

    if as_json:
        emit_json(dict(view.payload or {}))
        return
    for incident in view.incidents:
        rank = f" on rank {incident.rank}" if incident.rank is not None else ""
        answer(f"{KIND_WORDS[incident.kind]} at step {incident.onset_step}{rank}, {incident.severity.value}")
        answer(f"   {incident_words(incident)}")
        for hint in incident.hints:
            answer(f"   look: {hint}")
    answer("next: spike freeze, which keeps the evidence before anything changes")


def _close(view: View, as_json: bool) -> None:
    """The end of --until-healthy."""
    from spike.actions.following.watch import SCHEMA
    from spike.domain.errors import ExitCode

    assert view.standing is not None
    is_back, why = view.standing.is_back, view.standing.words
    if as_json:
        told: dict[str, Any] = {"schema": SCHEMA, "reason": "healthy" if is_back else "not-back", "step": view.step}
        emit_json({**told, "rows": view.num_new, "why": why, "incidents": []})
    else:
        answer(f"{'healthy' if is_back else 'not healthy'} up to step {view.step}: {why}")
    finish(ExitCode.PASSED if is_back else ExitCode.ANSWER_NO)


def _call(command: Any, view: View, screen: _Screen) -> None:
    """Start the operator's own command; the watch goes on."""
    from spike.report.phrases import KIND_WORDS

    screen.num_incidents += len(view.incidents)
    for incident in view.incidents:
        screen.say(f"{KIND_WORDS[incident.kind]} at step {incident.onset_step}, {incident.severity.value}")
    failed = command.start(view.payload)
    if failed:
        screen.say(failed)
