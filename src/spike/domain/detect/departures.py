"""Where does one signal leave its baseline, for how long, and does it come back? One pass over one track."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spike.domain.detect.baseline import MAD_TO_SIGMA, Forecast, coordinate
from spike.domain.detect.calm import FEWEST, MOST, can_judge_many, take_calm
from spike.domain.detect.constants import Constants
from spike.domain.detect.tail import TAIL_SHARE, rare_above
from spike.domain.detect.track import Track
from spike.domain.detect.watch import DOWN, MANY_ROWS, UP, Watch

SHORT_ROWS = 2
"""A departure this short is judged by the tail alone; a longer one is a state of the run."""

STATE_ROWS = 20
"""From this many rows on, a departure that does not come back is a state of the run and has a level."""

EARLY_UNREST = 3.0
"""A level that begins before the noise was seen must exceed its own scatter by this factor."""

MOST_WAITING = 16
"""Rows held under suspicion at most: a sum that has not decided by then never will."""

JUMP_SHARE = 0.75
"""A jump has gone this share of its way within two rows; learning takes longer."""

BEFORE_ROWS = 5
"""Rows whose median says where the loss just was."""

ABOVE_SIGMAS = 1.0
"""A slow rise must be this far above that level: more than the level's own error."""

BEHIND_ROWS = 48
"""Rows behind a short departure that tell whether the noise has grown."""

LOW_ROWS = 3
"""Rows that must stay low behind a downward jump."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Rows in which a signal was away from its baseline. Rows are 0-based positions in the track."""

    name: str
    direction: int
    onset: int
    peak: int
    last: int
    centre: float
    """The baseline's value at the onset, in transformed units."""
    scale: float
    threshold: float
    """Distance from the centre beyond which a row counts, in transformed units."""
    sigmas: float
    """Distance of the peak from the centre, in scales."""
    effect: float
    """The same in transformed units."""
    is_open: bool
    """The record ends before the signal came back."""
    is_settled: bool
    """It stood still at a new level, which became the baseline."""
    num_rows: int
    """Anomalous rows between onset and last."""
    weight: float
    """Sum of their distances in scales, over the spread that such a sum of healthy rows would have."""
    level: float
    """Median distance of all rows between onset and last, in scales."""
    unrest: float
    """How much these rows scatter around their own median (MAD as a standard deviation), in scales."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over a track found."""

    departures: tuple[Departure, ...]
    hard_rows: tuple[int, ...]
    """Rows that would be far out for a normal noise and are not for this run's tail."""


def departures(track: Track, constants: Constants, *, many_at_once: bool = True) -> Pass:
    """Every departure of the track, upward and downward, in order.

    `many_at_once` judges calm stretches as a whole; without it each row is judged on its own, with the same answer.
    """
    watch = Watch(track, constants)
    found: list[Departure] = []
    known = np.flatnonzero(~np.isnan(track.y))
    lost = np.flatnonzero(np.isinf(track.y[known]))  # places among the known rows
    place, many = 0, FEWEST
    while place < known.size:
        if many_at_once and can_judge_many(watch):
            at = int(np.searchsorted(lost, place))
            end = min(place + many, int(lost[at]) if at < lost.size else known.size)
            if end > place:
                rows = known[place:end]
                count = take_calm(watch, rows, track.y[rows])
                place += count
                many = min(MOST, 2 * many) if count == rows.size else max(FEWEST, many // 2)
                if count == rows.size:
                    continue
        row = int(known[place])
        direction = _crossing(watch, row, track.at(row))
        if direction == 0 or (_is_learning(watch, row) if direction == DOWN else _is_flattening(watch, row)):
            place += 1
            continue
        departure, row = _follow(watch, row, direction)
        place = int(np.searchsorted(known, row))
        found.append(departure)
    kept, hard = _rare(watch, [d for d in found if _has_weight(watch, d)])
    return Pass(tuple(kept), tuple(sorted((*watch.hard, *hard))))


def _has_weight(watch: Watch, departure: Departure) -> bool:
    """Whether a departure without one far row has enough rows to be more than a run of correlated noise."""
    c = watch.constants
    if departure.num_rows >= STATE_ROWS and (departure.is_settled or departure.is_open):
        # One far row within a hundred says nothing of the level: the middle row has to be away.
        is_early = departure.onset < c.ready_rows
        return departure.level >= (max(c.level_sigmas, EARLY_UNREST * departure.unrest) if is_early else c.level_sigmas)
    mean = departure.weight / math.sqrt(max(1, departure.num_rows))
    return departure.sigmas >= c.min_sigmas or (departure.weight >= c.slow_weight and mean >= c.slow_mean)


def _rare(watch: Watch, found: list[Departure]) -> tuple[list[Departure], list[int]]:
    """Judge short departures again by the tail of the whole record: what recurs later was this run's noise."""
    c = watch.constants
    short = [d for d in found if d.num_rows <= SHORT_ROWS and not d.is_open and d.direction == UP]
    if not short or len(watch.healthy) < MANY_ROWS:
        return found, []
    size = len(watch.healthy) + len(short) - 1
    ordered = np.sort(watch.healthy.last())[-(int(size * TAIL_SHARE) + 2) :]
    sigmas = np.array([d.sigmas for d in short])
    common: set[int] = set()
    for place, departure in enumerate(short):
        together = np.sort(np.concatenate([ordered, np.delete(sigmas, place)]))
        tail = rare_above(together[-(size - int(size * (1.0 - TAIL_SHARE))) :], c.false_alarms)
        limit = min(c.max_sigmas, max(c.min_sigmas, tail))
        is_common = departure.sigmas < limit or _sigmas_behind(watch, departure) < c.min_sigmas
        if is_common and not watch.is_seen(*_size(departure)):
            common.add(departure.peak)
    dropped = [d for d in short if d.peak in common]
    return [d for d in found if d not in dropped], [d.peak for d in dropped]


def _sigmas_behind(watch: Watch, departure: Departure) -> float:
    """Its distance in scales, or in those of the rows behind it where they are noisier: a louder stretch began."""
    behind = watch.track.y[departure.last + 1 : departure.last + 1 + BEHIND_ROWS]
    behind = behind[np.isfinite(behind)]
    if behind.size < BEHIND_ROWS // 2:
        return departure.sigmas
    # Differences of neighbours are free of the trend; each holds the noise of two rows.
    scale = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(behind)))) / math.sqrt(2.0)
    return departure.effect / max(departure.scale, scale)


def _size(departure: Departure) -> tuple[float, float, int]:
    return departure.effect, departure.sigmas, departure.num_rows


def _is_learning(watch: Watch, row: int) -> bool:
    """Whether a downward crossing is no jump: a run that learns faster, or one low row.

    A low row is passed over; for faster learning the baseline starts again on the newest rows.
    """
    track = watch.track
    is_far = watch.sums[DOWN] <= watch.constants.cusum_limit  # else it is the sum that crossed
    watch.let_in()
    onset = _first_departure(watch, row, DOWN)
    forecast = watch.baseline.forecast(row)
    limit = watch.threshold(DOWN) * forecast.scale
    ahead = [y for y in track.between(row + 1, row + 1 + LOW_ROWS) if not math.isnan(y)]
    is_low = is_far or forecast.centre - track.at(row) > limit
    was_usual = len(watch.recent_z) == 0 or watch.recent_z.last(1)[0] > -watch.constants.return_sigmas
    if math.isinf(track.at(row)) or _is_jump(watch, row if is_low and was_usual else onset, row, forecast):
        return False
    if is_low and not all(forecast.centre - y > 0.5 * limit for y in ahead):
        watch.sums[DOWN] = 0.0
        watch.baseline.note_error(track.at(row) - forecast.centre)
        return True
    watch.left = (row, forecast.centre)
    watch.begin_again(min(onset, row - 3), row)
    return True


def _is_flattening(watch: Watch, row: int) -> bool:
    """Whether a slow upward crossing is only a fall that slows down, or the way back from a low stretch.

    Then no row is above where the loss just was, or above the level that it had left downward.
    """
    track = watch.track
    forecast = watch.baseline.forecast(row)
    if track.at(row) - forecast.centre > watch.threshold(UP) * forecast.scale or not forecast.is_ready:
        return False
    watch.let_in()
    onset = _first_departure(watch, row, UP)
    before = sorted(y for y in track.between(max(0, onset - BEFORE_ROWS), onset) if math.isfinite(y))
    since = sorted(y for y in track.between(onset, row + 1) if math.isfinite(y))
    level = since[len(since) // 2]
    left, centre = watch.left
    near = watch.constants.return_sigmas * forecast.scale
    is_back = row - left < watch.constants.window_rows and level < centre + near
    if not is_back and (not before or level > before[len(before) // 2] + ABOVE_SIGMAS * forecast.scale):
        return False
    watch.begin_again(min(onset, row - 3), row)
    return True


def _is_jump(watch: Watch, onset: int, row: int, forecast: Forecast) -> bool:
    """Whether the loss fell at once to a level that it keeps: the first low rows are as low as the ones that follow."""
    track = watch.track
    first = [forecast.centre - v for v in track.between(onset, onset + 2) if math.isfinite(v)]
    later = sorted(forecast.centre - v for v in track.between(row, row + 8) if math.isfinite(v))
    if not first or len(later) < LOW_ROWS:
        return False
    level = later[len(later) // 2]
    return level > watch.constants.accept_sigmas * forecast.scale and max(first) > JUMP_SHARE * level


def _crossing(watch: Watch, row: int, y: float) -> int:
    """Judge one row; take it in where it is healthy. Returns the direction of a departure, or 0."""
    c = watch.constants
    forecast = watch.baseline.forecast(row)
    if not watch.is_ready(forecast):
        return _start_up(watch, row, y, forecast)
    error = y - forecast.centre
    z = error / forecast.scale
    for direction in (UP, DOWN):
        away = direction * z
        if away < 0 and watch.sums[direction] == 0.0:
            continue
        limit = watch.threshold(direction)
        # In units in which this run's rare row is at min_sigmas, so that a heavy tail does not add up either.
        added = min(away * c.min_sigmas / limit, c.cusum_cap) / watch.memory.inflation() - c.cusum_slack
        if watch.sums[direction] == 0.0 and added > 0:
            watch.since[direction] = row
        watch.sums[direction] = max(0.0, watch.sums[direction] + added)
        is_far = away > limit or watch.is_large(direction * error, away)
        if is_far or watch.sums[direction] > c.cusum_limit:
            return direction
    if z > c.min_sigmas and forecast.is_ready:
        watch.hard.append(row)
    watch.healthy.append(z)
    watch.recent_rows.append(row)
    watch.recent_z.append(z)
    watch.tail.add(z)
    if abs(z) < c.accept_sigmas:
        watch.waiting.append((row, y, error, z))
    elif forecast.is_ready:
        watch.baseline.note_error(error)
    if max(watch.sums.values()) < c.cusum_hold or len(watch.waiting) > MOST_WAITING:
        watch.let_in()
    watch.highest = max(watch.highest, y)
    return 0


def _start_up(watch: Watch, row: int, y: float, forecast: Forecast) -> int:
    """Before the noise is known only a loss above everything it ever was speaks: an untrained model is the worst."""
    c = watch.constants
    is_above = watch.baseline.num_accepted >= 2 and y > watch.highest + c.diverged
    if is_above and watch.track.transform == "log" and watch.track.prior == c.loss_prior:
        return UP
    if math.isinf(y):
        return 0
    watch.baseline.accept(row, y, None if math.isnan(forecast.centre) else y - forecast.centre)
    watch.highest = max(watch.highest, y)
    return 0


def _follow(watch: Watch, crossing: int, direction: int) -> tuple[Departure, int]:
    """The whole departure around a crossing, and the row at which judging goes on."""
    c, track = watch.constants, watch.track
    onset = _first_departure(watch, crossing, direction)
    watch.let_in()
    is_ready = watch.baseline.num_accepted >= c.ready_rows
    taken_back = sum(1 for row, z in watch.recent() if row >= onset and (is_ready or abs(z) < c.accept_sigmas))
    watch.baseline.forget_from(onset, taken_back)
    forecast = watch.baseline.frozen(onset, watch.memory.inflation())
    limit = watch.threshold(direction)
    usual = _usual(watch, forecast, onset, crossing, direction)
    away: list[tuple[int, float]] = []
    quiet: list[tuple[int, float]] = []
    every: list[tuple[int, float]] = []
    row = onset
    settled = False
    settle_rows = c.settle_rows if direction == UP else c.ready_rows
    while row < len(track):
        y = track.at(row)
        if math.isnan(y):
            row += 1
            continue
        z = direction * (y - _centre(forecast, onset, row)) / forecast.scale
        every.append((row, z))
        if z < usual:
            quiet.append((row, y))
            if len(quiet) >= c.quiet_rows:
                break
        else:
            quiet.clear()
            away.append((row, z))
            settled = _has_settled(away, row - onset + 1, settle_rows)
            if settled or row - onset + 1 >= c.longest_rows:
                break
        row += 1
    departure = _departure(watch, forecast, onset, crossing, direction, limit, away, every, row, quiet, settled)
    _resume(watch, departure, quiet, every)
    return departure, row + 1


def _first_departure(watch: Watch, crossing: int, direction: int) -> int:
    """Walk back from a crossing to where the signal first left its usual noise."""
    c = watch.constants
    usual = c.onset_sigmas
    if len(watch.tail.errors) >= MANY_ROWS:
        usual = max(usual, watch.tail.quantile(0.99, direction))
    if watch.sums[direction] > c.cusum_limit:
        return _slow_beginning(watch, crossing, direction)
    onset, gap = crossing, 0
    for row, z in reversed(watch.recent()):
        if direction * z > usual:
            onset, gap = row, 0
        else:
            gap += 1
            if gap > c.onset_gap_rows:
                break
    return onset


def _usual(watch: Watch, forecast: Forecast, onset: int, crossing: int, direction: int) -> float:
    """Scales below which a row is back: the usual noise, or for a slow shift half of what it has reached."""
    c = watch.constants
    if watch.sums[direction] <= c.cusum_limit:
        return c.return_sigmas
    rows = [row for row in range(onset, crossing + 1) if math.isfinite(watch.track.at(row))]
    away = [direction * (watch.track.at(row) - _centre(forecast, onset, row)) / forecast.scale for row in rows]
    return min(c.return_sigmas, max(c.cusum_slack, 0.5 * sum(away) / max(1, len(away))))


def _slow_beginning(watch: Watch, crossing: int, direction: int) -> int:
    """Where a shift that adds up most likely began: the start that makes its rows stand out most.

    Each row counts by what it has beyond half of the size that the shift has reached (Page, Biometrika 41, 1954).
    """
    rows = [(row, direction * z) for row, z in watch.recent() if row >= watch.since[direction]]
    rows += [(crossing, direction * _z_of(watch, crossing))]
    reached = sorted(z for _, z in rows[-3:])[len(rows[-3:]) // 2]
    half = max(watch.constants.cusum_slack, reached / 2.0)
    best, total, begin = -math.inf, 0.0, crossing
    for row, z in reversed(rows):
        total += z - half
        if total > best:
            best, begin = total, row
    return begin


def _z_of(watch: Watch, row: int) -> float:
    forecast = watch.baseline.forecast(row)
    return (watch.track.at(row) - forecast.centre) / forecast.scale


def _centre(forecast: Forecast, onset: int, row: int) -> float:
    """The frozen trend: it goes on for as long as it may be believed, ever more slowly, and then stays."""
    ahead = coordinate(row) - coordinate(onset)
    if forecast.reach <= 0 or ahead <= 0:
        return forecast.centre
    return forecast.centre + forecast.slope * forecast.reach * (1.0 - math.exp(-ahead / forecast.reach))


def _has_settled(away: list[tuple[int, float]], length: int, settle_rows: int) -> bool:
    """Whether the last rows of a long departure stand still: their halves agree within the noise."""
    if length < settle_rows or len(away) < settle_rows // 2:
        return False
    last = sorted(z for _, z in away[-settle_rows // 2 :])
    half = settle_rows // 4
    older = sorted(z for _, z in away[-2 * half : -half])[half // 2]
    newer = sorted(z for _, z in away[-half:])[half // 2]
    spread = last[int(0.84 * len(last))] - last[int(0.16 * len(last))]
    return abs(newer - older) < max(1.5, 0.5 * spread)


def _departure(
    watch: Watch,
    forecast: Forecast,
    onset: int,
    crossing: int,
    direction: int,
    limit: float,
    away: list[tuple[int, float]],
    every: list[tuple[int, float]],
    row: int,
    quiet: list[tuple[int, float]],
    settled: bool,
) -> Departure:
    track = watch.track
    peak = max(away, key=lambda pair: pair[1])[0] if away else crossing
    last = away[-1][0] if away else crossing
    effect = direction * (track.at(peak) - forecast.centre)
    is_open = row >= len(track) and len(quiet) < min(2, watch.constants.quiet_rows)
    threshold = min(limit * forecast.scale, 0.5 * effect) if effect > 0 else limit * forecast.scale
    inside = np.array([z for r, z in every if r <= last and math.isfinite(z)])
    level = float(np.median(inside)) if inside.size else effect / forecast.scale
    return Departure(
        name=track.name,
        direction=direction,
        onset=onset,
        peak=peak,
        last=last,
        centre=forecast.centre,
        scale=forecast.scale,
        threshold=threshold,
        sigmas=effect / forecast.scale,
        effect=effect,
        is_open=is_open,
        is_settled=settled,
        num_rows=len(away),
        weight=sum(z for _, z in away) / (math.sqrt(max(1, len(away))) * watch.memory.inflation()),
        level=level,
        unrest=MAD_TO_SIGMA * float(np.median(np.abs(inside - level))) if inside.size else 0.0,
    )


def _resume(watch: Watch, departure: Departure, quiet: list[tuple[int, float]], every: list[tuple[int, float]]) -> None:
    """Let judging go on behind a departure: on the old baseline, or on the new level."""
    c, track = watch.constants, watch.track
    watch.sums = {UP: 0.0, DOWN: 0.0}
    watch.forget_recent()
    long = departure.last - departure.onset + 1 >= c.longest_rows
    if departure.is_settled or long:
        rows = [(row, track.at(row)) for row, _ in every[-c.settle_rows // 2 :] if math.isfinite(track.at(row))]
        watch.baseline.restart(rows)
        return
    for row, y in quiet:
        if math.isfinite(y):
            watch.baseline.accept(row, y, None)
