"""What shape has a departure of the loss? Spike, level shift, divergence, drift or drop, or nothing at all."""

from __future__ import annotations

import math
from dataclasses import replace

from spike.domain.detect.constants import Constants
from spike.domain.detect.departures import Departure
from spike.domain.detect.evidence import Evidence, of_departure
from spike.domain.detect.track import Track
from spike.domain.detect.watch import DOWN, UP
from spike.domain.incident import Kind

FEW_ROWS = 4
"""Up to this many rows a departure is judged by its jump, beyond it by its level."""

CAME_DOWN = 0.5
"""A departure whose last level is below this share of its peak is on its way back."""

LONG_ROWS = 20
"""From this many rows on, an open departure is a level and no spike."""

LEVEL_ROWS = 8
"""So many rows at a lower level need no single row that is far out."""

DEEP_DROP = 0.7
"""ln 2: a loss that halves within a row needs no second row to be odd."""


def of_loss(track: Track, departure: Departure, constants: Constants) -> Evidence | None:
    """The loss's departure as evidence, or None where it is too small to matter."""
    if departure.direction == UP:
        return _upward(track, departure, constants)
    return _drop(track, departure, constants)


def _upward(track: Track, departure: Departure, constants: Constants) -> Evidence | None:
    if track.transform == "log" and not _is_big_enough(track, departure, constants):
        return None
    return of_departure(track, departure, _kind(track, departure, constants))


def _is_big_enough(track: Track, departure: Departure, constants: Constants) -> bool:
    if departure.num_rows == 1 and departure.onset < constants.ready_rows and departure.effect < DEEP_DROP:
        return False  # one row against an assumed noise
    if departure.effect >= constants.min_jump:
        return True
    return departure.num_rows > FEW_ROWS and _level(track, departure) >= constants.min_shift


def _kind(track: Track, departure: Departure, constants: Constants) -> Kind:
    if not (departure.is_open or departure.is_settled):
        return Kind.SPIKE
    at_the_end = last_level(track, departure)
    stays = at_the_end > CAME_DOWN * departure.effect
    far = at_the_end >= constants.diverged if track.transform == "log" else False
    if stays and far and departure.num_rows >= 3:
        return Kind.DIVERGENCE
    if departure.is_settled or departure.num_rows >= LONG_ROWS:
        return Kind.LEVEL_SHIFT if of_departure(track, departure, Kind.SPIKE).is_abrupt else Kind.SLOW_DRIFT
    return Kind.SPIKE


def _drop(track: Track, departure: Departure, constants: Constants) -> Evidence | None:
    """Downward jumps count where they are sudden and stay, or are absurd; learning faster is no incident."""
    evidence = of_departure(track, departure, Kind.DROP)
    is_absurd = departure.effect >= DEEP_DROP or math.isinf(departure.effect)
    is_level = departure.num_rows >= LEVEL_ROWS and departure.level >= constants.return_sigmas
    if not evidence.is_abrupt or not (departure.sigmas >= constants.min_sigmas or is_level):
        return None
    if departure.num_rows < 3 and not is_absurd:
        return None
    if track.transform == "log" and departure.effect < 10 * constants.min_shift:
        return None
    return evidence


def last_level(track: Track, departure: Departure) -> float:
    """Median distance from the centre over the departure's last rows, in its direction."""
    return _median_effect(track, departure, max(departure.onset, departure.last - 7))


def _level(track: Track, departure: Departure) -> float:
    return _median_effect(track, departure, departure.onset)


def _median_effect(track: Track, departure: Departure, first: int) -> float:
    rows = track.between(first, departure.last + 1)
    away = sorted(departure.direction * (y - departure.centre) for y in rows if not math.isnan(y))
    return away[len(away) // 2] if away else 0.0


def returns(track: Track, risen: Departure, fallen: Departure) -> bool:
    """Whether a drop is the end of an earlier rise that had settled: more than half of it is undone."""
    return (
        risen.direction == UP
        and fallen.direction == DOWN
        and risen.is_settled
        and fallen.centre - fallen.effect < risen.centre + CAME_DOWN * last_level(track, risen)
    )


def continues(risen: Departure, next_one: Departure, rows: int) -> bool:
    """Whether a rise goes on from the level at which the one before it had settled."""
    return (
        risen.direction == UP
        and next_one.direction == UP
        and risen.is_settled
        and (next_one.is_settled or next_one.is_open)
        and next_one.onset - risen.last <= rows
    )


def risen_further(risen: Departure, next_one: Departure) -> Departure:
    """Two rises as one, measured from the first one's baseline."""
    effect = max(risen.effect, next_one.centre + next_one.effect - risen.centre)
    return replace(
        risen,
        peak=next_one.peak if effect > risen.effect else risen.peak,
        last=next_one.last,
        effect=effect,
        sigmas=effect / risen.scale,
        is_open=next_one.is_open,
        is_settled=next_one.is_settled,
        num_rows=risen.num_rows + next_one.num_rows,
        weight=max(risen.weight, next_one.weight),
    )
