"""Which departures belong together, and what incident are they? Clusters of evidence into incidents."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect import hints as facts
from spike.domain.detect.constants import Constants
from spike.domain.detect.departures import SHORT_ROWS
from spike.domain.detect.evidence import Evidence
from spike.domain.detect.local import usual_before
from spike.domain.detect.recovery import recovery
from spike.domain.detect.track import Track
from spike.domain.incident import Incident, Kind, Severity, Signature
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, UPDATE_NORM, Series

KIND_ORDER = (
    Kind.NON_FINITE,
    Kind.DIVERGENCE,
    Kind.DROP,
    Kind.FROZEN,
    Kind.LEVEL_SHIFT,
    Kind.SPIKE,
    Kind.SLOW_DRIFT,
    Kind.SKIPPED_STEPS,
)
"""Which kind names an incident that has several: what ends a run first, then what the loss did."""

LONE_LEVEL = 3.0
"""Scales by which the level of a gradient norm must have moved to be an incident without the loss."""

PARTICIPANT_SIGMAS = 4.0
"""A signal that does not raise an incident itself takes part in one from this far out."""

EARLY_SIGMAS = 3.0
"""... and the row before it belongs to it from this far out."""

USUAL_ROWS = 4096
"""The newest rows say what distance between two logged steps is usual."""

ENDLESS = 1 << 62
"""A step behind every record."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything known of one rank (or of the whole job) while incidents are put together."""

    tracks: Mapping[str, Track]
    series: Mapping[str, Series]
    constants: Constants
    rank: int | None

    @cached_property
    def spacing(self) -> int:
        """Usual distance between two logged steps."""
        loss = self.tracks.get(LOSS) or next(iter(self.tracks.values()), None)
        if loss is None or len(loss) < 2:
            return 1
        gaps = np.diff(loss.steps[-USUAL_ROWS:])
        return max(1, int(np.partition(gaps, gaps.size // 2)[gaps.size // 2]))


def incidents(evidence: Sequence[Evidence], scene: Scene) -> tuple[Incident, ...]:
    """Put evidence of several signals together and judge each cluster."""
    clusters = [c for c in _clusters(evidence, scene) if _is_enough(c, scene)]
    usual = _usual_rows(clusters, scene)
    onsets = [min(e.onset for e in cluster) for cluster in clusters]  # in order
    found: list[Incident] = []
    for index, cluster in enumerate(clusters):
        later = max(index + 1, bisect_right(onsets, max(e.last for e in cluster)))
        until = onsets[later] if later < len(onsets) else ENDLESS
        found.append(_incident(_with_participants(cluster, scene), scene, usual, until))
    return tuple(found)


def _usual_rows(clusters: list[list[Evidence]], scene: Scene) -> NDArray[np.int64]:
    """The loss's finite rows that no incident covers."""
    loss = scene.tracks.get(LOSS)
    if loss is None or not clusters:
        return np.empty(0, dtype=np.int64)
    usual = np.isfinite(loss.y)
    for e in (e for cluster in clusters for e in cluster):
        first, end = np.searchsorted(loss.steps, (e.onset, e.last + 1))
        usual[first:end] = False
    return np.flatnonzero(usual)


def _clusters(evidence: Sequence[Evidence], scene: Scene) -> list[list[Evidence]]:
    reach = scene.constants.join_rows * scene.spacing
    drifts = [[e] for e in evidence if e.signature.kind is Kind.SLOW_DRIFT and not e.is_settled]
    clusters: list[list[Evidence]] = []
    for e in sorted(evidence, key=lambda e: (e.onset, -e.last)):
        if [e] in drifts:
            continue
        if clusters and e.onset <= max(o.last for o in clusters[-1]) + reach:
            clusters[-1].append(e)
        else:
            clusters.append([e])
    for drift in drifts:
        # A creep that ends in something worse is the beginning of it.
        worse = next((c for c in clusters if any(e.signal == LOSS and drift[0].onset <= e.onset for e in c)), None)
        if worse is None:
            clusters.append(drift)
    return sorted(clusters, key=lambda cluster: min(e.onset for e in cluster))


def _is_enough(cluster: list[Evidence], scene: Scene) -> bool:
    """Whether a cluster is an incident: something in it raises one, and a lone gradient norm is far enough out."""
    raising = [e for e in cluster if e.may_raise]
    if not raising:
        return False
    if len(cluster) == 1 and is_lone_batch(cluster[0], scene):
        return False
    norms = (GRAD_NORM, UPDATE_NORM)
    if any(e.signal not in norms or not math.isfinite(e.sigmas) for e in raising):
        return True
    return any(_stands_alone(e, scene.constants) and not _is_at_the_start(e, scene) for e in raising)


def is_lone_batch(evidence: Evidence, scene: Scene) -> bool:
    """Whether a row or two of the loss are high and nothing else moved with them: a hard batch, if not far out."""
    c, signature = scene.constants, evidence.signature
    is_short = evidence.num_rows <= SHORT_ROWS and not evidence.is_open and math.isfinite(evidence.sigmas)
    if evidence.signal != LOSS or signature.kind is not Kind.SPIKE or not is_short:
        return False
    jump = c.seen_jump if evidence.num_rows > 1 else c.large_jump
    is_large = signature.transform == "log" and evidence.effect >= jump and signature.scale < c.calm_scale
    if evidence.sigmas >= c.lone_sigmas or is_large or evidence.onset < _first_known(scene):
        return False
    return len(_with_participants([evidence], scene)) == 1


def _first_known(scene: Scene) -> int:
    """The step from which on the run's own noise is known: before, one far row is judged by a prior."""
    track = scene.tracks[LOSS]
    return track.step(min(scene.constants.window_rows, len(track) - 1))


def _is_at_the_start(evidence: Evidence, scene: Scene) -> bool:
    """Whether a gradient norm moves within the first rows of a record and comes back or settles."""
    track = scene.tracks[evidence.signal]
    first = track.step(min(scene.constants.ready_rows, len(track) - 1))
    return evidence.onset < first and not evidence.is_open and len(track) > 4 * scene.constants.ready_rows


def _stands_alone(evidence: Evidence, constants: Constants) -> bool:
    if not evidence.is_abrupt:
        return False
    if evidence.is_settled or (evidence.is_open and evidence.num_rows > 8):
        return evidence.level >= max(constants.lone_grad_shift, LONE_LEVEL * evidence.signature.scale)
    enough = (1.5 * constants.max_sigmas) if evidence.num_rows <= 2 else (1.3 * constants.min_sigmas)
    return evidence.effect >= constants.lone_grad_norm and evidence.sigmas > enough


def _with_participants(cluster: list[Evidence], scene: Scene) -> list[Evidence]:
    """Add the signals that moved with the cluster without raising anything themselves."""
    onset, last = min(e.onset for e in cluster), max(e.last for e in cluster)
    present = {e.signal for e in cluster}
    reach = scene.constants.join_rows * scene.spacing
    added = [
        participant
        for name, track in scene.tracks.items()
        if name not in present and (participant := _participant(track, onset, onset - reach, last + scene.spacing))
    ]
    return [*cluster, *added]


def _participant(track: Track, onset: int, first: int, last: int) -> Evidence | None:
    usual = usual_before(track, min(onset, first + 1))
    if usual is None:
        return None
    centre, scale = usual
    start, end = np.searchsorted(track.steps, (first, last + 1))
    away = track.y[start:end] - centre
    high = np.flatnonzero(away > PARTICIPANT_SIGMAS * scale)
    if high.size == 0:
        return None
    before = int(high[0]) - 1
    begin = start + (before if before >= 0 and away[before] > EARLY_SIGMAS * scale else before + 1)
    peak, stop = int(start + high[np.argmax(away[high])]), int(start + high[-1])
    effect = track.at(peak) - centre
    signature = Signature(
        track.name,
        Kind.SPIKE,
        track.transform,
        centre,
        scale,
        min(PARTICIPANT_SIGMAS * scale, 0.5 * effect),
        1,
        track.step(int(begin)),
        track.step(peak),
        track.value(peak),
        track.step(stop),
    )
    return Evidence(signature, effect, effect / scale, stop == len(track) - 1, False, int(high.size), may_raise=False)


def _incident(cluster: list[Evidence], scene: Scene, usual: NDArray[np.int64], until: int) -> Incident:
    ordered = _one_per_signal(cluster)
    first = ordered[0]
    kind = min((e.signature.kind for e in cluster if e.may_raise), key=KIND_ORDER.index)
    onset = first.onset
    loss = next((e for e in ordered if e.signal == LOSS), None)
    peak = (loss or max(ordered, key=lambda e: e.sigmas)).signature.peak_step
    recovered = _has_recovered(cluster, kind, scene, usual, until)
    return Incident(
        kind=kind,
        severity=_severity(kind, cluster, recovered),
        onset_step=onset,
        peak_step=peak,
        first_signal=first.signal,
        lead_steps=max(0, peak - onset),
        ratio=_ratio(first),
        recovered=recovered,
        rank=scene.rank,
        signatures=tuple(e.signature for e in ordered),
        hints=_hints(ordered, scene, onset),
    )


def _one_per_signal(cluster: list[Evidence]) -> list[Evidence]:
    """One piece of evidence a signal, first mover first; of equal onsets the loss comes first."""
    by_signal: dict[str, Evidence] = {}
    for e in sorted(cluster, key=lambda e: (e.onset, -e.sigmas)):
        known = by_signal.get(e.signal)
        by_signal[e.signal] = e if known is None else _united(known, e)
    lost = Kind.NON_FINITE
    return sorted(by_signal.values(), key=lambda e: (e.onset, e.signature.kind is not lost, e.signal != LOSS))


def _united(one: Evidence, other: Evidence) -> Evidence:
    """Two departures of one signal as one: the earlier's baseline, the worse one's peak."""
    a, b = one.signature, other.signature
    worse = other if other.effect > one.effect else one
    kind = min(a.kind, b.kind, key=KIND_ORDER.index)
    base = a if a.scale > 0 or b.scale == 0 else b
    signature = replace(
        base,
        kind=kind,
        direction=base.direction if math.isfinite(worse.effect) is False else worse.signature.direction,
        onset_step=min(a.onset_step, b.onset_step),
        peak_step=worse.signature.peak_step,
        peak_value=worse.signature.peak_value,
        last_step=max(a.last_step, b.last_step),
    )
    return replace(
        one,
        signature=signature,
        effect=max(one.effect, other.effect),
        sigmas=max(one.sigmas, other.sigmas),
        is_open=one.is_open or other.is_open,
        is_settled=one.is_settled or other.is_settled,
        num_rows=one.num_rows + other.num_rows,
        hints=tuple(dict.fromkeys((*one.hints, *other.hints))),
    )


def _has_recovered(cluster: list[Evidence], kind: Kind, scene: Scene, usual: NDArray[np.int64], until: int) -> bool:
    raising = [e for e in cluster if e.may_raise]
    if any(e.is_open or e.is_settled for e in raising):
        return False
    track = scene.tracks.get(LOSS)
    if track is None or len(track) == 0:
        return True
    if all(e.signal in (GRAD_NORM, UPDATE_NORM) and math.isfinite(e.sigmas) for e in cluster):
        return True  # the norm came back, and the loss took no part
    onset, last = min(e.onset for e in cluster), max(e.last for e in cluster)
    if kind in (Kind.SKIPPED_STEPS, Kind.FROZEN, Kind.DROP) and not any(
        e.signal == LOSS and e.signature.direction > 0 for e in raising
    ):
        return True
    found = recovery(track, onset, last, until, usual, scene.constants)
    if not found.is_known and until < ENDLESS:
        found = recovery(track, onset, last, ENDLESS, usual, scene.constants)
    return found.is_back(scene.constants)


def _severity(kind: Kind, cluster: list[Evidence], recovered: bool) -> Severity:
    stays = any(e.is_open for e in cluster if e.may_raise)
    match kind:
        case Kind.DIVERGENCE:
            return Severity.FATAL
        case Kind.NON_FINITE | Kind.SKIPPED_STEPS | Kind.FROZEN:
            if stays:
                return Severity.FATAL
            return Severity.TRANSIENT if recovered else Severity.LASTING
        case Kind.LEVEL_SHIFT | Kind.SLOW_DRIFT:
            return Severity.LASTING
        case Kind.SPIKE | Kind.DROP:
            return Severity.TRANSIENT if recovered else Severity.LASTING


def _ratio(evidence: Evidence) -> float:
    signature = evidence.signature
    if not math.isfinite(signature.peak_value) or not math.isfinite(evidence.effect):
        return math.inf
    if signature.transform == "log":
        return math.exp(signature.direction * evidence.effect)
    usual = max(abs(signature.centre), signature.scale)
    return abs(signature.peak_value) / usual if usual > 0 else math.inf


def _hints(ordered: list[Evidence], scene: Scene, onset: int) -> tuple[str, ...]:
    found: list[str] = [hint for e in ordered for hint in e.hints]
    lr = facts.learning_rate_jump(scene.series.get(LEARNING_RATE), onset)
    if lr is not None:
        found.append(lr)
    for e in ordered:
        ratio = facts.clean_ratio(e)
        if ratio is not None:
            found.append(ratio)
    loss = next((e for e in ordered if e.signal == LOSS), None)
    if loss is not None and loss.signature.direction > 0 and math.isfinite(loss.signature.peak_value):
        known = facts.log_vocabulary(_level_value(loss), _first_loss(scene))
        if known is not None:
            found.append(known)
    if loss is not None and loss.signature.direction < 0 and loss.signature.peak_value == 0.0:
        found.append("the loss is exactly 0.0: no supervised token, or a value that a logger put there")
    return tuple(dict.fromkeys(found))


def _level_value(evidence: Evidence) -> float:
    """The level of a lasting departure, the peak of a short one, in the signal's own units."""
    signature = evidence.signature
    if signature.transform != "log" or evidence.num_rows < 3:
        return signature.peak_value
    return math.exp(signature.centre + evidence.level)


def _first_loss(scene: Scene) -> float | None:
    track = scene.tracks.get(LOSS)
    if track is None or track.is_excerpt or len(track) == 0:
        return None
    value = track.value(0)
    return value if math.isfinite(value) else None
