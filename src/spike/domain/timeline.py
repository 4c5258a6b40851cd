"""When did what happen, who did what about it, and what did it cost?

Two clocks that must not be mixed: the run counts steps, the investigation counts UTC. Logs rarely hold wall time,
so the step clock is turned into hours only with a measured time per step, and the source of that is kept with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from spike.domain.case import CaseFacts
from spike.domain.incident import Incident
from spike.domain.journal import JournalEntry
from spike.domain.measured import NotMeasured
from spike.domain.signals import LOSS, Signals
from spike.domain.trial import TrialResult

READING = frozenset({"report", "status", "verify", "show", "walk"})
"""Commands that look at a case and leave its answer alone; a timeline without them stays the same when they run."""

BOOKKEEPING = "case"
"""Journal lines about case.yaml itself: the first one opens the case, the others belong to the step around them."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened at a step of the run."""

    step: int
    what: str
    source: str
    """Artefact that says so, relative to the case."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that an operator did."""

    time: str
    """UTC, ISO 8601, whole seconds."""
    operator: str
    command: str
    summary: str
    exit_code: int
    line: int
    """1-based line of journal.jsonl."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one step of the run takes, in seconds of wall time, and who says so."""

    seconds: float | NotMeasured
    source: str = ""
    """Artefact, relative to the case."""
    how: str = ""
    """"median of 20 replayed steps"."""


@dataclass(frozen=True, slots=True)
class Impact:
    """What the incident cost, as far as it can be counted."""

    steps: int | NotMeasured
    """Attempted steps between the last good checkpoint and the end of the record: those to be trained again."""
    steps_after_onset: int | NotMeasured
    """Recorded steps from the onset to the end of the record: how long nobody stopped it."""
    devices: int | NotMeasured
    hours: float | NotMeasured
    """Wall time of `steps`."""
    device_hours: float | NotMeasured
    price: float | NotMeasured
    currency: str
    trial_hours: float
    """Wall time of all trials of the case together."""
    trial_device_hours: float | NotMeasured
    step_time: StepTime


def first_word(command: str) -> str:
    """The step that a journal line's command belongs to: "replay" for "spike replay --step 222"."""
    words = command.split()
    if words and words[0] == "spike":
        words = words[1:]
    return words[0] if words else ""


def acts(journal: Sequence[JournalEntry]) -> tuple[Act, ...]:
    """What operators did to the case, oldest first, without what only looked at it and what only kept the books."""
    return tuple(
        Act(e.time, e.operator, e.command, e.summary, e.exit_code, e.seq)
        for e in journal
        if first_word(e.command) not in READING and (e.command != BOOKKEEPING or e.seq == 1)
    )


def moments(case: CaseFacts, last_step: int | None) -> tuple[Moment, ...]:
    """What happened in the run, by step; `last_step` is the last logged one."""
    found: list[Moment] = []
    for pinned in (*case.earlier, *((case.last_good,) if case.last_good else ()), *case.suspect):
        role = "last good checkpoint" if pinned is case.last_good else "checkpoint"
        role = "suspect checkpoint" if pinned in case.suspect else role
        found.append(Moment(pinned.step, role, pinned.pinned))
    if case.incident is not None:
        found += _incident_moments(case.incident)
    if last_step is not None:
        found.append(Moment(last_step, "last step on record", "evidence/signals.parquet"))
    return tuple(sorted(found, key=lambda m: m.step))


def _incident_moments(incident: Incident) -> list[Moment]:
    found = []
    for position, signature in enumerate(incident.signatures):
        what = f"{signature.signal} leaves its baseline" + (" first" if position == 0 else "")
        found.append(Moment(signature.onset_step, what, "case.yaml"))
    loss = incident.signature(LOSS)
    peak = loss.peak_step if loss is not None else incident.peak_step
    found.append(Moment(peak, "peak of the loss" if loss is not None else "peak", "case.yaml"))
    return found


def last_logged_step(signals: Signals | None) -> int | None:
    """The highest step that any signal was logged for."""
    steps = [int(s.steps.max()) for s in signals.series if s.steps.size] if signals is not None else []
    return max(steps, default=None)


_STEP_TIME = re.compile(
    r"(?:time|elapsed)[ _]*(?:per|/)?[ _]*(?:iteration|iter|step)|(?:step|iter|iteration)[ _]*(?:time|duration|avg)"
)
_UNITS = (
    (re.compile(r"[ _(](?:ms|msec|milliseconds)\)?$"), 1e-3),
    (re.compile(r"[ _(](?:s|sec|secs|seconds)\)?$"), 1.0),
)


def logged_step_time(signals: Signals | None, before_step: int | None) -> StepTime | None:
    """The median time per step that the run itself logged before `before_step`, in a column that names its unit.

    A column without a unit is not used: whether `step_time` means seconds or milliseconds is anybody's guess.
    """
    for series in signals.series if signals is not None else ():
        plain = series.name.lower()
        unit = next((factor for pattern, factor in _UNITS if pattern.search(plain)), None)
        if unit is None or not _STEP_TIME.search(plain):
            continue
        kept = np.isfinite(series.values) & (series.values > 0)
        if before_step is not None:
            kept &= series.steps < before_step
        if kept.any():
            how = f"median of {series.name!r} over {int(kept.sum()):,} logged steps"
            return StepTime(float(np.median(series.values[kept])) * unit, "evidence/signals.parquet", how)
    return None


def replayed_step_time(seconds: Sequence[float], source: str) -> StepTime:
    """The median time per step of a replay; its first step, which pays for the start, is left out."""
    if len(seconds) < 2:
        return StepTime(NotMeasured("the run logs no time per step and no replay shows one"))
    how = f"median of {len(seconds) - 1:,} replayed steps"
    return StepTime(float(np.median(seconds[1:])), source, how)


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one ISO 8601 time to another. Raises `ValueError` for a text that is none."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def count_impact(case: CaseFacts, last_step: int | None, step_time: StepTime, trials: Sequence[TrialResult]) -> Impact:
    """Count the cost; whatever a missing fact makes uncountable stays unmeasured, with that fact as the reason."""
    steps = _steps_lost(case, last_step)
    devices: int | NotMeasured = case.run.devices or NotMeasured("the world size of the run is not known")
    hours = _hours(steps, step_time)
    device_hours = _product(hours, devices)
    trial_hours = sum(t.seconds for t in trials) / 3600
    return Impact(
        steps=steps,
        steps_after_onset=_steps_after_onset(case, last_step),
        devices=devices,
        hours=hours,
        device_hours=device_hours,
        price=_price(case, device_hours),
        currency=case.run.prices.currency,
        trial_hours=trial_hours,
        trial_device_hours=_product(trial_hours, devices),
        step_time=step_time,
    )


def _steps_lost(case: CaseFacts, last_step: int | None) -> int | NotMeasured:
    if last_step is None:
        return NotMeasured("no signal was logged")
    if case.last_good is None:
        return NotMeasured("there is no good checkpoint to go back to")
    return max(0, last_step - case.last_good.step)


def _steps_after_onset(case: CaseFacts, last_step: int | None) -> int | NotMeasured:
    if case.incident is None:
        return NotMeasured("the case has no incident in the signals")
    if last_step is None:
        return NotMeasured("no signal was logged")
    return max(0, last_step - case.incident.onset_step)


def _hours(steps: int | NotMeasured, step_time: StepTime) -> float | NotMeasured:
    if isinstance(steps, NotMeasured):
        return steps
    if isinstance(step_time.seconds, NotMeasured):
        return step_time.seconds
    return steps * step_time.seconds / 3600


def _product(hours: float | NotMeasured, devices: int | NotMeasured) -> float | NotMeasured:
    if isinstance(hours, NotMeasured):
        return hours
    return devices if isinstance(devices, NotMeasured) else hours * devices


def _price(case: CaseFacts, device_hours: float | NotMeasured) -> float | NotMeasured:
    if not case.run.prices.gpu_hour:
        return NotMeasured("spike.yaml gives no price (prices: gpu_hour)")
    return device_hours if isinstance(device_hours, NotMeasured) else device_hours * case.run.prices.gpu_hour
