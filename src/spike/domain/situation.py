"""Where did the run stand when evidence was frozen? Step, tokens, learning rate and what could not be found out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spike.domain.incident import Incident
from spike.domain.measured import NotMeasured
from spike.domain.signals import LEARNING_RATE, TOKENS, Signals


@dataclass(frozen=True, slots=True)
class Reading:
    """One logged value."""

    signal: str
    rank: int | None
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts that the first question of every post-incident review asks for."""

    onset_step: int | None
    last_logged_step: int | NotMeasured
    last_good_step: int | NotMeasured
    tokens_at_onset: float | NotMeasured
    learning_rate_at_onset: float | NotMeasured
    readings: tuple[Reading, ...]
    """Every signal around the last good checkpoint and the onset, job-wide and for each rank."""
    samples: str | NotMeasured
    """Where the identity of the suspect samples is recorded."""


def take_situation(
    signals: Signals | None, incident: Incident | None, onset: int | None, last_good: int | None
) -> Situation:
    """What the signals say about the moment; `onset` may be the operator's own, without an incident."""
    steps = _steps_of_interest(incident, onset, last_good)
    series = signals.series if signals else ()
    readings = tuple(
        Reading(s.name, s.rank, step, value) for s in series for step in steps if (value := s.at(step)) is not None
    )
    ends = [int(np.max(s.steps)) for s in series if s.steps.size]
    return Situation(
        onset_step=onset,
        last_logged_step=max(ends) if ends else NotMeasured("no signal was found"),
        last_good_step=last_good if last_good is not None else NotMeasured("no usable checkpoint before the onset"),
        tokens_at_onset=_value(signals, TOKENS, onset),
        learning_rate_at_onset=_value(signals, LEARNING_RATE, onset),
        readings=readings,
        samples=NotMeasured("logs do not say which samples a step saw; a replay records them"),
    )


def _steps_of_interest(incident: Incident | None, onset: int | None, last_good: int | None) -> tuple[int, ...]:
    wanted = {s for s in (last_good, onset) if s is not None}
    if onset is not None:
        wanted |= {onset - 1, onset + 1}
    if incident is not None:
        wanted.add(incident.peak_step)
    return tuple(sorted(wanted))


def _value(signals: Signals | None, name: str, step: int | None) -> float | NotMeasured:
    if step is None:
        return NotMeasured("there is no onset step")
    series = signals.get(name) if signals else None
    if series is None:
        return NotMeasured(f"no log has a column for {name}")
    value = series.at(step)
    return value if value is not None else NotMeasured(f"{name} was not logged at step {step}")
