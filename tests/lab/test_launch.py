"""Does every command end, with all its children, and is it said how?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spike.domain.run import Run
from spike.lab.guards.choice import Guard
from spike.lab.requests import read_answer, write_request
from spike.lab.runner import TrialRequest, run_trial

pytestmark = pytest.mark.process

FAMILY = """\
import os, subprocess, sys, time
marker = {marker!r}
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", marker], start_new_session=True)
subprocess.Popen(["sh", "-c", f"trap '' TERM; sleep 300 & echo $! {{marker}}; wait"], start_new_session=True)
open("begun.jsonl", "w").write("{{}}")
{body}
"""


def _processes(marker: str) -> list[str]:
    """Command lines of living processes that carry the marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marker in line:
                found.append(line)
    return found


def _wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


@pytest.fixture
def marker(tmp_path: Path) -> str:
    return f"spike-family-{os.getpid()}-{tmp_path.name}"


@pytest.mark.parametrize("guard", [Guard.OVERLAY, Guard.LANDLOCK])
def test_children_that_the_command_leaves_behind_are_ended(
    guard: Guard,
    marker: str,
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    found = run_trial(request_for(bare_run(FAMILY.format(marker=marker, body="sys.exit(5)"))))
    assert (found.ended, found.exit_code) == ("exited", 5)
    assert _processes(marker) == []


@pytest.mark.parametrize("guard", [Guard.OVERLAY, Guard.LANDLOCK])
def test_a_hanging_command_is_ended_with_its_family_at_the_time_limit(
    guard: Guard,
    marker: str,
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    run = bare_run(FAMILY.format(marker=marker, body="time.sleep(300)"), minutes=1.5 / 60)
    found = run_trial(request_for(run))
    assert found.ended == "time-limit"
    assert found.exit_code == -signal.SIGTERM
    assert _processes(marker) == []
    assert (Path(found.metrics_dir) / "begun.jsonl").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_trial_ends_its_family_and_still_answers(
    number: signal.Signals, marker: str, bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    request = request_for(bare_run(FAMILY.format(marker=marker, body="time.sleep(300)")))
    write_request(request)
    spike = subprocess.Popen([sys.executable, "-m", "spike.lab.trial_main", request.directory])
    assert _wait_for(lambda: len(_processes(marker)) >= 2)
    spike.send_signal(number)
    assert spike.wait(30) == 0
    assert read_answer(Path(request.directory)).ended == "interrupted"
    assert _processes(marker) == []
    assert not (Path(request.directory) / "view").exists()


@pytest.mark.parametrize("guard", [Guard.OVERLAY, Guard.LANDLOCK])
def test_a_killed_spike_leaves_no_child_and_no_mount_and_can_be_run_again(
    guard: Guard,
    marker: str,
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    run = bare_run(FAMILY.format(marker=marker, body="time.sleep(300)"))
    request = request_for(run)
    write_request(request)
    spike = subprocess.Popen([sys.executable, "-m", "spike.lab.trial_main", request.directory])
    assert _wait_for(lambda: len(_processes(marker)) >= 2)
    spike.kill()
    spike.wait()
    assert _wait_for(lambda: _processes(marker) == []), _processes(marker)
    assert request.directory not in Path("/proc/self/mountinfo").read_text()
    assert not (Path(run.directory) / "begun.jsonl").exists()
    (Path(run.directory) / "train.py").write_text("open('second.jsonl', 'w').write('{}')")
    found = run_trial(request)
    assert (found.ended, found.exit_code) == ("exited", 0), found.stderr_tail
    assert sorted(p.name for p in Path(found.metrics_dir).iterdir()) == ["second.jsonl", "stderr.log", "stdout.log"]
    assert not (Path(request.directory) / "view").exists()


@pytest.mark.parametrize("guard", list(Guard))
@pytest.mark.parametrize("launch", ["no-such-program --x", "no-such-program && true", "./train.py"])
def test_a_command_that_cannot_start_is_said_to_be_so(
    launch: str,
    guard: Guard,
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    found = run_trial(request_for(bare_run("pass", launch=launch)))
    assert found.ended == "launch-failed"
    assert launch.split()[0] in found.stderr_tail
    assert found.traces == ()


def test_a_command_that_fails_at_once_shows_its_last_words_without_its_secrets(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    run = bare_run(
        "import os, sys; print('token', os.environ['SECRET']); sys.exit('no GPU for ' + os.environ['SECRET'])"
    )
    run = replace(run, env=(("SECRET", "hf_abcdef"),))
    found = run_trial(request_for(run), redact=lambda text: text.replace("hf_abcdef", "[redacted]"))
    assert (found.ended, found.exit_code) == ("exited", 1)
    assert found.stderr_tail == "no GPU for [redacted]"
    kept = [path.read_bytes() for path in Path(found.directory).rglob("*") if path.is_file()]
    assert not any(b"hf_abcdef" in content for content in kept)


def test_a_command_without_an_optimizer_step_has_no_trace(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    found = run_trial(request_for(bare_run("print('nothing to train')")))
    assert (found.ended, found.exit_code, found.traces) == ("exited", 0, ())


def test_a_shell_line_runs_with_its_variables_and_pipes(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    run = bare_run("import os; print(os.environ['MODE'])", launch=f"MODE=fast {sys.executable} train.py | tr a-z A-Z")
    found = run_trial(request_for(run))
    assert (Path(found.metrics_dir) / "stdout.log").read_text() == "FAST\n"


def test_a_trial_never_reports_to_a_tracking_server_unless_told_to(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    run = bare_run("import os; print(os.environ['WANDB_MODE'])")
    assert "offline" in (Path(run_trial(request_for(run)).metrics_dir) / "stdout.log").read_text()
    told = replace(run, env=(("WANDB_MODE", "online"),))
    assert "online" in (Path(run_trial(request_for(told)).metrics_dir) / "stdout.log").read_text()
