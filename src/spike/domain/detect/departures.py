"""Where does one signal leave its baseline, for how long, and does it come back? One pass over one track."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spike.domain.detect.baseline import Baseline, Forecast
from spike.domain.detect.constants import Constants
from spike.domain.detect.tail import Tail
from spike.domain.detect.track import Track

UP, DOWN = 1, -1

MANY_ROWS = 200
"""From this many rows on, the upper hundredth of the run's errors says what is usual."""


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


class Watch:
    """The state of one pass: baseline, tails, running sums."""

    def __init__(self, track: Track, constants: Constants) -> None:
        self.track = track
        self.constants = constants
        self.baseline = Baseline(constants, track.prior, track.floor)
        self.tails = {UP: Tail(constants.tail_rows), DOWN: Tail(constants.tail_rows)}
        self.sums = {UP: 0.0, DOWN: 0.0}
        self.highest = -math.inf
        self.recent: list[tuple[int, float]] = []
        """(row, z) of the rows since the last departure, newest last."""
        self.hard: list[int] = []

    def threshold(self, direction: int) -> float:
        """Scales beyond which one row counts, for this run's own tail and this little evidence."""
        c = self.constants
        rows = self.baseline.num_accepted
        few = 1.0 + 6.0 / rows if c.ready_rows <= rows < 4 * c.window_rows else 1.0  # before that the prior is wide
        tail = self.tails[direction].threshold(c.false_alarms)
        return min(c.max_sigmas, max(c.min_sigmas, tail)) * few

    def is_ready(self, forecast: Forecast) -> bool:
        """Whether one row can be judged: enough healthy rows, or an excerpt with a prior."""
        return forecast.is_ready or (self.track.is_excerpt and self.baseline.num_accepted >= 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over a track found."""

    departures: tuple[Departure, ...]
    hard_rows: tuple[int, ...]
    """Rows that would be far out for a normal noise and are not for this run's tail."""


def departures(track: Track, constants: Constants) -> Pass:
    """Every departure of the track, upward and downward, in order."""
    watch = Watch(track, constants)
    found: list[Departure] = []
    row = 0
    while row < len(track):
        y = track.y[row]
        if math.isnan(y):
            row += 1
            continue
        direction = _crossing(watch, row, y)
        if direction == 0:
            row += 1
            continue
        departure, row = _follow(watch, row, direction)
        found.append(departure)
    return Pass(tuple(found), tuple(watch.hard))


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
        limit = watch.threshold(direction)
        # In units in which this run's rare row is at min_sigmas, so that a heavy tail does not add up either.
        added = min(away * c.min_sigmas / limit, c.cusum_cap) - c.cusum_slack
        watch.sums[direction] = max(0.0, watch.sums[direction] + added)
        if away > limit or watch.sums[direction] > c.cusum_limit:
            return direction
    if z > c.min_sigmas and forecast.is_ready:
        watch.hard.append(row)
    watch.recent.append((row, z))
    del watch.recent[: -c.window_rows]
    for direction in (UP, DOWN):
        watch.tails[direction].add(direction * z)
    if abs(z) < c.accept_sigmas:
        watch.baseline.accept(row, y, error)
    elif forecast.is_ready:
        watch.baseline.note_error(error)
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
    is_ready = watch.baseline.num_accepted >= c.ready_rows
    taken_back = sum(1 for row, z in watch.recent if row >= onset and (is_ready or abs(z) < c.accept_sigmas))
    watch.baseline.forget_from(onset, taken_back)
    forecast = watch.baseline.forecast(onset)
    limit = watch.threshold(direction)
    away: list[tuple[int, float]] = []
    quiet: list[tuple[int, float]] = []
    row = onset
    settled = False
    while row < len(track):
        y = track.y[row]
        if math.isnan(y):
            row += 1
            continue
        z = direction * (y - _centre(watch, forecast, onset, row)) / forecast.scale
        if z < c.onset_sigmas:
            quiet.append((row, y))
            if len(quiet) >= c.quiet_rows:
                break
        else:
            quiet.clear()
            away.append((row, z))
            settled = _has_settled(watch, away, row - onset + 1)
            if settled or row - onset + 1 >= c.longest_rows:
                break
        row += 1
    departure = _departure(watch, forecast, onset, crossing, direction, limit, away, row, quiet, settled)
    _resume(watch, departure, quiet, away)
    return departure, row + 1


def _first_departure(watch: Watch, crossing: int, direction: int) -> int:
    """Walk back from a crossing to where the signal first left its usual noise."""
    c = watch.constants
    tail = watch.tails[direction]
    usual = max(c.onset_sigmas, tail.quantile(0.99)) if len(tail) >= MANY_ROWS else c.onset_sigmas
    onset, gap = crossing, 0
    was_slow = watch.sums[direction] > c.cusum_limit
    for row, z in reversed(watch.recent):
        limit = usual if not was_slow else c.cusum_slack + 1.0
        if direction * z > limit:
            onset, gap = row, 0
        else:
            gap += 1
            if gap > c.onset_gap_rows:
                break
    return onset


def _centre(watch: Watch, forecast: Forecast, onset: int, row: int) -> float:
    """The frozen trend: it goes on for half a window and then stays."""
    reach = min(row, onset + watch.constants.window_rows // 2)
    return forecast.centre + forecast.slope * (math.log1p(reach) - math.log1p(onset))


def _has_settled(watch: Watch, away: list[tuple[int, float]], length: int) -> bool:
    """Whether the last rows of a long departure stand still: their halves agree within the noise."""
    c = watch.constants
    if length < c.settle_rows or len(away) < c.settle_rows // 2:
        return False
    last = sorted(z for _, z in away[-c.settle_rows // 2 :])
    half = c.settle_rows // 4
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
    row: int,
    quiet: list[tuple[int, float]],
    settled: bool,
) -> Departure:
    track = watch.track
    peak = max(away, key=lambda pair: pair[1])[0] if away else crossing
    last = away[-1][0] if away else crossing
    effect = direction * (track.y[peak] - forecast.centre)
    is_open = row >= len(track) and len(quiet) < min(2, watch.constants.quiet_rows)
    threshold = min(limit * forecast.scale, 0.5 * effect) if effect > 0 else limit * forecast.scale
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
    )


def _resume(watch: Watch, departure: Departure, quiet: list[tuple[int, float]], away: list[tuple[int, float]]) -> None:
    """Let judging go on behind a departure: on the old baseline, or on the new level."""
    c, track = watch.constants, watch.track
    watch.sums = {UP: 0.0, DOWN: 0.0}
    watch.recent.clear()
    long = departure.last - departure.onset + 1 >= c.longest_rows
    if departure.is_settled or long:
        rows = [(row, track.y[row]) for row, _ in away[-c.settle_rows // 2 :] if math.isfinite(track.y[row])]
        watch.baseline.restart(rows)
        return
    for row, y in quiet:
        if math.isfinite(y):
            watch.baseline.accept(row, y, None)
