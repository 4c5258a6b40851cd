"""Real training processes under the probe: one by one, or many plans in forks of one process that has torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spike.lab.staging import probe_environment, stage_probe

SCRIPTS = Path(__file__).parent / "scripts"
_FORKS = Path(__file__).parent / "forks.py"


@dataclass
class Ran:
    """What one training command did."""

    code: int
    out: str
    err: str
    directory: Path
    ranks: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Trace lines by rank."""

    def lines(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        """The trace lines of one kind."""
        return [line for line in self.ranks[rank] if line["t"] == kind]

    def step(self, number: int, rank: int = 0) -> dict[str, Any]:
        """The record of one step."""
        return next(line for line in self.lines("step", rank) if line["step"] == number)

    def fingerprint(self, step: int, role: str, rank: int = 0) -> dict[tuple[str, str], str]:
        """(name, key) -> digest."""
        line = next(line for line in self.lines("fingerprint", rank) if line["step"] == step)
        return {(t["name"], t["key"]): t["digest"] for t in line["tensors"] if t["role"] == role}

    def rows(self) -> list[dict[str, Any]]:
        """JSON lines that the script printed."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


class Training:
    """Runs scripts below one temporary directory."""

    def __init__(self, directory: Path, stage: Path) -> None:
        self.directory = directory
        self.stage = stage

    def plan(self, name: str, **keys: Any) -> Path:
        """A plan file; `name` is also the directory of what the probe writes."""
        path = self.directory / f"{name}.plan.json"
        payload = {"schema": "spike.plan/1", "trial": name, "out": str(self.directory / name), "first_step": 0, **keys}
        path.write_text(json.dumps(payload))
        return path

    def run(
        self,
        script: str | Path,
        *arguments: str,
        name: str = "",
        launcher: tuple[str, ...] = (sys.executable,),
        environment: dict[str, str] | None = None,
        **plan: Any,
    ) -> Ran:
        """One process (or launcher); under the probe where `name` is given."""
        base = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **(environment or {})}
        base.pop("SPIKE_PROBE_PLAN", None)
        if name:
            base = probe_environment(self.stage, self.plan(name, **plan), base)
        command = [*launcher, str(self.script(script)), *arguments]
        done = subprocess.run(command, cwd=self.directory, env=base, capture_output=True, text=True, timeout=240)
        return self._ran(done.returncode, done.stdout, done.stderr, name)

    def run_forks(self, script: str | Path, arguments: list[str], plans: dict[str, dict[str, Any]]) -> dict[str, Ran]:
        """The same command under each plan, in forks of one process that has imported torch; quick.

        "{name}" in an argument is the name of the plan.
        """
        jobs = [[name, str(self.plan(name, **keys))] for name, keys in plans.items()]
        spec = self.directory / "jobs.json"
        spec.write_text(json.dumps({"script": str(self.script(script)), "arguments": arguments, "jobs": jobs}))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.stage)}
        command = [sys.executable, str(_FORKS), str(spec)]
        done = subprocess.run(command, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        codes = json.loads(done.stdout.splitlines()[-1])
        return {
            name: self._ran(
                codes[name],
                (self.directory / f"{name}.stdout").read_text(),
                (self.directory / f"{name}.stderr").read_text(),
                name,
            )
            for name in plans
        }

    def write(self, name: str, text: str) -> Path:
        """A script made up by a test."""
        path = self.directory / name
        path.write_text(text)
        return path

    def script(self, script: str | Path) -> Path:
        """A path as it is; a bare name is one of `scripts/`."""
        return script if isinstance(script, Path) else SCRIPTS / script

    def _ran(self, code: int, out: str, err: str, name: str) -> Ran:
        ran = Ran(code, out, err, self.directory / (name or "bare"))
        for path in sorted((self.directory / name / "trace").glob("rank*.jsonl")) if name else ():
            ran.ranks[int(path.stem[4:])] = [json.loads(line) for line in path.read_text().splitlines()]
        return ran


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The probe as the lab stages it."""
    return stage_probe(tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, stage: Path) -> Training:
    """Training commands of one test module."""
    return Training(tmp_path_factory.mktemp("training"), stage)
