"""Does the watch see a run go bad, heal, stand still, and stay quiet about the past?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from spike.actions.watch import Plan, View, watch
from spike.domain.incident import Severity


def rows(count: int, seed: int = 0) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    loss = (2.0 + 4.0 * (1.0 + np.arange(count) / 20.0) ** -0.5) * np.exp(0.02 * rng.standard_normal(count))
    norm = np.exp(0.15 * rng.standard_normal(count))
    return [{"step": s + 1, "loss": float(loss[s]), "grad_norm": float(norm[s])} for s in range(count)]


class Writer:
    """Stands for the training: writes some rows whenever the watch sleeps, and moves the clock."""

    def __init__(self, path: Path, lines: list[dict[str, float]], per_look: int) -> None:
        self.path, self.lines, self.per_look, self.at, self.time = path, lines, per_look, 0, 0.0

    def write(self, count: int) -> None:
        with self.path.open("a") as stream:
            for line in self.lines[self.at : self.at + count]:
                stream.write(json.dumps(line) + "\n")
        self.at += count

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.write(self.per_look)

    def now(self) -> float:
        return self.time


def follow(writer: Writer, looks: int, plan: Plan | None = None) -> list[View]:
    views = watch(
        [writer.path], base=writer.path.parent, plan=plan or Plan(interval_s=1.0), sleep=writer.sleep, now=writer.now
    )
    return list(islice(views, looks))


def test_a_run_that_stays_healthy_is_watched_in_peace(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.jsonl", rows(300), 20)
    views = follow(writer, 15)
    assert all(view.incidents == () for view in views)
    assert views[0].step is None
    assert (views[-1].step, views[-1].num_new) == (280, 280)
    assert dict(views[-1].values).keys() == {"loss", "grad_norm"}


def test_the_first_look_that_can_see_an_incident_tells_it_once(tmp_path: Path) -> None:
    lines = rows(300)
    lines[220]["loss"] *= 1.8
    writer = Writer(tmp_path / "a.jsonl", lines, 10)
    views = follow(writer, 30)
    told = [(view.step, incident.onset_step) for view in views for incident in view.incidents]
    assert told == [(230, 221)]
    assert next(view.payload for view in views if view.incidents)["incidents"][0]["onset_step"] == 221  # type: ignore[index]


def test_what_was_over_before_the_watch_began_is_not_told(tmp_path: Path) -> None:
    lines = rows(300)
    lines[120]["loss"] *= 1.8
    writer = Writer(tmp_path / "a.jsonl", lines, 10)
    writer.write(200)
    assert all(view.incidents == () for view in follow(writer, 10))


def test_what_still_goes_on_when_the_watch_begins_is_told(tmp_path: Path) -> None:
    lines = rows(300)
    for line in lines[195:]:
        line["loss"] = float("nan")
    writer = Writer(tmp_path / "a.jsonl", lines, 10)
    writer.write(200)
    assert [i.onset_step for view in follow(writer, 3) for i in view.incidents] == [196]


def test_milder_incidents_than_asked_for_are_passed_over(tmp_path: Path) -> None:
    lines = rows(300)
    lines[120]["loss"] *= 1.8
    writer = Writer(tmp_path / "a.jsonl", lines, 25)
    assert all(view.incidents == () for view in follow(writer, 12, Plan(Severity.FATAL, interval_s=1.0)))


def test_a_log_that_stands_still_is_reported_as_stalled(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.jsonl", rows(40), 10)
    views = follow(writer, 30, Plan(interval_s=10.0, stall_s=60.0))
    assert not any(view.is_stalled for view in views[:9])
    assert views[-1].is_stalled
    assert views[-1].step == 40


def test_a_torn_last_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "lo')
    writer = Writer(path, [], 0)

    def finish(_seconds: float) -> None:
        with path.open("a") as stream:
            stream.write('ss": 2.9}\n')

    writer.sleep = finish  # type: ignore[method-assign]
    assert [view.step for view in follow(writer, 2)] == [1, 2]


Start = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def spike(tmp_path: Path) -> Start:
    def start(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "spike.cli.app", "watch", "--every", "0.1", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    return start


def write(path: Path, lines: list[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_command_ends_with_one_at_an_incident_that_goes_on(tmp_path: Path, spike: Start) -> None:
    lines = rows(230)
    for line in lines[220:]:
        line["loss"] = float("nan")
    growing = tmp_path / "a.jsonl"
    write(growing, lines[:200])
    grow = "import sys,time; time.sleep(1.5); open('a.jsonl','a').write(sys.stdin.read())"
    with subprocess.Popen([sys.executable, "-c", grow], cwd=tmp_path, stdin=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        writer.stdin.write("".join(json.dumps(line) + "\n" for line in lines[200:]))
        writer.stdin.close()
        told = spike(["a.jsonl"])
    assert told.returncode == 1
    assert "non-finite values at step 221, fatal" in told.stdout
    assert "spike freeze" in told.stdout


def test_the_command_ends_with_zero_after_enough_healthy_rows(tmp_path: Path, spike: Start) -> None:
    write(tmp_path / "a.jsonl", rows(100))
    told = spike(["a.jsonl", "--until-healthy", "0", "--json"])
    assert told.returncode == 0
    assert json.loads(told.stdout) == {
        "schema": "spike.watch/1",
        "reason": "healthy",
        "step": 100,
        "rows": 0,
        "incidents": [],
    }


@pytest.mark.parametrize("arguments", [["--fail-on", "never"], ["--every", "0"]])
def test_a_wrong_option_is_a_usage_error(arguments: list[str], spike: Start) -> None:
    assert spike(arguments).returncode == 2
