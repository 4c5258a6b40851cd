"""Who is working on this case right now? One lock, with the holder's name in it."""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from spike.casefile.atomic import write_all, writing
from spike.domain.errors import SpikeError

LOCK_NAME = ".lock"
DIFFERED = "differed before"
"""Key of the note: files that were not as the journal has them when the holder came, one a line."""
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_LOOK_AGAIN_S = 0.05

_depth: dict[str, int] = {}
"""Locks that this process holds: one command may call another on the same case."""


def operator_name() -> str:
    """SPIKE_OPERATOR, else the login name, else the numeric user id."""
    try:
        return os.environ.get("SPIKE_OPERATOR", "").strip() or getpass.getuser()
    except (KeyError, OSError):  # a container user without an entry in passwd
        return f"uid {os.getuid()}"


def utc_now() -> str:
    """This moment, UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_holder(case: Path) -> dict[str, str]:
    """What the lock file says: command, operator, pid, host, since. Empty where nobody holds or held it."""
    try:
        found = json.loads((case / LOCK_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def differed_before(holder: dict[str, str]) -> frozenset[str]:
    """Files that are not the holder's work, though they are not as the journal has them."""
    return frozenset(holder.get(DIFFERED, "").split("\n")) - {""}


def interrupted(case: Path) -> dict[str, str]:
    """The holder of a lock that was never given back, where that process is gone; else empty."""
    holder = read_holder(case)
    return holder if holder and not _is_alive(holder) and holder.get("host") == socket.gethostname() else {}


class CaseInUse(SpikeError):
    """Somebody else holds the lock; whoever can wait does."""


@contextmanager
def case_lock(
    case: Path,
    command: str,
    *,
    wait_s: float = 0.0,
    remember: Callable[[dict[str, str]], None] = lambda _holder: None,
    differing: Callable[[], frozenset[str]] = frozenset,
) -> Iterator[None]:
    """Hold the case for `command`. Re-entrant within a process; a dead process's lock is taken over.

    `remember` gets the note of an interrupted holder before it is overwritten. `differing` names files that are not
    as the journal has them: those before the command are noted, for nobody shall take them for its work; where it
    fails (a full disk) and leaves more of them, its note stays as that of a killed one does. Raises `CaseInUse`
    naming command, operator, pid, host and since when, if somebody else holds it and still does after `wait_s`.
    """
    key = str(case.resolve())
    if _depth.get(key, 0):
        _depth[key] += 1
        try:
            yield
        finally:
            _depth[key] -= 1
        return
    with writing(case / LOCK_NAME):
        handle = os.open(case / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(handle, case, time.monotonic() + wait_s)
        before = read_holder(case)
        if before:
            remember(before)
        already = differing()
        with writing(case / LOCK_NAME):
            _write_holder(handle, command, already)
        _depth[key] = 1
        try:
            yield
        except BaseException:
            if differing() <= already:
                _let_go(handle)
            raise
        else:
            _let_go(handle)
        finally:
            del _depth[key]
    finally:
        os.close(handle)


def _let_go(handle: int) -> None:
    with suppress(OSError):
        os.ftruncate(handle, 0)


def _acquire(handle: int, case: Path, deadline: float) -> None:
    while True:
        try:
            return _try(handle, case)
        except CaseInUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_AGAIN_S)


def _try(handle: int, case: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _held(case) from error
    except OSError as error:
        # A filesystem without locks (Lustre without -o flock): the holder's note is all there is.
        if error.errno not in _NO_FLOCK:
            raise
        holder = read_holder(case)
        if holder and (_is_alive(holder) or holder.get("host") != socket.gethostname()):
            raise _held(case) from error


def _held(case: Path) -> CaseInUse:
    holder = read_holder(case)
    who = (
        f"`spike {holder.get('command', '?')}` of {holder.get('operator', '?')} (pid {holder.get('pid', '?')}"
        f" on {holder.get('host', '?')}) since {holder.get('since', '?')}"
        if holder
        else "another spike command (it has not written its name yet)"
    )
    return CaseInUse(
        f"case {case} is in use by {who}",
        hint=f"wait for it, or look at it: ssh {holder.get('host', 'HOST')} ps -fp {holder.get('pid', 'PID')}",
    )


def _write_holder(handle: int, command: str, differed: frozenset[str]) -> None:
    note = {
        "command": command,
        "operator": operator_name(),
        "pid": str(os.getpid()),
        "host": socket.gethostname(),
        "since": utc_now(),
        **({DIFFERED: "\n".join(sorted(differed))} if differed else {}),
    }
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    write_all(handle, json.dumps(note).encode())
    os.fsync(handle)


def _is_alive(holder: dict[str, str]) -> bool:
    """True where the holder's process exists on this host; an unreadable pid counts as alive."""
    if holder.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(holder.get("pid", "")), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        return True
    return True
