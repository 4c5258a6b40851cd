"""How are fixture runs built and replayed by hand, without a line of spike? For the tests of the fixtures."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
Rows = dict[int, dict[str, Any]]


def build(name: str, directory: Path) -> Path:
    """The run of this fixture, built by its own script."""
    command = [sys.executable, str(FIXTURES / "build.py"), name, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return directory


def rows(run: Path, log: str = "logs/log.jsonl") -> Rows:
    """What the run logged, by step; the last row of a step wins."""
    logged = (json.loads(line) for line in (run / log).read_text().splitlines())
    return {row["step"]: row for row in logged}


def replay(run: Path, place: Path, checkpoint: str, log: str = "logs/log.jsonl", flags: str = "") -> Rows:
    """Rows that the run's launch command logs from `checkpoint` on, in a copy of the run."""
    copy = place / "copy"
    shutil.copytree(run, copy)
    (copy / log).unlink()
    described = yaml.safe_load((run / "spike.yaml").read_text())
    command = shlex.split(described["launch"].replace("{checkpoint}", checkpoint) + " " + flags)
    environment = {**os.environ, **described["env"]}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = rows(copy, log)
    shutil.rmtree(copy)
    return found


def differing(record: Rows, replayed: Rows) -> list[int]:
    """Steps whose loss, gradient norm or learning rate differ in any bit."""
    keys = ("loss", "grad_norm", "lr")
    return [s for s, row in replayed.items() if any(repr(row[k]) != repr(record[s][k]) for k in keys)]


def distance(record: Rows, step: int, signal: str, window: int = 60) -> float:
    """How far the signal lies above its own last `window` steps, in robust standard deviations of its logarithm."""
    logs = sorted(math.log(record[s][signal]) for s in range(step - window, step))
    centre = logs[len(logs) // 2]
    deviations = sorted(abs(x - centre) for x in logs)
    value = record[step][signal]
    return (
        (math.log(value) - centre) / (1.4826 * deviations[len(deviations) // 2]) if math.isfinite(value) else math.inf
    )
