"""How does spike start a guarded command, hear from it and end it? One object per command."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from spike.lab.guards.entry import Entry

_LAST_RESORT_S = 15.0
"""How long the supervisor may take beyond the grace before it is killed itself."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the supervisor said about the command."""

    failed_stage: str = ""
    """Where it went wrong before the command ran: "launch" (the command itself), or a stage of the guard."""
    error: str = ""
    notes: tuple[str, ...] = ()
    """Directories that are protected in another way than wanted, with the reason."""
    started: bool = False
    code: int | None = None
    """Exit code, or minus the number of the signal; None where the supervisor died first."""
    stopped: bool = False


@dataclass(slots=True)
class GuardedProcess:
    """A command below its supervisor. Use as a context manager: leaving it ends the whole tree."""

    grace_s: float
    _process: subprocess.Popen[bytes]
    _events: IO[bytes]
    _heard: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> GuardedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._events.close()

    def is_running(self) -> bool:
        """True until the last process of the trial has ended."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; True where everything has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """TERM to everyone in the trial, KILL after the grace; returns when nobody is left."""
        if not self.is_running():
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        if not self.wait(self.grace_s + _LAST_RESORT_S):
            self._process.kill()
            self._process.wait()

    def report(self) -> Report:
        """What was heard; complete once the process has ended."""
        self._heard += [json.loads(line) for line in self._events if line.endswith(b"\n")]
        facts = {event["event"]: event for event in self._heard}
        failed, ended = facts.get("failed", {}), facts.get("ended", {})
        return Report(
            failed_stage=failed.get("stage", ""),
            error=failed.get("error", ""),
            notes=tuple(facts.get("ready", {}).get("notes", ())),
            started="started" in facts,
            code=ended.get("code"),
            stopped=ended.get("stopped", False),
        )


def start(entry: Entry, stdout: Path, stderr: Path) -> GuardedProcess:
    """Start the command of `entry` in its own session; its output goes to the two files.

    `parent` and `status_fd` of the entry are filled in here.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    filled = replace(entry, parent=os.getpid(), status_fd=writing)
    with stdout.open("ab") as out, stderr.open("ab") as err:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "spike.lab.guards.enter"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            pass_fds=(writing,),
            start_new_session=True,
        )
    os.close(writing)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(filled.to_json())
    return GuardedProcess(entry.grace_s, process, os.fdopen(reading, "rb"))
