"""Is the run still healthy? Follow growing metric files by polling, and stop at the first new incident."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.actions.detect import SEVERITY_ORDER, incidents_payload
from spike.domain.detect import detect
from spike.domain.errors import InputUnreadable
from spike.domain.incident import Detection, Incident, Severity
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, Signals
from spike.readers.metrics import find_metric_files, read_signals

SCHEMA = "spike.watch/1"

SLOWEST_SHARE = 0.1
"""Reading may take this share of the time; a log that takes longer to read is polled less often."""

STALL_FACTOR = 10.0
"""A source is stalled after this many times the usual time between two of its rows ..."""

SHORTEST_STALL_S = 120.0
"""... and not before this: checkpoints and evaluations stop the log for a while."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What one look at the files showed."""

    step: int | None
    """Last logged step; None before the first row."""
    values: tuple[tuple[str, float], ...]
    """Last values of loss, gradient norm and learning rate."""
    num_new: int
    """Rows logged since the watch began."""
    silent_s: float
    """Seconds since the last new row."""
    is_stalled: bool
    incidents: tuple[Incident, ...] = ()
    """New ones, of the severity that matters, not told before."""
    payload: Mapping[str, Any] | None = None
    """The whole answer of detect, where there is a new incident."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to watch for."""

    fail_on: Severity = Severity.TRANSIENT
    interval_s: float = 5.0
    stall_s: float | None = None
    """Seconds of silence that count as stalled; None: from the run's own pace."""


def watch(
    paths: list[Path],
    *,
    base: Path,
    plan: Plan,
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[View]:
    """Look again and again; yields a view after every look, endlessly.

    Incidents that were over before the watch began are left to `spike detect`. A file that is not there yet, or holds
    no row yet, is waited for.
    """
    state = _Watching(base, plan, dict(columns or {}), dict(constants or {}), now)
    while True:
        began = now()
        yield state.look(paths)
        sleep(max(plan.interval_s, (now() - began) / SLOWEST_SHARE))


class _Watching:
    """What has to be remembered between two looks."""

    def __init__(
        self,
        base: Path,
        plan: Plan,
        columns: dict[str, str],
        constants: dict[str, float],
        now: Callable[[], float],
    ) -> None:
        self._base, self._plan, self._columns, self._constants, self._now = base, plan, columns, constants, now
        self._stamp: tuple[tuple[str, int, int], ...] = ()
        self._signals: Signals | None = None
        self._detection = Detection()
        self._began: tuple[int | None, int] | None = None
        self._last_rows = 0
        self._last_change = now()
        self._gaps: list[float] = []
        self._told: set[tuple[str, int]] = set()

    def look(self, paths: list[Path]) -> View:
        """Read what changed and judge it."""
        stamp = _stamp(paths)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read(paths)
        step, rows = _extent(self._signals)
        if self._began is None:
            self._began = (step, rows)
        if rows != self._last_rows:
            self._note_pace(rows - self._last_rows)
            self._last_rows = rows
        silent = self._now() - self._last_change
        new = self._new_incidents()
        payload = incidents_payload(self._signals, self._detection) if new and self._signals else None
        return View(
            step,
            _values(self._signals),
            max(0, rows - self._began[1]),
            silent,
            silent > self._patience_s(),
            new,
            payload,
        )

    def _read(self, paths: list[Path]) -> None:
        try:
            self._signals = read_signals(paths, base=self._base, columns=self._columns)
        except InputUnreadable:
            return  # nothing in them yet; what was read before stays
        self._detection = detect(self._signals, constants=self._constants)

    def _note_pace(self, rows: int) -> None:
        gap = self._now() - self._last_change
        if rows > 0 and self._last_rows > 0:
            self._gaps = [*self._gaps, gap / rows][-20:]
        self._last_change = self._now()

    def _patience_s(self) -> float:
        if self._plan.stall_s is not None:
            return self._plan.stall_s
        usual = sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else 0.0
        return max(SHORTEST_STALL_S, STALL_FACTOR * usual, 3.0 * self._plan.interval_s)

    def _new_incidents(self) -> tuple[Incident, ...]:
        assert self._began is not None
        start = self._began[0] if self._began[0] is not None else -1
        worst = SEVERITY_ORDER.index(self._plan.fail_on)
        found: list[Incident] = []
        for incident in self._detection.incidents:
            last = max((s.last_step for s in incident.signatures), default=incident.peak_step)
            key = (incident.kind.value, incident.onset_step)
            if last > start and SEVERITY_ORDER.index(incident.severity) <= worst and key not in self._told:
                self._told.add(key)
                found.append(incident)
        return tuple(found)


def _stamp(paths: list[Path]) -> tuple[tuple[str, int, int], ...]:
    """Size and time of every file, to tell whether anything was written."""
    stamps: list[tuple[str, int, int]] = []
    for path in paths:
        for file in find_metric_files(path) if path.is_dir() else (path,):
            try:
                facts = file.stat()
            except OSError:
                continue
            stamps.append((str(file), facts.st_size, facts.st_mtime_ns))
    return tuple(stamps)


def _extent(signals: Signals | None) -> tuple[int | None, int]:
    """(last step, rows) of the loss, else of the signal with most rows."""
    if signals is None or not signals.series:
        return None, 0
    series = signals.get(LOSS) or max(signals.series, key=lambda s: s.steps.size)
    return (int(series.steps[-1]) if series.steps.size else None), int(series.steps.size)


def _values(signals: Signals | None) -> tuple[tuple[str, float], ...]:
    if signals is None:
        return ()
    found = ((name, signals.get(name)) for name in (LOSS, GRAD_NORM, LEARNING_RATE))
    return tuple((name, float(s.values[-1])) for name, s in found if s is not None and s.values.size)
