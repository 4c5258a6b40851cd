"""Where do trials run? Here, or on a cluster: the unit of work is one self-contained trial directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spike.domain.errors import ExitCode, SpikeError
from spike.domain.trial import TrialRun
from spike.lab.requests import read_answer, write_request
from spike.lab.runner import TrialRequest

COMMAND = (sys.executable, "-P", "-m", "spike.lab.trial_main")
"""Runs the trial whose directory follows."""


def call(command: tuple[str, ...], directory: str) -> tuple[int, str]:
    """(exit code, what it said) of one trial in a process of its own."""
    done = subprocess.run([*command, directory], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


class Executor(Protocol):
    """Runs trials that are independent of each other."""

    def run(self, requests: Sequence[TrialRequest]) -> tuple[TrialRun, ...]:
        """All of them, in their order; SpikeError with the first trial that could not be run at all."""
        ...


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """One after the other on this machine, each in a process of its own."""

    command: tuple[str, ...] = COMMAND

    def run(self, requests: Sequence[TrialRequest]) -> tuple[TrialRun, ...]:
        """See `Executor`."""
        found = []
        for request in requests:
            write_request(request)
            code, said = call(self.command, request.directory)
            if code != 0:
                raise _failed(request, code, said)
            found.append(read_answer(Path(request.directory)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class SubmititExecutor:
    """As jobs of the cluster that submitit finds ("slurm"), or in local processes ("local")."""

    folder: Path
    """Where submitit keeps its job files and logs; on a file system that the nodes share."""
    cluster: str | None = None
    """"slurm", "local", or None: what is there."""
    parameters: tuple[tuple[str, str | int], ...] = ()
    """Of the jobs, as submitit names them: timeout_min, gpus_per_node, slurm_partition, ..."""
    command: tuple[str, ...] = COMMAND

    def run(self, requests: Sequence[TrialRequest]) -> tuple[TrialRun, ...]:
        """See `Executor`; all are submitted before the first is waited for."""
        try:
            import submitit
        except ImportError as error:
            raise SpikeError(
                "submitit is not installed, so trials cannot be sent to a cluster",
                hint="pip install 'spike-runbook[slurm]'",
            ) from error
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        executor.update_parameters(**dict(self.parameters))
        for request in requests:
            write_request(request)
        jobs = [executor.submit(call, self.command, request.directory) for request in requests]
        for request, job in zip(requests, jobs, strict=True):
            self._wait(request, job)
        return tuple(read_answer(Path(request.directory)) for request in requests)

    @staticmethod
    def _wait(request: TrialRequest, job: Any) -> None:
        try:
            code, said = job.result()
        except Exception as error:  # submitit raises several unrelated types for a job that died
            raise _failed(request, int(ExitCode.INCONCLUSIVE), str(error)) from error
        if code != 0:
            raise _failed(request, code, said)


def _failed(request: TrialRequest, code: int, said: str) -> SpikeError:
    known = {int(item) for item in ExitCode}
    last = "\n".join(said.strip().splitlines()[-5:]) or "it said nothing"
    return SpikeError(
        f"trial {request.spec.id} could not be run (exit {code}): {last}",
        hint=f"python -m spike.lab.trial_main {request.directory}",
        exit_code=ExitCode(code) if code in known else ExitCode.INCONCLUSIVE,
    )
