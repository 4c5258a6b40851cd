"""Do two people who type at once get one sound case, and a sentence where one of them has to wait?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest

from spike.actions.evidence.verify import verify
from spike.casefile.case import list_cases, open_case
from spike.casefile.journal import verify_chain
from spike.domain.verification import Integrity
from tests.casefile.test_signing import write_keys
from tests.crash.world import ROOT, describe, write_run

pytestmark = pytest.mark.process


def spike(run: Path, *words: str, operator: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SPIKE_OPERATOR": operator, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "spike.cli.app", *words]
    return subprocess.Popen(
        command, cwd=run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(exit code, what it told the operator)."""
    _out, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", (100, 200))
    describe(tmp_path / "run")
    return tmp_path / "run"


def the_case(run: Path) -> Path:
    (case,) = list_cases(run.with_name("run.spike"))
    return case


def test_commands_typed_at_once_by_two_operators_leave_one_sound_case(run: Path, tmp_path: Path) -> None:
    """Every pair of different writing commands, side by side."""
    key, _public = write_keys(tmp_path)
    assert said(spike(run, "freeze", operator="ada"))[0] == 0
    case = the_case(run)
    commands = {"check": ("check",), "report": ("report",), "freeze": ("freeze", "--key", str(key))}
    tried = waited = 0
    for first, second in combinations(commands, 2):
        pair = [spike(run, *commands[first], operator="ada"), spike(run, *commands[second], operator="grace")]
        for process in pair:
            code, err = said(process)
            if code != 0:
                assert code == 2, err
                assert "is in use by `spike " in err or "it has not written its name yet" in err
                assert "next: wait for it" in err
                waited += 1
        tried += 1
        assert any(process.returncode == 0 for process in pair)
        assert verify_chain(case) == ()
        assert verify(case).integrity is Integrity.INTACT
    assert tried == 3
    numbers = [entry.seq for entry in open_case(case).journal()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_two_freezes_of_one_incident_at_once_do_not_lose_evidence(run: Path) -> None:
    pair = [spike(run, "freeze", operator=name) for name in ("ada", "grace")]
    codes = []
    for process in pair:
        code, err = said(process)
        codes.append(code)
        assert code == 0 or "is in use by" in err or "exists already" in err, err
    assert 0 in codes
    for case in list_cases(run.with_name("run.spike")):
        assert verify(case).integrity in (Integrity.INTACT, Integrity.INCOMPLETE)
    assert any(verify(c).integrity is Integrity.INTACT for c in list_cases(run.with_name("run.spike")))


HOLDER = """
import sys, time
from pathlib import Path
from spike.casefile.case import open_case
with open_case(Path(sys.argv[1])).lock("bisect"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_is_ended_by_a_signal_blocks_nobody(run: Path, number: signal.Signals) -> None:
    assert said(spike(run, "freeze", operator="ada"))[0] == 0
    case = the_case(run)
    environment = {**os.environ, "SPIKE_OPERATOR": "ada", "PYTHONPATH": str(ROOT / "src")}
    holder = subprocess.Popen(
        (sys.executable, "-c", HOLDER, str(case)),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    code, err = said(spike(run, "check", operator="grace"))
    assert code == 2, err
    assert f"`spike bisect` of ada (pid {holder.pid} on " in err
    holder.send_signal(number)
    holder.communicate()
    began = time.monotonic()
    assert said(spike(run, "check", operator="grace")) == (0, "")
    assert time.monotonic() - began < 60
    assert verify(case).integrity is Integrity.INTACT
    assert json.loads((case / "checks.json").read_text())["schema"] == "spike.checks/1"
