"""Does the watch see a run go bad, heal, stand still, and stay quiet about the past?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spike.actions.following.watch import Plan, View, watch
from spike.domain.incident import Severity
from spike.readers.metrics import open_follower
from spike.readers.metrics.contract import Parsed


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
        [writer.path], base=writer.path.parent, plan=plan or Plan(grace_s=30.0), sleep=writer.sleep, now=writer.now
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
    assert all(view.incidents == () for view in follow(writer, 12, Plan(Severity.FATAL, grace_s=30.0)))


def test_a_log_that_stands_still_is_reported_as_stalled(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.jsonl", rows(40), 10)
    views = follow(writer, 30, Plan(interval_s=10.0, stall_s=60.0, grace_s=30.0))
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


def test_an_old_shift_that_lasts_is_the_past_and_what_began_shortly_before_is_told(tmp_path: Path) -> None:
    for at, told in ((150, []), (470, [471])):
        lines = rows(600, seed=3)
        for line in lines[at:]:
            line["loss"] *= 1.3
        writer = Writer(tmp_path / f"{at}.jsonl", lines, 20)
        writer.write(500)
        found = [i.onset_step for view in follow(writer, 5) for i in view.incidents]
        assert found == told, at


def test_an_incident_is_told_again_when_it_gets_worse_and_when_it_comes_again_after_a_restart(tmp_path: Path) -> None:
    lines = rows(240)
    lines[219]["loss"] *= 1.8
    again = rows(240)[200:]
    again[19]["loss"] *= 1.8
    writer = Writer(tmp_path / "a.jsonl", lines + again, 10)
    writer.write(150)
    told = [(i.onset_step, view.num_new) for view in follow(writer, 16) for i in view.incidents]
    assert [onset for onset, _ in told] == [220, 220]
    lines = rows(260)
    lines[219]["loss"] *= 1.8
    for line in lines[240:]:
        line["loss"] = float("nan")
    writer = Writer(tmp_path / "b.jsonl", lines, 10)
    writer.write(150)
    found = [i for view in follow(writer, 14) for i in view.incidents]
    assert [i.kind.value for i in found] == ["spike", "non-finite"]
    assert found[-1].severity is Severity.FATAL


def test_files_that_appear_late_or_are_rotated_or_truncated_are_followed(tmp_path: Path) -> None:
    lines = rows(400)
    lines[330]["loss"] *= 1.8
    path = tmp_path / "late.jsonl"
    writer = Writer(path, lines, 10)
    looks = {"n": 0}

    def sleep(seconds: float) -> None:
        looks["n"] += 1
        if looks["n"] == 8:
            path.rename(tmp_path / "late.jsonl.1")
        if looks["n"] == 16:
            path.write_text("")
        Writer.sleep(writer, seconds)

    writer.sleep = sleep  # type: ignore[method-assign]
    views = watch([tmp_path], base=tmp_path, plan=Plan(grace_s=30.0), sleep=writer.sleep, now=writer.now)
    seen = list(islice(views, 38))
    assert seen[-1].step == 370
    assert [i.onset_step for view in seen for i in view.incidents] == [331]
    said = " ".join(text for view in seen for text in view.problems)
    assert "replaced by another file" in said
    assert "truncated" in said


def test_the_rank_that_goes_wrong_is_named(tmp_path: Path) -> None:
    files = [tmp_path / f"rank{rank}.jsonl" for rank in range(4)]
    lines = [rows(300, seed=rank) for rank in range(4)]
    for line in lines[2][220:]:
        line["loss"] = float("nan")

    clock = {"now": 0.0}

    def sleep(seconds: float) -> None:
        clock["now"] += seconds
        for file, own in zip(files, lines, strict=True):
            with file.open("a") as stream:
                stream.writelines(json.dumps(line) + "\n" for line in own[:20])
            del own[:20]

    sleep(0)
    views = watch([tmp_path], base=tmp_path, plan=Plan(grace_s=30.0), sleep=sleep, now=lambda: clock["now"])
    found = [i for view in islice(views, 14) for i in view.incidents]
    assert [(i.onset_step, i.rank) for i in found][:1] == [(221, 2)]


class Dead:
    """A file on a network file system that has died: a look at it blocks in the kernel."""

    def __init__(self, pipe: Path) -> None:
        self.pipe, self.reads = pipe, 0

    def poll(self) -> Parsed:
        self.reads += 1
        if self.reads == 2:
            self.pipe.read_bytes()
        return Parsed("", (), 0)


def test_a_filesystem_that_does_not_answer_is_told_and_the_other_files_still_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spike.readers.polling.STUCK_S", 0.1)
    dead = tmp_path / "dead.pipe"
    os.mkfifo(dead)
    lines = rows(300)
    lines[220]["loss"] *= 1.8
    writer = Writer(tmp_path / "a.jsonl", lines, 10)

    def opened(path: Path, columns: Any) -> Any:
        return Dead(path) if path == dead else open_follower(path, columns)

    def sleep(seconds: float) -> None:
        time.sleep(0.02)
        writer.sleep(seconds)

    views = watch([dead, writer.path], base=tmp_path, plan=Plan(grace_s=0.05), sleep=sleep, open_file=opened)
    seen = list(islice(views, 35))
    assert [i.onset_step for view in seen for i in view.incidents] == [221]
    assert [h.path for h in seen[-1].hanging] == [dead]
    assert seen[-1].hanging[0].seconds > 0.1
    assert not seen[-1].hanging[0].is_first
    with dead.open("wb"):  # the file system comes back: the thread that hung is free again
        pass
    assert any(not view.hanging for view in islice(views, 50))


def test_a_source_that_falls_silent_while_others_go_on_is_named(tmp_path: Path) -> None:
    files = [tmp_path / f"rank{rank}.jsonl" for rank in range(3)]
    clock = {"now": 0.0}
    lines = {file: rows(400, seed=n) for n, file in enumerate(files)}

    def sleep(seconds: float) -> None:
        clock["now"] += seconds
        for file in files:
            if file is not files[1] or clock["now"] < 20:
                write_more(file, lines[file][:5])
                del lines[file][:5]

    sleep(0.0)
    plan = Plan(grace_s=30.0, stall_s=15.0)
    seen = list(islice(watch([tmp_path], base=tmp_path, plan=plan, sleep=sleep, now=lambda: clock["now"]), 50))
    assert {view.silent for view in seen} == {(), ("rank1.jsonl",)}
    assert seen[-1].silent == ("rank1.jsonl",)
    assert not seen[-1].is_stalled


def write_more(path: Path, lines: list[dict[str, float]]) -> None:
    with path.open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)


def resumed(tmp_path: Path, factor: float) -> Writer:
    """A run that diverged at 221 and is resumed from 200; afterwards its loss is `factor` times what it should be."""
    lines = rows(260)
    for line in lines[220:]:
        line["loss"] *= 3.0
    again = rows(400)[200:]
    for line in again:
        line["loss"] *= factor
    writer = Writer(tmp_path / "a.jsonl", lines + again, 10)
    writer.write(260)
    return writer


def test_a_resumed_run_is_back_after_enough_rows_on_its_old_trend_behind_the_old_onset(tmp_path: Path) -> None:
    plan = Plan(until_healthy=30, grace_s=30.0)
    views = follow(resumed(tmp_path, 1.0), 12, plan)
    back = [view.step for view in views if view.standing is not None and view.standing.is_back]
    assert back[0] == 250  # 221 to 250 are thirty rows
    assert not any(view.incidents for view in views)
    standing = next(view.standing for view in views if view.step == 250)
    assert standing is not None
    assert standing.words == "back on the trend before the incident at step 221: 30 healthy rows in a row"


def test_a_resumed_run_that_stays_above_its_old_trend_is_not_back(tmp_path: Path) -> None:
    views = follow(resumed(tmp_path, 1.04), 18, Plan(Severity.FATAL, until_healthy=20, grace_s=30.0))
    assert not any(view.standing.is_back for view in views if view.standing is not None)
    last = views[-1].standing
    assert last is not None
    assert last.has_failed
    assert "not back on the trend before the incident at step 221: the loss stays +0." in last.words


Start = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def spike(tmp_path: Path) -> Start:
    def start(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "spike.cli.app", "watch", "--every", "0.1", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    return start


def write(path: Path, lines: list[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """A watch of a.jsonl that has read what was there."""
    command = [sys.executable, "-m", "spike.cli.app", "watch", "a.jsonl", *arguments]
    watching = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stderr is not None
    assert re.match(r"\d\d:\d\d:\d\d step \d+: loss ", watching.stderr.readline())
    return watching


def test_the_command_ends_with_one_at_an_incident_that_goes_on(tmp_path: Path) -> None:
    lines = rows(230)
    for line in lines[220:]:
        line["loss"] = float("nan")
    write(tmp_path / "a.jsonl", lines[:200])
    with started(tmp_path, "--every", "0.1") as watching:
        write_more(tmp_path / "a.jsonl", lines[200:])
        told, _ = watching.communicate(timeout=60)
    assert watching.returncode == 1
    assert "non-finite values at step 221, fatal" in told
    assert "spike freeze" in told


def test_the_command_ends_with_zero_after_enough_healthy_rows(tmp_path: Path, spike: Start) -> None:
    write(tmp_path / "a.jsonl", rows(100))
    told = spike(["a.jsonl", "--until-healthy", "0", "--json"])
    assert told.returncode == 0
    assert json.loads(told.stdout) == {
        "schema": "spike.watch/1",
        "reason": "healthy",
        "step": 100,
        "rows": 0,
        "why": "0 healthy rows in a row; there was no incident before to compare with",
        "incidents": [],
    }


@pytest.mark.parametrize("arguments", [["--fail-on", "never"], ["--every", "0"]])
def test_a_wrong_option_is_a_usage_error(arguments: list[str], spike: Start) -> None:
    assert spike(arguments).returncode == 2


GROW = """
import json, sys, time
rows = json.load(open("rows.json"))
with open("a.jsonl", "a") as log:
    for row in rows:
        time.sleep(0.05)
        log.write(json.dumps(row) + "\\n")
        log.flush()
    print(time.time(), flush=True)
"""


def test_a_live_run_that_goes_bad_is_alarmed_with_the_default_interval(tmp_path: Path) -> None:
    assert Plan().interval_s <= 1.0, "an alarm within two seconds of its line needs a look a second"
    lines = rows(260)
    lines[-1]["loss"] *= 1.8
    write(tmp_path / "a.jsonl", lines[:200])
    (tmp_path / "rows.json").write_text(json.dumps(lines[200:]))
    with started(tmp_path) as watching:
        writer = subprocess.run(
            [sys.executable, "-c", GROW], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        told, said = watching.communicate(timeout=60)
        late = time.time() - float(writer.stdout)
    assert watching.returncode == 1, said
    assert "loss spike at step 260" in told
    assert late < 10.0, "two seconds are promised on an idle machine; bench/watch.py measures them"


def test_the_command_of_the_operator_gets_the_incident_and_its_failure_is_told(tmp_path: Path) -> None:
    lines = rows(230)
    for line in lines[220:]:
        line["loss"] = float("nan")
    write(tmp_path / "a.jsonl", lines[:220])
    hook = "cat > stdin.json; printenv SPIKE_INCIDENT > variable.json; sleep 0.2; exit 7"
    with started(tmp_path, "--every", "0.1", "--on-incident", hook) as watching:
        assert watching.stderr is not None
        write_more(tmp_path / "a.jsonl", lines[220:])
        said = [watching.stderr.readline(), watching.stderr.readline()]
        assert watching.poll() is None, "it goes on watching"
        watching.terminate()
    assert "non-finite values at step 221, fatal" in said[0]
    assert "--on-incident ended with exit 7" in said[1]
    payload = json.loads((tmp_path / "stdin.json").read_text())
    assert payload == json.loads((tmp_path / "variable.json").read_text())
    assert payload["incidents"][0]["onset_step"] == 221
    assert payload["schema"] == "spike.watch/1"


@pytest.mark.parametrize(("factor", "code", "words"), [(1.0, 0, "healthy up to"), (1.1, 1, "not healthy up to")])
def test_a_resumed_run_ends_the_command_with_whether_it_is_back(
    tmp_path: Path, factor: float, code: int, words: str
) -> None:
    writer = resumed(tmp_path, factor)
    with started(tmp_path, "--every", "0.05", "--until-healthy", "30", "--fail-on", "fatal") as watching:
        writer.write(200)
        told, said = watching.communicate(timeout=60)
    assert watching.returncode == code, said
    assert told.startswith(words)
    assert "the trend before the incident at step 221" in told


class Broken:
    """A reader with a bug."""

    def poll(self) -> Parsed:
        raise RuntimeError("boom")


def test_a_bug_in_a_reader_ends_the_watch_and_is_not_taken_for_a_dead_filesystem(tmp_path: Path) -> None:
    views = watch([tmp_path / "a"], base=tmp_path, plan=Plan(grace_s=30.0), open_file=lambda _path, _columns: Broken())  # type: ignore[arg-type,return-value]
    with pytest.raises(RuntimeError, match="boom"):
        next(views)
