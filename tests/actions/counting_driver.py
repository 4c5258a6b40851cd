"""Freezes in child processes that count every byte they read, and can be killed after so many; several at once.

Started once (imports are slow), it reads one JSON list of jobs a line, forks a child for each, and answers with one
JSON list: how each child ended, and what it read of which file. A job: cases, kill_at (bytes, or null), link (make
hard links), shard ("1/3" or ""), merge, spoil (end of the path of a file that is overwritten while it is read, or "").
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb  # noqa: F401  imported before the forks, so that each child starts at once
import yaml  # noqa: F401

from spike.actions.evidence.freeze import Options, freeze
from spike.actions.evidence.freeze_shards import freeze_shard
from spike.actions.evidence.opening import Occasion, find_or_open_once
from spike.casefile import batches, draft, hashing, pinning
from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.domain.shards import Shard
from spike.readers.checkpoints import readers
from tests.casefile.small_runs import ONSET, incident, signals

CHUNK_BYTES = 64 << 10


class Count:
    """Bytes by file, as the system calls returned them; ends the process at its limit."""

    def __init__(self, kill_at: int | None, spoil: str) -> None:
        self.kill_at = kill_at
        self.spoil = spoil
        self.read: dict[str, int] = {}
        self.lock = threading.Lock()

    def install(self) -> None:
        """Stand between the program and the system."""
        read, readv, preadv = os.read, os.readv, os.preadv

        def counted_read(handle: int, num_bytes: int) -> bytes:
            data = read(handle, num_bytes)
            self._counted(handle, len(data))
            return data

        os.read = counted_read
        os.readv = lambda handle, buffers: self._counted(handle, readv(handle, buffers))
        os.preadv = lambda handle, buffers, at: self._counted(handle, preadv(handle, buffers, at))

    def _counted(self, handle: int, num_bytes: int) -> int:
        with self.lock:
            path = os.readlink(f"/proc/self/fd/{handle}")
            self.read[path] = self.read.get(path, 0) + num_bytes
            if self.spoil and path.endswith(self.spoil):
                self.spoil = ""
                with Path(path).open("r+b") as file:
                    file.seek(-13, os.SEEK_END)
                    file.write(b"the next save")
            if self.kill_at is not None and sum(self.read.values()) >= self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return num_bytes


def _work(run: Run, job: dict[str, Any]) -> dict[str, Any]:
    count = Count(job["kill_at"], job["spoil"])
    count.install()
    hashing.CHUNK_BYTES = draft.CHUNK_BYTES = CHUNK_BYTES
    batches.BATCH_BYTES = 0  # every file is noted by itself
    if job["link"]:
        pinning.COPY_BELOW_BYTES = 0
    cases = Path(job["cases"])
    answer: dict[str, Any] = {"code": 0, "said": "", "problems": []}
    try:
        if job["shard"]:
            occasion = Occasion(run, incident(), ONSET)
            case = find_or_open_once(cases, occasion, operator="ada", say=lambda _text: None)
            done = freeze_shard(case, run, Shard.parse(job["shard"]), onset=ONSET)
            answer["problems"] = list(done.problems) if done else []
        else:
            options = Options(is_merge=job["merge"])
            freeze(run, incident(), cases=cases, operator="ada", signals=signals(), options=options)
    except SpikeError as error:
        answer |= {"code": int(error.exit_code), "said": f"{error.message} | {error.hint}"}
    except BaseException as error:
        answer |= {"code": 70, "said": f"{type(error).__name__}: {error}"}
    return answer | {"read": count.read}


def _start(run: Run, job: dict[str, Any]) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        data = json.dumps(_work(run, job)).encode()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)
        os._exit(0)
    os.close(writer)
    return pid, reader


def _finish(pid: int, reader: int) -> dict[str, Any]:
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(data) if data else {"code": -1, "said": "", "read": {}, "problems": []}
    return found | {"killed": os.WIFSIGNALED(status)}


def main() -> None:
    """Answer until stdin ends."""
    run = Run(**json.loads(sys.argv[1]))
    readers()
    for line in sys.stdin:
        children = [_start(run, job) for job in json.loads(line)]
        print(json.dumps([_finish(*child) for child in children]), flush=True)


if __name__ == "__main__":
    main()
