"""Where does one signal leave its baseline, for how long, and does it come back? One pass over one track."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from spike.domain.detect.baseline import Baseline, Forecast, coordinate
from spike.domain.detect.constants import Constants
from spike.domain.detect.tail import Tail
from spike.domain.detect.track import Track

UP, DOWN = 1, -1

SHORT_ROWS = 2
"""A departure this short is judged by the tail alone; a longer one is a state of the run."""

MEMORY_WEIGHT = 0.02
"""Weight of the newest pair: an average over about fifty."""

MEMORY_MARGIN = 0.08
"""Half the standard error of such an average, subtracted so that independent errors look so."""

MOST_WAITING = 16
"""Rows held under suspicion at most: a sum that has not decided by then never will."""

JUMP_SHARE = 0.75
"""A jump has gone this share of its way within two rows; learning takes longer."""

BEFORE_ROWS = 5
"""Rows whose median says where the loss just was."""

ABOVE_SIGMAS = 1.0
"""A slow rise must be this far above that level: more than the level's own error."""

LOW_ROWS = 3
"""Rows that must stay low behind a downward jump."""

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
    weight: float
    """Sum of their distances in scales, over the spread that such a sum of healthy rows would have."""


class Memory:
    """How much one row's error tells about the next: batches in an order, not independent draws."""

    def __init__(self) -> None:
        self._last = 0.0
        self._square = 1.0
        self._product = 0.0

    def add(self, z: float) -> None:
        """Take in one standardised error; far ones count no more than three."""
        z = max(-3.0, min(3.0, z))
        self._square += MEMORY_WEIGHT * (z * z - self._square)
        self._product += MEMORY_WEIGHT * (z * self._last - self._product)
        self._last = z

    def inflation(self) -> float:
        """By how much the spread of a sum exceeds that of independent errors, for a first-order memory."""
        rho = self._product / self._square if self._square > 0 else 0.0
        rho = min(0.8, max(0.0, rho - MEMORY_MARGIN) * 1.2)
        return math.sqrt((1.0 + rho) / (1.0 - rho))


class Watch:
    """The state of one pass: baseline, tails, running sums."""

    def __init__(self, track: Track, constants: Constants) -> None:
        self.track = track
        self.constants = constants
        self.baseline = Baseline(constants, track.prior, track.floor)
        self.tails = {UP: Tail(constants.tail_rows), DOWN: Tail(constants.tail_rows)}
        self.sums = {UP: 0.0, DOWN: 0.0}
        self.since = {UP: 0, DOWN: 0}
        """Row at which each sum last left zero: the likeliest beginning of a lasting shift."""
        self.left = (-(1 << 30), math.inf)
        """(row, centre) of the baseline that was last left downward without a jump."""
        self.highest = -math.inf
        self.recent: deque[tuple[int, float]] = deque(maxlen=constants.window_rows)
        """(row, z) of the rows since the last departure, newest last."""
        self.hard: list[int] = []
        self.waiting: list[tuple[int, float, float, float]] = []
        """(row, y, error, z) of rows that a running sum still holds under suspicion."""
        self.memory = Memory()
        self.healthy: list[float] = []
        """z of every row that was judged healthy."""

    def let_in(self) -> None:
        """Take the rows that waited into the baseline; those of a crossing say nothing about the usual memory."""
        is_calm = max(self.sums.values()) < self.constants.cusum_limit
        for row, y, error, z in self.waiting:
            self.baseline.accept(row, y, error)
            if is_calm:
                self.memory.add(z)
        self.waiting.clear()

    def begin_again(self, first: int, last: int) -> None:
        """Start the baseline anew on these rows: the trend has changed, and nothing is wrong."""
        rows = [(r, self.track.y[r]) for r in range(max(0, first), last + 1) if math.isfinite(self.track.y[r])]
        known, reach = self.baseline.num_accepted, self.constants.accept_sigmas * self.baseline.scale()
        self.baseline.restart([(row, y) for row, y in rows if abs(y - rows[-1][1]) < reach])
        self.baseline.num_accepted = max(known, self.constants.ready_rows)
        self.sums = {UP: 0.0, DOWN: 0.0}
        self.recent.clear()

    def threshold(self, direction: int) -> float:
        """Scales beyond which one row counts, for this run's own tail and this little evidence."""
        c = self.constants
        rows = self.baseline.num_accepted
        few = 1.0 + 6.0 / rows if c.ready_rows <= rows < 4 * c.window_rows else 1.0  # before that the prior is wide
        tail = self.tails[direction].threshold(c.false_alarms)
        return min(c.max_sigmas, max(c.min_sigmas, tail)) * few

    def is_large(self, effect: float, sigmas: float) -> bool:
        """Whether a loss jumps so far up that the run's own hard batches excuse it no more."""
        c, track = self.constants, self.track
        is_loss = track.transform == "log" and track.prior == c.loss_prior
        return (
            is_loss and effect >= c.large_jump and sigmas >= c.large_sigmas and self.baseline.num_accepted > MANY_ROWS
        )

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
        if direction == 0 or (_is_learning(watch, row) if direction == DOWN else _is_flattening(watch, row)):
            row += 1
            continue
        departure, row = _follow(watch, row, direction)
        found.append(departure)
    kept, hard = _rare(watch, [d for d in found if _has_weight(watch, d)])
    return Pass(tuple(kept), tuple(sorted((*watch.hard, *hard))))


def _has_weight(watch: Watch, departure: Departure) -> bool:
    """Whether a departure without one far row has enough rows to be more than a run of correlated noise."""
    c = watch.constants
    mean = departure.weight / math.sqrt(max(1, departure.num_rows))
    return departure.sigmas >= c.min_sigmas or (departure.weight >= c.slow_weight and mean >= c.slow_mean)


def _rare(watch: Watch, found: list[Departure]) -> tuple[list[Departure], list[int]]:
    """Judge short departures again by the tail of the whole record: what recurs later was this run's noise."""
    c = watch.constants
    short = [d for d in found if d.num_rows <= SHORT_ROWS and not d.is_open and d.direction == UP]
    if not short or len(watch.healthy) < MANY_ROWS:
        return found, []
    common: list[Departure] = []
    for departure in short:
        others = [d.sigmas for d in short if d is not departure]
        tail = Tail(len(watch.healthy) + len(others))
        tail.fill([*watch.healthy, *others])
        limit = min(c.max_sigmas, max(c.min_sigmas, tail.threshold(c.false_alarms)))
        if departure.sigmas < limit and not watch.is_large(departure.effect, departure.sigmas):
            common.append(departure)
    return [d for d in found if d not in common], [d.peak for d in common]


def _is_learning(watch: Watch, row: int) -> bool:
    """Whether a downward crossing is no jump: a run that learns faster, or one low row.

    A low row is passed over; for faster learning the baseline starts again on the newest rows.
    """
    track = watch.track
    watch.let_in()
    onset = _first_departure(watch, row, DOWN)
    forecast = watch.baseline.forecast(row)
    limit = watch.threshold(DOWN) * forecast.scale
    ahead = [y for y in track.y[row + 1 : row + 1 + LOW_ROWS] if not math.isnan(y)]
    is_low = forecast.centre - track.y[row] > limit
    was_usual = not watch.recent or watch.recent[-1][1] > -watch.constants.return_sigmas
    if math.isinf(track.y[row]) or _is_jump(watch, row if is_low and was_usual else onset, row, forecast):
        return False
    if is_low and not all(forecast.centre - y > 0.5 * limit for y in ahead):
        watch.sums[DOWN] = 0.0
        watch.baseline.note_error(track.y[row] - forecast.centre)
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
    if track.y[row] - forecast.centre > watch.threshold(UP) * forecast.scale or not forecast.is_ready:
        return False
    watch.let_in()
    onset = _first_departure(watch, row, UP)
    before = sorted(y for y in track.y[max(0, onset - BEFORE_ROWS) : onset] if math.isfinite(y))
    since = sorted(y for y in track.y[onset : row + 1] if math.isfinite(y))
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
    y = watch.track.y
    first = [forecast.centre - v for v in y[onset : onset + 2] if math.isfinite(v)]
    later = sorted(forecast.centre - v for v in y[row : row + 8] if math.isfinite(v))
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
    watch.recent.append((row, z))
    for direction in (UP, DOWN):
        watch.tails[direction].add(direction * z)
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
    taken_back = sum(1 for row, z in watch.recent if row >= onset and (is_ready or abs(z) < c.accept_sigmas))
    watch.baseline.forget_from(onset, taken_back)
    forecast = watch.baseline.frozen(onset, watch.memory.inflation())
    limit = watch.threshold(direction)
    usual = _usual(watch, forecast, onset, crossing, direction)
    away: list[tuple[int, float]] = []
    quiet: list[tuple[int, float]] = []
    row = onset
    settled = False
    settle_rows = c.settle_rows if direction == UP else c.ready_rows
    while row < len(track):
        y = track.y[row]
        if math.isnan(y):
            row += 1
            continue
        z = direction * (y - _centre(forecast, onset, row)) / forecast.scale
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
    departure = _departure(watch, forecast, onset, crossing, direction, limit, away, row, quiet, settled)
    _resume(watch, departure, quiet, away)
    return departure, row + 1


def _first_departure(watch: Watch, crossing: int, direction: int) -> int:
    """Walk back from a crossing to where the signal first left its usual noise."""
    c = watch.constants
    tail = watch.tails[direction]
    usual = max(c.onset_sigmas, tail.quantile(0.99)) if len(tail) >= MANY_ROWS else c.onset_sigmas
    if watch.sums[direction] > c.cusum_limit:
        return _slow_beginning(watch, crossing, direction)
    onset, gap = crossing, 0
    for row, z in reversed(watch.recent):
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
    rows = [row for row in range(onset, crossing + 1) if math.isfinite(watch.track.y[row])]
    away = [direction * (watch.track.y[row] - _centre(forecast, onset, row)) / forecast.scale for row in rows]
    return min(c.return_sigmas, max(c.cusum_slack, 0.5 * sum(away) / max(1, len(away))))


def _slow_beginning(watch: Watch, crossing: int, direction: int) -> int:
    """Where a shift that adds up most likely began: the start that makes its rows stand out most.

    Each row counts by what it has beyond half of the size that the shift has reached (Page, Biometrika 41, 1954).
    """
    rows = [(row, direction * z) for row, z in watch.recent if row >= watch.since[direction]]
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
    return (watch.track.y[row] - forecast.centre) / forecast.scale


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
        weight=sum(z for _, z in away) / (math.sqrt(max(1, len(away))) * watch.memory.inflation()),
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
