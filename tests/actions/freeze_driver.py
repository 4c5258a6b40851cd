"""Runs freezes in child processes that can be killed, starved of file size, or left alone; for crash tests.

Started once (imports are slow), it forks a child for each line that it reads:
    CASES none | CASES event N | CASES time SECONDS | CASES fsize BYTES
and answers each with one JSON line: how the child ended, how many file operations it had begun, what it said.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import duckdb  # noqa: F401  imported before the forks, so that each child starts at once
import yaml  # noqa: F401

from spike.actions.evidence.freeze import freeze
from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.readers.checkpoints import readers
from tests.casefile.small_runs import incident, signals

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
        "os.listdir",
        "os.scandir",
        "subprocess.Popen",
        "fcntl.flock",
        "fcntl.ioctl",
    }
)


def _count_operations(report: int, die_at: int) -> None:
    """Count file operations of this process, and end it right before number `die_at`."""
    done = 0

    def hook(event: str, _arguments: object) -> None:
        nonlocal done
        if event in _OPERATIONS:
            done += 1
            os.pwrite(report, b"%12d" % done, 0)
            if done == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _child(run: Run, cases: Path, mode: str, amount: float, report: int) -> None:
    if mode == "fsize":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(amount), int(amount)))
    _count_operations(report, int(amount) if mode == "event" else 0)
    code, said = 0, ""
    try:
        freeze(run, incident(), cases=cases, operator="ada", signals=signals())
    except SpikeError as error:
        code, said = 2, f"{error.message} | {error.hint}"
    except BaseException as error:
        code, said = 70, f"{type(error).__name__}: {error}"
    # A pipe of the kernel's: writing there needs no disk.
    os.write(1, (json.dumps({"said": said}) + "\n").encode()) if said else None
    os._exit(code)


def run_one(run: Run, cases: Path, mode: str, amount: float) -> dict[str, object]:
    """Fork, let the child freeze, and tell how it ended."""
    report = os.memfd_create("operations")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        _child(run, cases, mode, amount, report)
    os.close(writer)
    if mode == "time":
        time.sleep(amount)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    operations = int(os.pread(report, 12, 0) or b"0")
    os.close(report)
    said = json.loads(lines[-1])["said"] if lines else ""
    return {
        "killed": os.WIFSIGNALED(status),
        "code": os.waitstatus_to_exitcode(status),
        "operations": operations,
        "said": said,
    }


def main() -> None:
    """Answer requests until stdin ends."""
    run = Run(**json.loads(sys.argv[1]))
    readers()
    for line in sys.stdin:
        cases, mode, *amount = line.rsplit(maxsplit=2) if line.split()[1] != "none" else line.split()
        answer = run_one(run, Path(cases), mode, float(amount[0]) if amount else 0.0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
