"""Does the whole runbook, unattended, end with a true verdict and an untouched run?"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spike.lab.tree_state import tree_state
from tests.actions import tiny_run

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.build(tmp_path_factory.mktemp("tiny") / "run")


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run", copy_function=shutil.copy2)
    return tmp_path / "run"


def spike(*words: str, cwd: Path, operator: str = "ada") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spike.cli.app", *words]
    env = {**os.environ, "SPIKE_OPERATOR": operator}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=env, timeout=500)


def the_case(run_dir: Path) -> Path:
    (case,) = [p for p in run_dir.with_name("run.spike").iterdir() if (p / "case.yaml").exists()]
    return case


def test_a_walk_names_the_cause_leaves_a_postmortem_and_the_run_as_it_was(run_dir: Path) -> None:
    before = tree_state(run_dir)
    walked = spike("walk", "--yes", cwd=run_dir)
    assert tree_state(run_dir) == before
    case = the_case(run_dir)
    verdict = json.loads((case / "verdict.json").read_text())
    assert (verdict["status"], verdict["cause"], verdict["step"]) == (
        "established",
        "data/corrupt-batch",
        tiny_run.ONSET,
    )
    assert verdict["where"]["samples"] == list(range(4, 12)), walked.stderr
    gate = json.loads((case / "gate.json").read_text())
    states = {c["name"]: c["state"] for c in gate["conditions"]}
    assert states["held-out"] == "not measured"  # no holdout command: the gate must stay closed for it
    assert not gate["is_open"]
    assert walked.returncode == 1
    first = (case / "postmortem.md").read_bytes()
    assert b"data/corrupt-batch" in first
    again = spike("report", "--case", str(case), cwd=run_dir)
    assert again.returncode == 0, again.stderr
    assert (case / "postmortem.md").read_bytes() == first
    assert spike("verify", "--case", str(case), cwd=run_dir).returncode == 0
    answer = spike("bisect", "--json", cwd=run_dir)
    found = json.loads(answer.stdout)
    assert {
        "schema",
        "status",
        "class",
        "cause",
        "step",
        "where",
        "evidence",
        "rejected",
        "inseparable",
        "trials",
        "next",
    } <= set(found)
    assert found["class"] == "data"
    assert found["trials"] <= 10


def test_a_killed_bisect_leaves_no_child_and_goes_on_for_another_operator(run_dir: Path) -> None:
    before = tree_state(run_dir)
    assert spike("freeze", cwd=run_dir).returncode == 0
    command = [sys.executable, "-m", "spike.cli.app", "bisect", "--json"]
    process = subprocess.Popen(command, cwd=run_dir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(the_case(run_dir).glob("trials/T002*")):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _trainers(run_dir):
        time.sleep(0.1)
    assert _trainers(run_dir) == []
    done = spike("bisect", "--json", cwd=run_dir, operator="grace")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cause"] == "data/corrupt-batch"
    assert tree_state(run_dir) == before


def test_two_operators_at_once_get_a_clear_message(run_dir: Path) -> None:
    assert spike("freeze", cwd=run_dir).returncode == 0
    command = [sys.executable, "-m", "spike.cli.app", "replay"]
    env = {**os.environ, "SPIKE_OPERATOR": "ada"}
    first = subprocess.Popen(command, cwd=run_dir, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
    assert first.stderr is not None
    assert b"T001" in first.stderr.readline()
    second = spike("replay", cwd=run_dir, operator="grace")
    first.communicate()
    assert second.returncode == 2
    assert "ada" in second.stderr
    assert first.returncode == 0


def _trainers(run_dir: Path) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            cwd = os.readlink(process / "cwd")
        except OSError:
            continue
        if b"train.py" in words and str(run_dir) in cwd:
            found.append(process.name)
    return found
