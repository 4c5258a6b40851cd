"""How does a command run from start to end? Guarded, timed, followed step by step, and ended with all its children."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from spike.lab.guards.entry import Entry
from spike.lab.guards.process import GuardedProcess, Report, start
from spike.lab.traces import trace_files

_POLL_S = 0.2
_AFTER_WINDOW_S = 60.0
"""Time for the launcher to notice that every rank has finished its window, before it is ended."""

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended, before anything is read from what it wrote."""

    ended: str
    """As in `TrialRun.ended`, or "guard-failed" where the command never ran because of its guard."""
    report: Report
    seconds: float


@dataclass(slots=True)
class TraceTail:
    """Follows the ranks' traces while they grow."""

    directory: Path
    last_step: int = 0
    world: int = 0
    finished: set[str] = field(default_factory=set)
    """Ranks' files that have their end line."""
    _offsets: dict[Path, int] = field(default_factory=dict)

    def advance(self) -> None:
        """Take in what was written since the last call; the slowest rank counts nothing, the first one does."""
        for path in trace_files(self.directory):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                lines = file.readlines()
            whole = [line for line in lines if line.endswith(b"\n")]
            self._offsets[path] = self._offsets.get(path, 0) + sum(len(line) for line in whole)
            for line in whole:
                self._hear(path, line)

    def _hear(self, path: Path, line: bytes) -> None:
        if not line.startswith((b'{"t":"step"', b'{"t":"start"', b'{"t":"end"', b'{"t": ')):
            return
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            match event["t"]:
                case "start":
                    self.world = max(self.world, int(event["world"]))
                case "step":
                    self.last_step = max(self.last_step, int(event["step"]))
                case "end":
                    self.finished.add(path.name)

    def is_complete(self) -> bool:
        """True where every rank has said that it ended."""
        return 0 < self.world <= len(self.finished)


@dataclass(slots=True)
class _Interrupt:
    """Set by Ctrl-C or TERM, so that the tree is ended and what was written is still read."""

    received: bool = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.received = True


@contextlib.contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt.receive) for number in numbers}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command(
    entry: Entry,
    directory: Path,
    *,
    first_step: int,
    stop_after: int,
    limit_s: float,
    on_step: OnStep,
) -> Finished:
    """Run the command of `entry` to its end, its output in `stdout.log` and `stderr.log` of `directory`.

    `on_step(done, total)` is called as the first rank advances. Returns when no process of it is left; after
    `limit_s` seconds, Ctrl-C or TERM it is ended, all of it.
    """
    begun = time.monotonic()
    with (
        _interruptible() as interrupt,
        start(entry, directory / "stdout.log", directory / "stderr.log") as process,
    ):
        why = _follow(process, TraceTail(directory), interrupt, begun, limit_s, first_step, stop_after, on_step)
        process.stop()
        report = process.report()
    return Finished(_ended(why, report), report, time.monotonic() - begun)


def _follow(
    process: GuardedProcess,
    tail: TraceTail,
    interrupt: _Interrupt,
    begun: float,
    limit_s: float,
    first_step: int,
    stop_after: int,
    on_step: OnStep,
) -> str:
    """Until the command ends by itself or has to be ended; the reason."""
    told, complete_at = first_step, float("inf")
    while True:
        over = process.wait(_POLL_S)
        tail.advance()
        if tail.last_step > told:
            told = tail.last_step
            on_step(told - first_step, stop_after - first_step)
        now = time.monotonic()
        if over:
            return "exited"
        if interrupt.received:
            return "interrupted"
        if now - begun > limit_s:
            return "time-limit"
        if tail.is_complete():
            complete_at = min(complete_at, now)
            if now - complete_at > _AFTER_WINDOW_S:
                return "exited"


def _ended(why: str, report: Report) -> str:
    if why != "exited":
        return why
    if report.failed_stage == "launch":
        return "launch-failed"
    if not report.started:
        return "guard-failed"
    return "exited"


def run_aside(entry: Entry, stdout: Path, stderr: Path, *, limit_s: float) -> Report | None:
    """Run another command of the trial, its output in the two files; None where `limit_s` or Ctrl-C ended it."""
    with _interruptible() as interrupt, start(entry, stdout, stderr) as process:
        deadline = time.monotonic() + limit_s
        while not process.wait(_POLL_S):
            if interrupt.received or time.monotonic() > deadline:
                return None
        return process.report()
