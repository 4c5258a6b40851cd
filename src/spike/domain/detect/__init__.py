"""Is there an incident in these signals? The detector: pure, relative to the run's own noise, and explainable.

    detect(signals) -> Detection

It never uses an absolute loss, never lets an outlier into its baseline, and says of everything that looks
alarming and is not why it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from spike.domain.detect import benign
from spike.domain.detect.constants import Constants
from spike.domain.detect.one_rank import judge
from spike.domain.detect.predicate import exceeds, excess
from spike.domain.detect.ranks import deviant_ranks, job_wide, of_rank
from spike.domain.incident import Detection, Incident, Notice, Severity
from spike.domain.signals import Series, Signals

__all__ = ["Constants", "detect", "exceeds", "excess"]


def detect(signals: Signals, *, constants: Mapping[str, float] | None = None) -> Detection:
    """Incidents, worst news not first but in order of their onset, and notices.

    `constants` changes detector constants by name; an unknown name raises SpikeError.
    """
    numbers = Constants().changed(constants or {})
    job = job_wide(signals)
    found, notices = judge(job, numbers, None)
    found = _with_ranks(signals, job, found, numbers)
    found += _replaced(signals, job, found, numbers)
    ordered = tuple(sorted(found, key=lambda incident: (incident.onset_step, incident.rank or -1)))
    return Detection(ordered, (*benign.of_signals(signals), *notices))


def _with_ranks(
    signals: Signals, job: dict[str, Series], found: tuple[Incident, ...], constants: Constants
) -> tuple[Incident, ...]:
    """Look at deviant ranks: name the rank that moved first, and add what only one rank shows."""
    result = list(found)
    alone: list[Incident] = []
    for rank in deviant_ranks(signals):
        for incident in judge(of_rank(signals, rank, job), constants, rank)[0]:
            index = next((i for i, known in enumerate(result) if _overlap(known, incident)), None)
            if index is None:
                alone.append(incident)
            elif result[index].rank is None and incident.onset_step < result[index].onset_step:
                result[index] = incident
    kept = [i for i in alone if not any(_overlap(i, known) for known in result)]
    return tuple(result + _first_ranks(kept))


def _first_ranks(alone: list[Incident]) -> list[Incident]:
    """Of incidents that overlap on several ranks, the rank that moved first."""
    kept: list[Incident] = []
    for incident in sorted(alone, key=lambda i: (i.onset_step, -i.ratio, i.rank or 0)):
        if not any(_overlap(incident, known) for known in kept):
            kept.append(incident)
    return kept


def _overlap(one: Incident, other: Incident) -> bool:
    (a, b), (c, d) = _span(one), _span(other)
    return a <= d + 2 and c <= b + 2


def _span(incident: Incident) -> tuple[int, int]:
    return (
        min(s.onset_step for s in incident.signatures),
        max(s.last_step for s in incident.signatures),
    )


def _replaced(
    signals: Signals, job: dict[str, Series], found: tuple[Incident, ...], constants: Constants
) -> tuple[Incident, ...]:
    """Incidents in rows that a restart replaced: they happened, although the record goes on without them."""
    added: list[Incident] = []
    for rewind in signals.rewinds:
        before = {
            old.name: _older(job[old.name], old)
            for old in signals.superseded
            if old.name in job and _is_replaced_by(old, rewind.to_step, rewind.from_step)
        }
        if not before:
            continue
        for incident in judge(job | before, constants, None)[0]:
            inside = rewind.to_step <= incident.onset_step <= rewind.from_step
            if inside and not any(_overlap(incident, known) for known in (*found, *added)):
                hint = f"these rows were replaced by a restart at step {rewind.to_step}; the run goes on without them"
                added.append(
                    replace(
                        incident,
                        severity=Severity.TRANSIENT,
                        recovered=True,
                        hints=(*incident.hints, hint),
                    )
                )
    return tuple(added)


def _is_replaced_by(old: Series, to_step: int, from_step: int) -> bool:
    return bool(old.steps.size) and to_step <= int(old.steps[0]) and int(old.steps[-1]) <= from_step


def _older(kept: Series, old: Series) -> Series:
    """The timeline as it was before the restart."""
    before = kept.steps < old.steps[0]
    return replace(
        kept,
        steps=np.concatenate([kept.steps[before], old.steps]),
        values=np.concatenate([kept.values[before], old.values]),
    )


def all_notices(detection: Detection) -> dict[str, Notice]:
    """Notices by pattern."""
    return {notice.pattern: notice for notice in detection.notices}
