"""Runs `spike` command lines in child processes that can be killed at a chosen operation, or meet a full disk.

Started once (imports are slow), it forks a child for each request, one JSON object a line:
    {"words": [...], "cwd": DIR, "env": {...}, "mode": "none" | "event" | "time" | "full", "amount": N, "below": DIR}
and answers each with one JSON line: how the child ended, how many operations it had begun, what it printed.

An operation is anything that changes what is on disk or starts a process: opening, writing, syncing, renaming,
linking, removing, locking. `event` kills right before operation N, in the middle of it where it is a write of bytes;
`full` lets every operation from N on fail that needs room below `below`, as a full disk does.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import mmap
import os
import pkgutil
import signal
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

_OPERATIONS = frozenset(
    {
        "open",
        "os.rename",
        "os.link",
        "os.mkdir",
        "os.remove",
        "os.rmdir",
        "os.symlink",
        "os.chmod",
        "os.utime",
        "os.truncate",
        "subprocess.Popen",
        "fcntl.flock",
        "fcntl.ioctl",
    }
)
_NEED_ROOM = frozenset({"os.link", "os.mkdir", "os.symlink"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_write, _fsync = os.write, os.fsync


@dataclass
class _Fate:
    """What is to happen to the child, and how far it has come. The count is shared with its own children."""

    mode: str
    amount: int
    below: str
    whole_group: bool
    """Kill everything that the command started in its process group, as a closed terminal or a dead machine does."""
    is_full: bool = False
    count: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 8))

    def begin(self) -> bool:
        """Count one operation; dies here, or says that it is the one to die in the middle of."""
        number = self.counted() + 1
        self.count[:8] = struct.pack("q", number)
        return self.mode == "event" and number == self.amount

    def counted(self) -> int:
        return int(struct.unpack("q", self.count[:8])[0])

    def die(self) -> NoReturn:
        if self.whole_group:
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    def has_no_room(self, place: object) -> bool:
        if self.mode != "full" or self.counted() < self.amount:
            return False
        if isinstance(place, int):
            with contextlib.suppress(OSError):
                return os.readlink(f"/proc/self/fd/{place}").startswith(self.below)
            return False
        text = os.fsdecode(place) if isinstance(place, (str, bytes, os.PathLike)) else ""
        return os.path.abspath(text).startswith(self.below)


def _needs_room(event: str, arguments: tuple[Any, ...]) -> bool:
    is_written = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
    return is_written or event in _NEED_ROOM


def _arm(fate: _Fate) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _OPERATIONS:
            return
        if fate.begin():
            fate.die()
        if _needs_room(event, arguments) and fate.has_no_room(arguments[1] if event == "os.link" else arguments[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    def write(handle: int, data: bytes) -> int:
        if fate.begin():
            _write(handle, bytes(data)[: len(data) // 2])
            fate.die()
        if fate.has_no_room(handle):
            if not fate.is_full:  # a disk is full in the middle of a write
                fate.is_full = True
                return _write(handle, bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _write(handle, data)

    def fsync(handle: int) -> None:
        if fate.begin():
            fate.die()
        _fsync(handle)

    sys.addaudithook(hook)
    os.write, os.fsync = write, fsync  # type: ignore[assignment]


def _run(words: Sequence[str]) -> int:
    from spike.cli.app import app
    from spike.cli.boundary import run_at_boundary

    sys.argv = ["spike", *words]
    code = run_at_boundary(lambda: app(list(words), standalone_mode=False))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


class _Forked:
    """Stands where `spike walk` starts each step as a process: a fork of this one, under the same fate."""

    def __init__(self, words: Sequence[str], *, answers_to_stderr: bool) -> None:
        pid = os.fork()
        if pid == 0:
            if answers_to_stderr:
                os.dup2(2, 1)
            os._exit(_run(words))
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _walk_in_forks() -> None:
    from types import SimpleNamespace

    import spike.cli.walk

    def run(command: Sequence[str], *, stdout: object, check: bool) -> _Forked:
        assert not check
        return _Forked(command[3:], answers_to_stderr=stdout is not None)

    spike.cli.walk.subprocess = SimpleNamespace(run=run)  # type: ignore[attr-defined]


def _child(request: dict[str, Any], fate: _Fate, out: int, err: int) -> NoReturn:
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.update(request.get("env", {}))
    os.dup2(out, 1)
    os.dup2(err, 2)
    _walk_in_forks()
    _arm(fate)
    code = 99
    try:
        code = _run(request["words"])
    finally:
        os._exit(code)


def perform(request: dict[str, Any]) -> dict[str, Any]:
    """Fork, let the child run the command line, and tell how it ended."""
    mode = request["mode"]
    fate = _Fate(mode, int(request["amount"]), request.get("below", ""), bool(request.get("group")))
    out, err = os.memfd_create("out"), os.memfd_create("err")
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        _child(request, fate, out, err)
    if mode == "time":
        time.sleep(request["amount"])
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if fate.whole_group else os.kill)(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - began
    said = [_everything(handle) for handle in (out, err)]
    return {
        "killed": os.WIFSIGNALED(status),
        "code": os.waitstatus_to_exitcode(status),
        "operations": fate.counted(),
        "seconds": seconds,
        "stdout": said[0],
        "stderr": said[1],
    }


def _everything(handle: int) -> str:
    size = os.fstat(handle).st_size
    data = os.pread(handle, size, 0)
    os.close(handle)
    return data.decode(errors="replace")


def _import_everything() -> None:
    """What the commands import late, now: each child then starts at once."""
    import altair  # noqa: F401
    import duckdb  # noqa: F401
    import torch  # noqa: F401
    import vl_convert  # noqa: F401

    import spike

    for module in pkgutil.walk_packages(spike.__path__, "spike."):
        if not module.name.endswith(("enter", "trial_main")) and "._" not in module.name:
            importlib.import_module(module.name)
    from spike.readers.checkpoints import readers

    readers()
    gc.freeze()  # a collection in a child would copy every page


def main() -> None:
    """Answer requests until stdin ends."""
    _import_everything()
    for line in sys.stdin:
        print(json.dumps(perform(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
