"""Is the run still healthy? Follow growing metric files by polling, and stop at the first new incident."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spike.actions.detect import incidents_payload
from spike.actions.following.alarm import Alarm
from spike.actions.following.recent_signals import RecentSignals
from spike.domain.gauges import Gauge, gauges
from spike.domain.incident import Detection, Incident, Severity
from spike.domain.returning import Standing
from spike.domain.signals import Signals
from spike.readers.metrics import Follower, open_follower
from spike.readers.metrics.read import relative
from spike.readers.polling import Glance, Hanging, News, Poller

SCHEMA = "spike.watch/1"

SLOWEST_SHARE = 0.1
"""Looking may take this share of the time; files that take longer are looked at less often."""

STALL_FACTOR = 10.0
"""A source is stalled after this many times the usual time between two of its rows ..."""
SHORTEST_STALL_S = 120.0
"""... and not before this: checkpoints and evaluations stop the log for a while."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What one look at the files showed."""

    step: int | None
    """Last logged step; None before the first row."""
    gauges: tuple[Gauge, ...]
    """Loss, gradient norm and learning rate: last value, ratio to usual, recent course."""
    num_new: int
    """Rows logged since the watch began."""
    silent_s: float
    """Seconds since the last new row."""
    is_stalled: bool
    silent: tuple[str, ...] = ()
    """Sources that stand still while others go on."""
    hanging: tuple[Hanging, ...] = ()
    """Files whose filesystem does not answer."""
    problems: tuple[str, ...] = ()
    """What could not be read and what was read anew, since the last look."""
    incidents: tuple[Incident, ...] = ()
    """New ones, of the severity that matters, not told before."""
    payload: Mapping[str, Any] | None = None
    """spike.watch/1 with these incidents, where there are any."""
    standing: Standing | None = None
    """How far a resumed run has come; None where that was not asked for."""

    @property
    def values(self) -> tuple[tuple[str, float], ...]:
        """Last value of each gauge."""
        return tuple((gauge.name, gauge.last) for gauge in self.gauges)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to watch for."""

    fail_on: Severity = Severity.TRANSIENT
    interval_s: float = 1.0
    stall_s: float | None = None
    """Seconds of silence that count as stalled; None: from the run's own pace."""
    until_healthy: int | None = None
    """Healthy rows in a row after which a resumed run is back."""
    grace_s: float = 0.5
    """How long a look waits for a slow file before it goes on without it."""


def watch(
    paths: list[Path],
    *,
    base: Path,
    plan: Plan,
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
    open_file: Callable[[Path, Mapping[str, str]], Follower] = open_follower,
) -> Iterator[View]:
    """Look again and again; yields a view after every look, endlessly.

    Incidents that were over before the watch began are left to `spike detect`. A file that is not there yet, or holds
    no row yet, is waited for. No file is touched in the caller's thread.
    """
    chosen = dict(columns or {})
    poller = Poller(paths, chosen, grace_s=plan.grace_s, open_file=open_file)
    state = _Watching(base, plan, chosen, dict(constants or {}), now)
    while True:
        began = now()
        yield state.take(poller.look())
        sleep(max(plan.interval_s, (now() - began) / SLOWEST_SHARE))


@dataclass(slots=True)
class _Pace:
    """When a source spoke."""

    last: float
    gaps: list[float] = field(default_factory=list)
    has_spoken: bool = False
    """It has added a row during the watch."""

    def note(self, rows: int, at: float) -> None:
        if self.has_spoken:
            self.gaps = [*self.gaps, (at - self.last) / rows][-20:]
        self.last, self.has_spoken = at, True

    def patience_s(self, plan: Plan) -> float:
        if plan.stall_s is not None:
            return plan.stall_s
        usual = sorted(self.gaps)[len(self.gaps) // 2] if self.gaps else 0.0
        return max(SHORTEST_STALL_S, STALL_FACTOR * usual, 3.0 * plan.interval_s)


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
        self._base, self._plan, self._constants, self._now = base, plan, constants, now
        self._recent = RecentSignals(base, columns)
        self._alarm = Alarm(plan.fail_on, plan.until_healthy, constants, now)
        self._signals = Signals()
        self._whole = _Pace(now())
        self._paces: dict[Path, _Pace] = {}
        self._has_begun = False
        self._num_new = 0

    def take(self, glance: Glance) -> View:
        """Judge what a look has brought."""
        for news in glance.news:
            self._recent.add(news.path, news.parsed)
        fresh = [news for news in glance.news if news.parsed.columns]
        incidents: tuple[Incident, ...] = ()
        if fresh:
            self._signals = self._recent.signals()
            self._note_pace(fresh)
        if not self._has_begun or any(news.is_past for news in fresh):
            self._has_begun = glance.is_complete
            self._alarm.begin(self._signals)
        else:
            self._num_new += self._alarm.count(self._signals) if fresh else 0
            incidents = self._alarm.incidents(self._signals)
        return self._view(glance, incidents)

    def _note_pace(self, fresh: list[News]) -> None:
        at = self._now()
        for news in fresh:
            pace = self._paces.setdefault(news.path, _Pace(at))
            pace.last = max(pace.last, at)
            if not news.is_past:
                pace.note(max(1, news.parsed.num_rows), at)
        live = max((news.parsed.num_rows for news in fresh if not news.is_past), default=0)
        if live:
            self._whole.note(live, at)
        else:
            self._whole.last = at

    def _view(self, glance: Glance, incidents: tuple[Incident, ...]) -> View:
        at = self._now()
        silent = at - self._whole.last
        is_stalled = silent > self._whole.patience_s(self._plan)
        quiet = [p for p, pace in self._paces.items() if pace.has_spoken and at - pace.last > self._patience_s(pace)]
        said = [f"{relative(n.path, self._base)}: {text}" for n in glance.news for text in _said(n)]
        step = self._alarm.last_step
        return View(
            step,
            gauges(self._signals),
            self._num_new,
            silent,
            is_stalled,
            () if is_stalled else tuple(relative(path, self._base) for path in quiet),
            glance.hanging,
            (*glance.problems, *said),
            incidents,
            self._payload(incidents) if incidents else None,
            self._alarm.standing,
        )

    def _patience_s(self, pace: _Pace) -> float:
        return pace.patience_s(self._plan)

    def _payload(self, incidents: tuple[Incident, ...]) -> dict[str, Any]:
        whole = incidents_payload(self._signals, Detection(incidents))
        kept = {key: whole[key] for key in ("incidents", "sources")}
        return {"schema": SCHEMA, "reason": "incident", "step": self._alarm.last_step, **kept}


def _said(news: News) -> list[str]:
    if news.is_past:
        return []
    damages = [f"line {d.line} (byte {d.byte_offset}): {d.reason}" for d in news.parsed.damages[:3] if not d.benign]
    return [*(text for pattern, text in news.parsed.notes if pattern == "source-restarted"), *damages]
