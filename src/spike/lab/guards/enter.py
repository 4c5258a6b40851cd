"""How does a process become the training command inside its guard? `python -m spike.lab.guards.enter` < entry.

Reports what happens on a pipe, one JSON object a line: `failed` {stage, error}, `ready` {notes}, `started`,
`ended` {code, stopped}. Uses the standard library alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import NoReturn

from spike.lab.guards import collect, kernel, landlock, overlay, supervise
from spike.lab.guards.entry import Entry

_EXIT_GUARD_FAILED = 125
_EXIT_NOT_FOUND = 127


def _report(fd: int, event: str, **facts: object) -> None:
    os.write(fd, (json.dumps({"event": event, **facts}) + "\n").encode())


def _become(entry: Entry, broken: int) -> NoReturn:
    """The last act of the child: exec, or tell the parent why not."""
    try:
        supervise.unblock_signals()
        os.chdir(entry.cwd)
        os.execvpe(entry.argv[0], entry.argv, entry.env)
    except OSError as error:
        name = error.filename or entry.argv[0]
        os.write(broken, f"{os.fsdecode(name)}: {error.strerror}".encode())
    os._exit(_EXIT_NOT_FOUND)


def _spawn(entry: Entry) -> int:
    """Start the command; raises OSError with the reason where it cannot be executed."""
    parent = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        kernel.die_with_parent(parent)
        _become(entry, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        reason = pipe.read().decode(errors="replace")
    if reason:
        os.waitpid(child, 0)
        raise OSError(reason)
    return child


def _run(entry: Entry, *, is_init: bool) -> int:
    """Start and supervise; exit code for this process."""
    try:
        command = _spawn(entry)
    except OSError as error:
        _report(entry.status_fd, "failed", stage="launch", error=str(error))
        return _EXIT_NOT_FOUND
    _report(entry.status_fd, "started")
    ended = supervise.until_over(command, entry.grace_s, is_init=is_init)
    _report(entry.status_fd, "ended", code=ended.code, stopped=ended.was_stopped)
    return 0


def _map_ids(uid: int, gid: int) -> None:
    """The user's own ids mean inside what they mean outside; root keeps all that it had."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _inside(entry: Entry) -> int:
    """In the namespaces, before the command: mounts, then the command, then what only lies in memory."""
    stage = ["entering"]
    try:
        if entry.pid_namespace:
            stage.append("mounting /proc")
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
            kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
            kernel.mount("proc", "/proc", "proc", flags)
        mounted = overlay.build(entry, stage.append)
        kernel.give_up_mounting()
    except OSError as error:
        _report(entry.status_fd, "failed", stage=stage[-1], error=str(error))
        return _EXIT_GUARD_FAILED
    _report(entry.status_fd, "ready", notes=mounted.notes)
    code = _run(entry, is_init=entry.pid_namespace)
    for writes in mounted.memory:
        kept = Path(mounted.scratch) / "kept" / writes.root.lstrip("/")
        collect.bring_back(Path(writes.upper), writes.root, kept, entry.keep, entry.keep_below)
    return code


def _overlay(entry: Entry) -> int:
    """Enter private namespaces; the first process of the PID namespace does the rest."""
    uid, gid = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWNS
    flags |= kernel.CLONE_NEWUSER if entry.user_namespace else 0
    flags |= kernel.CLONE_NEWPID if entry.pid_namespace else 0
    try:
        kernel.unshare(flags)
        if entry.user_namespace:
            _map_ids(uid, gid)
    except OSError as error:
        _report(entry.status_fd, "failed", stage="unshare", error=str(error))
        return _EXIT_GUARD_FAILED
    if not entry.pid_namespace:
        kernel.die_with_parent(entry.parent, signal.SIGTERM)
        kernel.adopt_orphans()
        return _inside(entry)
    kernel.die_with_parent(entry.parent)
    alive, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        kernel.die_with_parent(0)
        if select.select([alive], [], [], 0)[0]:  # closed: the parent was gone before the request was made
            os._exit(1)
        os._exit(_inside(entry))
    codes: list[int] = []
    supervise.forward_until_over(child, codes.append)
    return codes[0] if codes[0] >= 0 else 128 - codes[0]


def _landlock(entry: Entry) -> int:
    kernel.adopt_orphans()
    try:
        landlock.restrict((*entry.roots, entry.directory, *entry.through))
    except OSError as error:
        _report(entry.status_fd, "failed", stage="Landlock", error=str(error))
        return _EXIT_GUARD_FAILED
    _report(entry.status_fd, "ready", notes=())
    return _run(entry, is_init=False)


def _unguarded_by_kernel(entry: Entry) -> int:
    """The audit hook lives inside the command's own Python; here is nothing to do but supervise."""
    kernel.adopt_orphans()
    _report(entry.status_fd, "ready", notes=())
    return _run(entry, is_init=False)


def main() -> int:
    """Read the entry from stdin, become what it says."""
    entry = Entry.from_json(sys.stdin.buffer.read())
    os.set_inheritable(entry.status_fd, False)
    supervise.block_signals()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    match entry.guard:
        case "overlay":
            return _overlay(entry)
        case "worktree+landlock":
            kernel.die_with_parent(entry.parent, signal.SIGTERM)
            return _landlock(entry)
        case "audit-hook":
            kernel.die_with_parent(entry.parent, signal.SIGTERM)
            return _unguarded_by_kernel(entry)
        case other:
            raise ValueError(f"unknown guard {other!r}")


if __name__ == "__main__":
    sys.exit(main())
