"""What does the detector see in one set of series? Every detector in turn, then incidents and notices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect import benign
from spike.domain.detect.assemble import Scene, incidents, is_lone_batch
from spike.domain.detect.constants import Constants
from spike.domain.detect.departures import Departure, departures
from spike.domain.detect.drift import find_drift
from spike.domain.detect.evidence import Evidence, of_departure
from spike.domain.detect.frozen import find_frozen
from spike.domain.detect.hints import clean_ratio, lowered_rate
from spike.domain.detect.lasting import find_lasting
from spike.domain.detect.nonfinite import find_nonfinite
from spike.domain.detect.scaler import find_collapse
from spike.domain.detect.season import is_in_phase, without_season
from spike.domain.detect.shape import continues, of_loss, returns, risen_further
from spike.domain.detect.track import Track, is_stale, track
from spike.domain.detect.vanished import find_vanished
from spike.domain.detect.watch import DOWN, UP
from spike.domain.incident import Incident, Kind, Notice
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, UPDATE_NORM, Series

EPOCH_ROWS = 6
"""Rows around a drop in which a new epoch explains it: the walk back may have begun a little early."""

SHORTEST = 3
"""Fewer rows than this are no record."""


def judge(
    series: dict[str, Series], constants: Constants, rank: int | None
) -> tuple[tuple[Incident, ...], tuple[Notice, ...]]:
    """Incidents and notices of one rank's series (canonical name -> series)."""
    notices: list[Notice] = []
    logged, series = series, _usable(series, notices)
    tracks = _tracks(series, constants)
    lost = find_nonfinite(series.get(LOSS), series.get(GRAD_NORM), series, tracks, constants)
    notices += lost.notices
    if lost.filtered_steps.size:
        tracks = _tracks(_without_filtered(series, lost.filtered_steps), constants)
    evidence: list[Evidence] = [*lost.evidence, *find_frozen(logged, constants), *find_vanished(logged, constants)]
    evidence += find_collapse(series.get(LOSS_SCALE), constants.startup_rows)
    rows = benign.period(tracks[LOSS], constants) if LOSS in tracks else None
    for name in (GRAD_NORM, UPDATE_NORM):
        if name in tracks:
            evidence += _norm_evidence(tracks[name], rows, constants)
    if LOSS in tracks:
        evidence += _loss_evidence(tracks[LOSS], series, rows, constants, notices)
    scene = Scene(tracks, series, constants, rank)
    found_incidents = incidents(evidence, scene)
    lone = [e.onset for e in evidence if is_lone_batch(e, scene)]
    if lone:
        notices.append(benign.hard_batches(lone))
    return found_incidents, tuple(_outside(notices, found_incidents))


def _usable(series: dict[str, Series], notices: list[Notice]) -> dict[str, Series]:
    kept = dict(series)
    norm = kept.get(GRAD_NORM)
    if norm is not None and is_stale(norm):
        notices.append(benign.stale(norm))
        del kept[GRAD_NORM]
    loss = kept.get(LOSS)
    if loss is not None and not _has_lost_gradients(loss, series.get(GRAD_NORM)):
        zero = benign.zero_loss(loss)
        if zero is not None:
            notices.append(zero)
            del kept[LOSS]
    return kept


def _has_lost_gradients(loss: Series, norm: Series | None) -> bool:
    """Whether zeros of the loss stand beside gradients that are not finite: then they are no policy gradient's."""
    if norm is None:
        return False
    zeros = np.unique(loss.steps[loss.values == 0.0])
    lost = np.unique(norm.steps[~np.isfinite(norm.values)])
    return int(np.intersect1d(zeros, lost, assume_unique=True).size) > 0.2 * zeros.size


def _tracks(series: dict[str, Series], constants: Constants) -> dict[str, Track]:
    return {
        name: track(series[name], constants)
        for name in (LOSS, GRAD_NORM, UPDATE_NORM)
        if name in series and series[name].steps.size > 0
    }


def _without_filtered(series: dict[str, Series], steps: NDArray[np.int64]) -> dict[str, Series]:
    """The loss with NaN where the logger had put 0.0 in its place."""
    loss = series.get(LOSS)
    if loss is None or steps.size == 0:
        return series
    hidden = np.isin(loss.steps, steps)
    return series | {LOSS: replace(loss, values=np.where(hidden, np.nan, loss.values))}


def _norm_evidence(norm: Track, rows: int | None, constants: Constants) -> list[Evidence]:
    found = departures(norm, constants).departures
    up = [d for d in found if d.direction == UP and (rows is None or not is_in_phase(norm, d.peak, rows))]
    fallen = [of_departure(norm, d, Kind.LEVEL_SHIFT) for d in found if d.direction == DOWN and d.is_settled]
    # A norm falls for many good reasons; by a clean factor and at once it does so for a bad one.
    clean = [e for e in fallen if e.is_abrupt and clean_ratio(e) is not None]
    return [*(of_departure(norm, d, _norm_kind(d)) for d in up), *clean]


def _norm_kind(departure: Departure) -> Kind:
    lasting = departure.is_settled or (departure.is_open and departure.num_rows > 8)
    return Kind.LEVEL_SHIFT if lasting else Kind.SPIKE


def _loss_evidence(
    logged: Track, series: dict[str, Series], rows: int | None, constants: Constants, notices: list[Notice]
) -> list[Evidence]:
    loss = logged
    if rows is not None:
        notices.append(benign.periodic(logged, rows))
        loss = without_season(logged, rows)
    passed = departures(loss, constants)
    found = _joined(loss, list(passed.departures), constants)
    if rows is not None:
        found = [d for d in found if d.direction == DOWN or not is_in_phase(logged, d.peak, rows)]
    kept: list[Evidence] = []
    for departure in found:
        evidence = of_loss(loss, departure, constants)
        if evidence is None:
            continue
        evidence = evidence.moved(logged.at(departure.peak) - loss.at(departure.peak))
        if (
            departure.direction == UP
            and departure.sigmas < constants.min_sigmas
            and _has_stepped_down(series, evidence)
        ):
            continue  # the fall behind a step of the schedule levels off
        why = _benign_drop(evidence, series) if departure.direction == DOWN else None
        if why is None:
            kept.append(evidence)
        else:
            notices.append(Notice(why[0], (evidence.onset,), why[1]))
    if passed.hard_rows:
        notices.append(benign.hard_batches(loss.step(row) for row in passed.hard_rows))
    lasting = any((e.is_open or e.is_settled) and e.signature.direction == UP for e in kept)
    taken = [(d.onset, d.last) for d in found if not (d.is_open or d.is_settled)]
    if lasting or len(loss) < SHORTEST:
        return kept
    return [*kept, *(find_drift(loss, taken, constants) or find_lasting(loss, taken, constants))]


def _joined(loss: Track, found: list[Departure], constants: Constants) -> list[Departure]:
    """Join a rise that had settled with the drop that ended it, or with the next rise that went on from there."""
    kept: list[Departure] = []
    for departure in found:
        if kept and returns(loss, kept[-1], departure):
            risen = kept.pop()
            departure = replace(risen, last=max(risen.last, departure.onset - 1), is_settled=False)
        elif kept and continues(kept[-1], departure, constants.settle_rows):
            departure = risen_further(kept.pop(), departure)
        kept.append(departure)
    return kept


def _has_stepped_down(series: dict[str, Series], evidence: Evidence) -> bool:
    return lowered_rate(series.get(LEARNING_RATE), evidence.onset) is not None


def _benign_drop(evidence: Evidence, series: dict[str, Series]) -> tuple[str, str] | None:
    onset = evidence.onset
    lowered = lowered_rate(series.get(LEARNING_RATE), onset)
    if lowered is not None:
        return "learning-rate-step", f"the loss falls where the learning rate steps down at step {lowered}"
    epoch = series.get("epoch")
    if epoch is not None and evidence.effect < 0.7 and _new_epoch(epoch, onset):
        return "epoch-boundary", "the loss falls where a new epoch begins: the data was seen before"
    return None


def _new_epoch(epoch: Series, onset: int) -> bool:
    at = int(np.searchsorted(epoch.steps, onset))
    near = epoch.values[max(0, at - EPOCH_ROWS) : at + EPOCH_ROWS]
    near = near[np.isfinite(near)]
    return bool(near.size) and math.floor(float(near.max()) + 1e-3) > math.floor(float(near.min()) + 1e-3)


def _outside(notices: list[Notice], found: tuple[Incident, ...]) -> list[Notice]:
    """Notices without the steps that an incident covers; what an incident says needs no second word."""
    spans = [(min(s.onset_step for s in i.signatures), max(s.last_step for s in i.signatures)) for i in found]
    kept: list[Notice] = []
    for notice in notices:
        if notice.pattern not in ("hard-batches", "single-scaler-skip"):
            kept.append(notice)
            continue
        steps = tuple(s for s in notice.steps if not any(a <= s <= b for a, b in spans))
        if steps:
            kept.append(replace(notice, steps=steps))
    return kept
