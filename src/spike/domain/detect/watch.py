"""What is known of a signal while it is followed? The state of one pass: baseline, tails, running sums."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.baseline import Baseline, Forecast
from spike.domain.detect.constants import Constants
from spike.domain.detect.recent import Recent
from spike.domain.detect.tail import Tail
from spike.domain.detect.track import Track

UP, DOWN = 1, -1

MEMORY_WEIGHT = 0.02
"""Weight of the newest pair: an average over about fifty."""

MEMORY_MARGIN = 0.08
"""Half the standard error of such an average, subtracted so that independent errors look so."""

FARTHEST_PAIR = 3.0
"""An error counts no more than this many scales for the memory."""

MANY_ROWS = 200
"""From this many rows on, the upper hundredth of the run's errors says what is usual."""

NEWEST_ROWS = 3
"""Where a baseline begins again, the middle one of so many rows says at which level."""

SECOND_LOOK_ROWS = 65_536
"""Healthy errors kept for the second look at short departures: three thousand of them are its tail."""

Array = NDArray[np.float64]


class Memory:
    """How much one row's error tells about the next: batches in an order, not independent draws."""

    __slots__ = ("last", "product", "square")

    def __init__(self) -> None:
        self.last = 0.0
        self.square = 1.0
        self.product = 0.0

    def add(self, z: float) -> None:
        """Take in one standardised error."""
        z = max(-FARTHEST_PAIR, min(FARTHEST_PAIR, z))
        self.square += MEMORY_WEIGHT * (z * z - self.square)
        self.product += MEMORY_WEIGHT * (z * self.last - self.product)
        self.last = z

    def inflation(self) -> float:
        """By how much the spread of a sum exceeds that of independent errors, for a first-order memory."""
        return float(inflation(np.float64(self.square), np.float64(self.product)))


def inflation(square: Array | np.float64, product: Array | np.float64) -> Array | np.float64:
    """The inflation for these mean squares and products of neighbours."""
    rho = np.divide(product, np.maximum(square, 1e-300))
    rho = np.minimum(0.8, np.maximum(0.0, rho - MEMORY_MARGIN) * 1.2)
    return np.sqrt((1.0 + rho) / (1.0 - rho))


class Watch:
    """The state of one pass. It does not grow with the record."""

    def __init__(self, track: Track, constants: Constants) -> None:
        self.track = track
        self.constants = constants
        self.baseline = Baseline(constants, track.prior, track.floor)
        self.tail = Tail(constants.tail_rows, constants.false_alarms)
        self.sums = {UP: 0.0, DOWN: 0.0}
        self.since = {UP: 0, DOWN: 0}
        """Row at which each sum last left zero: the likeliest beginning of a lasting shift."""
        self.left = (-(1 << 30), math.inf)
        """(row, centre) of the baseline that was last left downward without a jump."""
        self.highest = -math.inf
        self.recent_rows, self.recent_z = Recent(constants.window_rows), Recent(constants.window_rows)
        """Row and z of the rows since the last departure, newest last."""
        self.hard: list[int] = []
        self.waiting: list[tuple[int, float, float, float]] = []
        """(row, y, error, z) of rows that a running sum still holds under suspicion."""
        self.memory = Memory()
        self.healthy = Recent(SECOND_LOOK_ROWS)
        """z of every row that was judged healthy."""

    @property
    def is_loss(self) -> bool:
        """Whether the track is a loss on its logarithmic scale."""
        return self.track.transform == "log" and self.track.prior == self.constants.loss_prior

    def recent(self) -> list[tuple[int, float]]:
        """(row, z) of the rows since the last departure, oldest first."""
        rows, z = self.recent_rows.last().tolist(), self.recent_z.last().tolist()
        return [(int(row), away) for row, away in zip(rows, z, strict=True)]

    def forget_recent(self) -> None:
        """Begin a new walk: what lies behind belongs to another baseline."""
        self.recent_rows.clear()
        self.recent_z.clear()

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
        first = max(0, first)
        rows = [(r, y) for r, y in enumerate(self.track.between(first, last + 1), first) if math.isfinite(y)]
        known, reach = self.baseline.num_accepted, self.constants.accept_sigmas * self.baseline.scale()
        newest = sorted(y for _, y in rows[-NEWEST_ROWS:])[len(rows[-NEWEST_ROWS:]) // 2]
        self.baseline.restart([(row, y) for row, y in rows if abs(y - newest) < reach])
        self.baseline.num_accepted = max(known, self.constants.ready_rows)
        self.sums = {UP: 0.0, DOWN: 0.0}
        self.forget_recent()

    def threshold(self, direction: int) -> float:
        """Scales beyond which one row counts, for this run's own tail and this little evidence."""
        limit = self.tail.limits[0 if direction == UP else 1]
        return float(self.limit(limit, self.baseline.num_accepted))

    def limit(self, tail: Array | float, rows: NDArray[np.int64] | int) -> Array | float:
        """The threshold (or many) for a tail's limit and a number of accepted rows."""
        c = self.constants
        # Before the baseline is ready the prior is wide.
        is_few = np.logical_and(c.ready_rows <= np.asarray(rows), np.asarray(rows) < 4 * c.window_rows)
        few = np.where(is_few, 1.0 + 6.0 / np.maximum(rows, 1), 1.0)
        return np.minimum(c.max_sigmas, np.maximum(c.min_sigmas, tail)) * few

    def is_large(self, effect: float, sigmas: float) -> bool:
        """Whether a loss jumps so far up that the run's own hard batches excuse it no more."""
        c = self.constants
        is_far = effect >= c.large_jump and sigmas >= c.large_sigmas
        is_calm = effect < c.calm_scale * sigmas
        return is_far and is_calm and self.is_loss and self.baseline.num_accepted > MANY_ROWS

    def is_seen(self, effect: float, sigmas: float, num_rows: int) -> bool:
        """Whether a loss jumped so far up that later rows which jump as far do not make it usual."""
        c = self.constants
        enough = c.seen_jump if num_rows > 1 else c.large_jump
        return self.is_loss and effect >= enough and effect < c.calm_scale * sigmas

    def is_ready(self, forecast: Forecast) -> bool:
        """Whether one row can be judged: enough healthy rows, or an excerpt with a prior."""
        return forecast.is_ready or (self.track.is_excerpt and self.baseline.num_accepted >= 1)
