"""What is new in the files of a live run? Looked at from threads of their own, so that a dead filesystem stalls no one.

A look at a file on a network file system that has died does not come back. Nothing can interrupt it; so the file keeps
the thread that hangs in it, all others are looked at from another one, and the caller is told which file hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from spike.readers.metrics import Follower, find_metric_files, open_follower
from spike.readers.metrics.contract import Parsed

FIND_S = 5.0
"""Seconds between two walks through the directories: a restarted job opens a new file within minutes, not seconds."""
FIND_SHARE = 0.002
"""... and a walk may take this share of the time."""
STUCK_S = 5.0
"""A look that has not come back for this long hangs; a healthy network file system answers within a second or two."""
MOST_HANDS = 9
"""Threads that may hang at the same time, one file each, before looking stops."""


@dataclass(frozen=True, slots=True, eq=False)
class News:
    """What one file said since the last look at it."""

    path: Path
    parsed: Parsed
    is_past: bool
    """Written before the watch began: the first look at a file that was found at once."""


@dataclass(frozen=True, slots=True)
class Hanging:
    """A look that has not come back."""

    path: Path
    seconds: float
    is_first: bool
    """A first look reads the whole file, which may simply take that long."""


@dataclass(frozen=True, slots=True, eq=False)
class Glance:
    """What one look at all files gave."""

    news: tuple[News, ...]
    hanging: tuple[Hanging, ...]
    problems: tuple[str, ...]
    """Files that could not be read, with the reason; they are tried again."""
    is_complete: bool
    """Every file found so far has been read at least once, or hangs."""


@dataclass(slots=True)
class _File:
    follower: Follower
    is_past: bool
    is_flying: bool = False
    """Waits for a thread, or is in one."""
    num_looks: int = 0
    problem: str = ""


class _Hand(threading.Thread):
    """Takes one job after the other; a job may keep it for ever."""

    def __init__(self, jobs: SimpleQueue[Callable[[], None]], done: SimpleQueue[Callable[[], News | None]]) -> None:
        super().__init__(name="spike-look", daemon=True)
        self._jobs, self._done = jobs, done
        self.since: float | None = None
        self.start()

    def run(self) -> None:
        """Until the process ends."""
        while True:
            job = self._jobs.get()
            self.since = time.monotonic()
            try:
                job()
            except BaseException as error:  # a fault of spike's own has to end the watch, not only this thread
                self._done.put(partial(_raise, error))
            self.since = None


def _raise(error: BaseException) -> None:
    raise error


class Poller:
    """Files and directories, looked at again and again."""

    def __init__(
        self,
        paths: Sequence[Path],
        columns: Mapping[str, str],
        *,
        grace_s: float,
        open_file: Callable[[Path, Mapping[str, str]], Follower] = open_follower,
    ) -> None:
        """`grace_s`: how long a look waits for a slow file before it goes on without it."""
        self._paths, self._columns, self._grace_s, self._open = tuple(paths), columns, grace_s, open_file
        self._files: dict[Path, _File] = {}
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._done: SimpleQueue[Callable[[], News | None]] = SimpleQueue()
        self._hands = [_Hand(self._jobs, self._done)]
        self._num_flying = 0
        self._walks: dict[Path, float] = {}
        """Root -> when its walk began, while it lasts."""
        self._flights: dict[Path, float] = {}
        self._next_walk = 0.0
        self._has_walked = False
        self._problems: list[str] = []

    def look(self) -> Glance:
        """Ask for everything that is not under way already, and wait at most twice the grace."""
        self._problems = []
        news: list[News] = []
        self._walk()
        if not self._has_walked:
            self._collect(news)
        self._fly()
        self._collect(news)
        if self._num_flying and not self._jobs.empty() and self._all_hang() and len(self._hands) < MOST_HANDS:
            self._hands.append(_Hand(self._jobs, self._done))
            self._collect(news)
        hanging = self._hanging()
        known = {h.path for h in hanging}
        complete = self._has_walked and all(f.num_looks or path in known for path, f in self._files.items())
        return Glance(tuple(news), hanging, tuple(self._problems), complete or bool(known & set(self._paths)))

    def _all_hang(self) -> bool:
        now = time.monotonic()
        return all(h.since is not None and now - h.since >= 0.9 * self._grace_s for h in self._hands)

    def _hanging(self) -> tuple[Hanging, ...]:
        now = time.monotonic()
        found = []
        for path, since in [*list(self._flights.items()), *list(self._walks.items())]:
            if now - since > STUCK_S:
                file = self._files.get(path)
                found.append(Hanging(path, now - since, file is not None and file.num_looks == 0))
        return tuple(found)

    def _collect(self, news: list[News]) -> None:
        """Take in what comes back within the grace."""
        until = time.monotonic() + self._grace_s
        while self._num_flying:
            try:
                told = self._done.get(timeout=max(0.0, until - time.monotonic()))()
            except Empty:
                return
            self._num_flying -= 1
            if told is not None:
                news.append(told)

    def _send(self, job: Callable[[], None]) -> None:
        self._num_flying += 1
        self._jobs.put(job)

    # -- directories ----------------------------------------------------------------------------------------

    def _walk(self) -> None:
        now = time.monotonic()
        if now < self._next_walk and self._files:
            return
        self._next_walk = now + FIND_S
        for root in self._paths:
            if root not in self._walks:
                self._walks[root] = now
                self._send(partial(self._walk_one, root))

    def _walk_one(self, root: Path) -> None:
        began = time.monotonic()
        self._walks[root] = began
        try:
            files, problem = tuple(find_metric_files(root)) if root.is_dir() else (root,), ""
        except OSError as error:
            files, problem = (), f"{root} cannot be searched: {error.strerror or error}"
        spent = time.monotonic() - began
        self._done.put(partial(self._found, root, files, problem, spent))

    def _found(self, root: Path, files: Sequence[Path], problem: str, spent: float) -> None:
        del self._walks[root]
        self._next_walk = max(self._next_walk, time.monotonic() + spent / FIND_SHARE)
        if problem:
            self._problems.append(problem)
        for path in files:
            if path not in self._files:
                self._files[path] = _File(self._open(path, self._columns), not self._has_walked)
        self._has_walked = self._has_walked or not self._walks

    # -- files ----------------------------------------------------------------------------------------------

    def _fly(self) -> None:
        for path, file in self._files.items():
            if not file.is_flying:
                file.is_flying = True
                self._send(partial(self._poll_one, path, file))

    def _poll_one(self, path: Path, file: _File) -> None:
        self._flights[path] = time.monotonic()
        parsed, problem = None, ""
        try:
            parsed = file.follower.poll()
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}"
        self._done.put(partial(self._landed, path, file, parsed, problem))

    def _landed(self, path: Path, file: _File, parsed: Parsed | None, problem: str) -> News | None:
        self._flights.pop(path, None)
        file.is_flying = False
        is_past = file.is_past and file.num_looks == 0
        file.num_looks += 1
        if problem and problem != file.problem:
            self._problems.append(problem)
        file.problem = problem
        if parsed is None or not (parsed.columns or parsed.damages or parsed.notes):
            return None
        return News(path, parsed, is_past)
