"""Who ends a trial, all of it? The one process between spike and the command: it reaps, and leaves nobody behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LINGER_S = 5.0
"""How long background processes may outlive the command before they are killed."""
_WAKE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended: exit code, or minus the number of the signal."""

    code: int
    was_stopped: bool


def block_signals() -> None:
    """From now on signals wait for `until_over`; the command gets them unblocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKE)


def unblock_signals() -> None:
    """In the child that becomes the command: everything as a shell would hand it over."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *_WAKE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAKE)


def descendants(root: int) -> list[int]:
    """All living processes below `root`, by their parents in /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (Path(entry.path) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def signal_all(number: signal.Signals, *, is_init: bool) -> None:
    """Everyone below this process; as the first process of a PID namespace, everyone in it."""
    if is_init:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
        return
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _reap(command: int) -> tuple[int | None, bool]:
    """(exit code of the command if it was reaped now, is anybody left)."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == command:
            code = os.waitstatus_to_exitcode(status)


def until_over(command: int, grace_s: float, *, is_init: bool) -> Ended:
    """Wait for the command, then for its background children; asked to stop, end all of them.

    TERM to everyone, KILL after `grace_s`; children that the command left behind get `_LINGER_S` at most.
    """
    code: int | None = None
    stopped = False
    kill_at = float("inf")
    while True:
        received = signal.sigtimedwait(_WAKE, 0.5)
        reaped, anybody = _reap(command)
        now = time.monotonic()
        if reaped is not None:
            code = reaped
            signal_all(signal.SIGTERM, is_init=is_init)
            kill_at = min(kill_at, now + min(_LINGER_S, grace_s))
        if not anybody:
            return Ended(code if code is not None else -int(signal.SIGKILL), stopped)
        if received is not None and received.si_signo != signal.SIGCHLD and not stopped:
            stopped = True
            kill_at = min(kill_at, now + grace_s)
            signal_all(signal.SIGTERM, is_init=is_init)
        if now >= kill_at:
            signal_all(signal.SIGKILL, is_init=is_init)


def forward_until_over(child: int, on_exit: Callable[[int], None]) -> None:
    """Outside the PID namespace: pass requests to stop on to its first process, and wait for its end."""
    while True:
        received = signal.sigtimedwait(_WAKE, 1.0)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            on_exit(os.waitstatus_to_exitcode(status))
            return
        if received is not None and received.si_signo != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
