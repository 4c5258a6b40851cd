"""Which incident of a live run is new, and when is the detector worth asking?"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from spike.actions.detect import SEVERITY_ORDER, primary_incident
from spike.actions.following.recent_signals import lead
from spike.domain.detect import Constants, detect
from spike.domain.incident import Detection, Incident, Severity
from spike.domain.returning import Returning, Standing
from spike.domain.screen import is_worth_a_look
from spike.domain.signals import GRAD_NORM, LOSS, SKIPPED, UPDATE_NORM, Series, Signals

ROUTINE_S = 10.0
"""Seconds between two runs of the detector where no new row looks odd: what it may find then is slow."""
ROUTINE_SHARE = 0.004
"""... and such runs may take this share of the time,"""
ALARM_SHARE = 0.1
"""... those that an odd row asks for this share: a run of NaN asks every second."""

RECENT_ROWS = 64
"""What began this shortly before the watch and goes on is told; an older lasting shift is the past. What is fatal and
goes on is told however old it is."""

SCREENED = (LOSS, GRAD_NORM, UPDATE_NORM, SKIPPED)
"""Signals whose new rows can call the detector at once."""


class Alarm:
    """Which rows are new, when to ask the detector, and what has been told."""

    def __init__(
        self, fail_on: Severity, until_healthy: int | None, constants: dict[str, float], now: Callable[[], float]
    ) -> None:
        self._fail_on, self._wanted, self._constants, self._now = fail_on, until_healthy, constants, now
        self._start: int | None = None
        """Last step when the watch began."""
        self._start_recent = 0
        """... and the step `RECENT_ROWS` before."""
        self.last_step: int | None = None
        self._rewinds: set[tuple[int, int]] = set()
        self._told: list[tuple[int, int, int]] = []
        """(first step, last step, severity) of what has been told."""
        self._asked = -1e9
        self._spent = 0.0
        self._odd = False
        self._stale = False
        self._returning = None if until_healthy is None else Returning(until_healthy, None)
        self.standing: Standing | None = None
        """How far a resumed run has come; None where that was not asked for."""

    def begin(self, signals: Signals) -> None:
        """Everything up to here is the past."""
        leader = lead(signals)
        self._rewinds = {(r.from_step, r.to_step) for r in signals.rewinds}
        if leader is None:
            return
        self.last_step = self._start = int(leader.steps[-1])
        self._start_recent = int(leader.steps[max(0, leader.steps.size - RECENT_ROWS)])
        self._odd = self._stale = True  # what goes on when the watch begins is looked for at its first row
        if self._wanted is not None:
            numbers = Constants().changed(self._constants)
            resumed = _resumed_from(detect(signals, constants=self._constants))
            self._returning = Returning(self._wanted, resumed, numbers)

    def count(self, signals: Signals) -> int:
        """Take note of new rows; returns how many there are."""
        leader = lead(signals)
        if leader is None:
            return 0
        rewinds = {(r.from_step, r.to_step) for r in signals.rewinds}
        back = [to_step for from_step, to_step in rewinds - self._rewinds]
        self._rewinds = rewinds
        if back:
            # What was told of the steps that are trained again may be told again.
            self._told = [told for told in self._told if told[0] < min(back)]
        mark = min([self.last_step if self.last_step is not None else -1, *(step - 1 for step in back)])
        if self._start is not None and back:
            self._start = min(self._start, min(back) - 1)
        num_new = int(leader.steps.size - np.searchsorted(leader.steps, mark, side="right"))
        self.last_step = int(leader.steps[-1])
        self._stale = True
        self._odd = self._odd or self._is_odd(signals, mark)
        if self._returning is not None and num_new:
            _feed(self._returning, signals, leader, num_new)
        return num_new

    def _is_due(self) -> bool:
        if not self._stale:
            return False
        if self.standing is not None and self.standing.is_back:
            return True  # the detector has a say before a run is called healthy
        since = self._now() - self._asked
        routine = max(ROUTINE_S, self._spent / ROUTINE_SHARE)
        return since >= (self._spent / ALARM_SHARE if self._odd else routine)

    def incidents(self, signals: Signals) -> tuple[Incident, ...]:
        """New incidents; () also where the detector need not be asked yet."""
        if self._returning is not None:
            self.standing = self._returning.stand(signals.get(LOSS), self._start if self._start is not None else -1)
        if not self._is_due():
            return ()
        began = self._now()
        detection = detect(signals, constants=self._constants)
        self._asked, self._odd, self._stale = self._now(), False, False
        self._spent = self._asked - began
        return tuple(i for i in detection.incidents if self._is_new(i, signals))

    def _is_odd(self, signals: Signals, mark: int) -> bool:
        for series in signals.series:
            if series.name in SCREENED:
                new = int(series.steps.size - np.searchsorted(series.steps, mark, side="right"))
                if is_worth_a_look(series.name, series.values, new):
                    return True
        return False

    def _is_new(self, incident: Incident, signals: Signals) -> bool:
        severity = SEVERITY_ORDER.index(incident.severity)
        if severity > SEVERITY_ORDER.index(self._fail_on) or not _is_in_record(incident, signals):
            return False
        first = min((s.onset_step for s in incident.signatures), default=incident.onset_step)
        last = max((s.last_step for s in incident.signatures), default=incident.peak_step)
        start = self._start if self._start is not None else -1
        is_past = incident.severity is not Severity.FATAL and incident.onset_step < self._start_recent
        if last <= start or is_past:
            return False
        for at, (told_first, told_last, told_severity) in enumerate(self._told):
            if first <= told_last and told_first <= last and told_severity <= severity:
                self._told[at] = (told_first, max(told_last, last), told_severity)
                return False
        self._told.append((first, last, severity))
        return True


def _resumed_from(detection: Detection) -> Incident | None:
    """The incident that a resumed run has to get over: the worst that did not heal, else the latest."""
    lasting = tuple(i for i in detection.incidents if not i.recovered)
    if lasting:
        return primary_incident(Detection(lasting))
    return max(detection.incidents, key=lambda i: i.onset_step, default=None)


def _is_in_record(incident: Incident, signals: Signals) -> bool:
    """False for one in rows that a restart has replaced: the run goes on without it."""
    if not incident.signatures:
        return True
    signature = incident.signatures[0]
    series = signals.get(signature.signal, incident.rank) or signals.get(signature.signal)
    if series is None or (incident.rank is None and series.rank is not None):
        return True  # the job's series is made of its ranks' and not in the record itself
    value = series.at(signature.peak_step)
    return value is not None and (
        value == signature.peak_value or (math.isnan(value) and math.isnan(signature.peak_value))
    )


def _feed(returning: Returning, signals: Signals, leader: Series, num_new: int) -> None:
    steps = leader.steps[-num_new:]
    rows: dict[int, dict[str, float]] = {int(step): {} for step in steps.tolist()}
    for name in dict.fromkeys((leader.name, LOSS, GRAD_NORM, *_signalled(returning))):
        series = signals.get(name)
        if series is None:
            continue
        for step, value in zip(series.steps[-num_new:].tolist(), series.values[-num_new:].tolist(), strict=True):
            if step in rows:
                rows[step][name] = value
    for step, values in rows.items():
        returning.take(step, values)


def _signalled(returning: Returning) -> list[str]:
    return [s.signal for s in returning.incident.signatures] if returning.incident is not None else []
