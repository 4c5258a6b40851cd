"""What does an incident look like from start to postmortem? A real small run is trained, goes bad, and is walked.

Nothing is played back: the training, the damage to its data and every trial of the runbook happen here and now.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spike.actions.answers import read_verdict
from spike.actions.status import find_case
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.truth import Truth
from spike.domain.verdict import Verdict
from spike.knowledge.shipped import shipped_directory
from spike.knowledge.truths import load_truths
from spike.readers.run_file import load_run

FIXTURE = "demo"
LAST_STEP = 440
"""Where the demo's training ends, for the progress bar."""
POLL_S = 0.5
POSTMORTEM = "postmortem.md"

OnStep = Callable[[int, float], None]
"""Called with the last step and its loss while the model trains."""
Execute = Callable[[Path], int]
"""Walks through the runbook in the given run directory; returns the exit code."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Where everything lies, and what was found."""

    run: Path
    case: Path | None
    postmortem: Path | None
    verdict: Verdict | None
    truth: Truth
    """What the demo had planted; the walk knew nothing of it."""
    exit_code: int
    """Of the walk."""
    train_s: float
    walk_s: float


def demo(directory: Path, *, walk: Execute, on_step: OnStep, talk: Callable[[str], None]) -> DemoResult:
    """Train into `directory` (new or empty), then walk. Raises `SpikeError` where the training cannot be run."""
    fixtures = shipped_directory("fixtures")
    (truth,) = load_truths(fixtures, (FIXTURE,))
    if directory.exists() and any(directory.iterdir()):
        raise SpikeError(
            f"{directory} is not empty", hint=f"spike demo another-directory, or spike walk --run {directory}"
        )
    began = time.monotonic()
    talk(f"Training a small GPT in {directory}, on the sources of Python's own library. About a minute.")
    _train(fixtures, directory, on_step)
    trained = time.monotonic()
    talk(f"Trained in {trained - began:.0f} s. Something happened to this run. The runbook, unattended:")
    code = walk(directory)
    return _result(directory, truth, code, trained - began, time.monotonic() - trained)


def _train(fixtures: Path, directory: Path, on_step: OnStep) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    said = directory.with_name(f"{directory.name}.build.log")
    with said.open("w+") as log:
        command = [sys.executable, str(fixtures / "build.py"), FIXTURE, str(directory)]
        builder = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            while builder.poll() is None:
                _tell_last_step(directory / "logs/log.jsonl", on_step)
                time.sleep(POLL_S)
        finally:
            if builder.poll() is None:
                builder.terminate()
                builder.wait()
        log.seek(0)
        text = log.read().strip()
    said.unlink()
    if builder.returncode:
        raise SpikeError(f"the training of the demo failed: {text[-1000:]}", exit_code=ExitCode.UNREADABLE)


def _tell_last_step(log: Path, on_step: OnStep) -> None:
    try:
        whole, _, _torn = log.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return
    if whole:
        row = json.loads(whole.rpartition(b"\n")[2])
        on_step(int(row["step"]), float(row["loss"]))


def _result(directory: Path, truth: Truth, code: int, train_s: float, walk_s: float) -> DemoResult:
    case = find_case(load_run(directory), None)
    written = case.path / POSTMORTEM if case is not None else None
    return DemoResult(
        run=directory,
        case=case.path if case is not None else None,
        postmortem=written if written is not None and written.is_file() else None,
        verdict=read_verdict(case) if case is not None else None,
        truth=truth,
        exit_code=code,
        train_s=train_s,
        walk_s=walk_s,
    )
