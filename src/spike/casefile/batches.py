"""How is work over many files shared out, so that small ones cost no task each and large ones get a worker each?

Files are grouped by directory and bytes; a file larger than a batch is one by itself. The largest batches begin
first, so that no worker ends alone with the longest file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

BATCH_BYTES = 32 << 20
BATCH_FILES = 512
MAX_WORKERS = 8
"""Storage, not cores, is the limit beyond that."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """Files of one directory."""

    directory: str
    """Relative POSIX path, "" for the root."""
    names: tuple[str, ...]
    num_bytes: int

    def path(self, name: str) -> str:
        """The relative path of one of its names."""
        return f"{self.directory}/{name}" if self.directory else name


class Stopped(Exception):
    """Another worker failed, or the operator stopped the command; nobody needs this result."""


class Meter:
    """Counts bytes for all workers, and ends them at their next chunk when one of them failed."""

    def __init__(self, on_bytes: Callable[[int], None] | None) -> None:
        self._on_bytes = on_bytes
        self._lock = threading.Lock()
        self._stopped = False

    def __call__(self, num_bytes: int) -> None:
        """Count; raises `Stopped`."""
        self.check()
        if self._on_bytes is not None:
            with self._lock:
                self._on_bytes(num_bytes)

    def check(self) -> None:
        """Raises `Stopped` where nobody needs more."""
        if self._stopped:
            raise Stopped

    def stop(self) -> None:
        """Let no worker go on."""
        self._stopped = True


def num_cores() -> int:
    """Cores that this process may use, which a scheduler or a container may have made fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batches(files: Iterable[tuple[str, int]]) -> list[Batch]:
    """The files `(relative path, size)` in groups of at most BATCH_FILES and, beyond one file, BATCH_BYTES."""
    by_directory: dict[str, list[tuple[str, int]]] = {}
    for path, size in files:
        directory, _, name = path.rpartition("/")
        by_directory.setdefault(directory, []).append((name, size))
    found: list[Batch] = []
    for directory, members in by_directory.items():
        names: list[str] = []
        num_bytes = 0
        for name, size in members:
            if names and (len(names) >= BATCH_FILES or num_bytes + size > BATCH_BYTES):
                found.append(Batch(directory, tuple(names), num_bytes))
                names, num_bytes = [], 0
            names.append(name)
            num_bytes += size
        found.append(Batch(directory, tuple(names), num_bytes))
    return found


def in_batches(
    files: Iterable[tuple[str, int]],
    work: Callable[[Batch, Meter], T],
    *,
    workers: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> list[T]:
    """What `work` says of each batch. Its first exception, or Ctrl-C, ends all workers within a chunk."""
    todo = sorted(batches(files), key=lambda batch: -batch.num_bytes)
    num_workers = min(workers or min(MAX_WORKERS, num_cores()), len(todo))
    meter = Meter(on_bytes)
    if num_workers <= 1:
        return [work(batch, meter) for batch in todo]

    def guarded(batch: Batch) -> T:
        meter.check()
        try:
            return work(batch, meter)
        except BaseException:
            meter.stop()
            raise

    with ThreadPoolExecutor(num_workers, thread_name_prefix="spike-files") as pool:
        jobs = [pool.submit(guarded, batch) for batch in todo]
        try:
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            failures = [error for job in done if (error := job.exception()) is not None]
            for error in failures:
                if not isinstance(error, Stopped):
                    raise error
            return [job.result() for job in jobs]
        except BaseException:
            meter.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
