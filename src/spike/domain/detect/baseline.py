"""What would the next healthy row be, and how far off could it be? A robust, trend-aware, clean baseline.

Nothing that was rejected ever enters: neither outliers nor non-finite values. The scale is measured on the
baseline's own one-row-ahead errors, so whatever the trend model misses is part of the noise. The state is bounded:
the rows of two windows and as many errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spike.domain.detect.constants import Constants
from spike.domain.detect.recent import Recent

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal noise, as a standard deviation."""

LOG_ROWS = 256
"""Up to here a learning curve is straight in the logarithm of the row number, beyond it in the row number."""

PARTS = (1, 2, 4)
"""Lines run through the whole window, its half and its quarter."""

SHORTER_BY = 0.85
"""A shorter window is used where its errors are below this share of a longer one's: the trend bends."""

SLOPE_ROWS = 10
"""Fewer rows than this have no slope worth extrapolating: their median stands."""

LINE_ROWS = 4
"""Fewer rows than this have no line at all."""

SLOPE_ERRORS = 2.0
"""Standard errors by which a slope is drawn towards zero before it is carried on."""

ERROR_WEIGHT = 0.05
"""Weight of the newest error in what is typical of a line: an average over about twenty."""

SCALE_ROWS = 32
"""The scale of a full set of errors is measured again after this many: a quarter of them has changed."""

FLAT = 1e-12
"""Rows that spread over less than this on the axis have no slope."""

Array = NDArray[np.float64]


def coordinate(row: int) -> float:
    """Row number on the axis on which learning curves are straight."""
    if row < LOG_ROWS:
        return math.log1p(row)
    return math.log1p(LOG_ROWS) + (row - LOG_ROWS) / (1 + LOG_ROWS)


def coordinates(rows: NDArray[np.int64] | Array) -> Array:
    """The same of many rows."""
    late = math.log1p(LOG_ROWS) + (rows - LOG_ROWS) / (1 + LOG_ROWS)
    if rows.size == 0 or rows[0] >= LOG_ROWS:
        return np.asarray(late)
    return np.where(rows < LOG_ROWS, np.log1p(rows), late)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the next row should be, in transformed units."""

    centre: float
    slope: float
    """Per unit of `coordinate`."""
    reach: float
    """Coordinates over which the slope may be believed."""
    scale: float
    is_ready: bool


@dataclass(frozen=True, slots=True)
class _Line:
    """A straight line through some rows, by its sums."""

    origin: float
    n: int
    sx: float
    sy: float
    sxx: float
    sxy: float
    width: float
    """Coordinates that the rows span."""

    @classmethod
    def through(cls, x: Array, y: Array) -> _Line:
        origin = float(x[-1])
        x = x - origin
        return cls(origin, x.size, float(x.sum()), float(y.sum()), float(x @ x), float(x @ y), -float(x[0]))

    @property
    def spread(self) -> float:
        return self.sxx - self.sx * self.sx / self.n

    def at(self, x: float) -> float:
        """The line's value."""
        return self.with_slope(self.slope(), x)

    def slope(self) -> float:
        """Least-squares slope."""
        spread = self.spread
        return (self.sxy - self.sx * self.sy / self.n) / spread if spread > FLAT else 0.0

    def significant_slope(self, noise: float) -> float:
        """The slope, drawn towards zero by two of its standard errors."""
        spread = self.spread
        slope = self.slope()
        error = noise / math.sqrt(spread) if spread > FLAT else math.inf
        return math.copysign(max(0.0, abs(slope) - SLOPE_ERRORS * error), slope)

    def with_slope(self, slope: float, x: float) -> float:
        """The value at `x` of a line of this slope through the middle of the rows."""
        return self.sy / self.n + slope * (x - self.origin - self.sx / self.n)


class Baseline:
    """The last healthy rows of one signal."""

    def __init__(self, constants: Constants, prior: float, floor: float) -> None:
        self._constants = constants
        self._prior = prior
        self._floor = max(floor, constants.min_scale)
        keep = 2 * constants.window_rows
        self.rows, self.values = Recent(keep), Recent(keep)
        """Row numbers and transformed values that were accepted."""
        self.errors = Recent(constants.noise_rows)
        """Absolute one-row-ahead errors."""
        self.num_errors = 0
        self.num_accepted = 0
        self.sizes = tuple(max(8, constants.window_rows // part) for part in PARTS)
        self.line_errors = [math.inf] * len(PARTS)
        """Typical recent one-row-ahead error of each line."""
        self._scale: float | None = None

    def forecast(self, row: int) -> Forecast:
        """Centre and scale for row number `row` (0-based)."""
        n = len(self.rows)
        scale = self.scale()
        if n == 0:
            return Forecast(math.nan, 0.0, 0.0, scale, False)
        if n < SLOPE_ROWS:
            return Forecast(float(np.median(self.values.last())), 0.0, 0.0, scale, False)
        line = self._best_line()
        is_ready = self.num_accepted >= self._constants.ready_rows
        return Forecast(line.at(coordinate(row)), line.slope(), 0.5 * line.width, scale, is_ready)

    def frozen(self, row: int, inflation: float) -> Forecast:
        """The forecast to hold on to from row `row` on: its slope only as far as it is significant.

        `inflation` is by how much the noise's memory widens the slope's error.
        """
        forecast = self.forecast(row)
        if len(self.rows) < SLOPE_ROWS:
            return forecast
        line = self._best_line()
        slope = line.significant_slope(forecast.scale * inflation)
        return replace(forecast, slope=slope, centre=line.with_slope(slope, coordinate(row)))

    def scale(self) -> float:
        """Robust standard deviation of the one-row-ahead errors, with the fading weight of the prior."""
        if self._scale is None:
            n = len(self.errors)
            self._scale = float(self.scale_of(_middle(sorted(self.errors.last().tolist())), n))
        return self._scale

    def scale_of(self, middle: Array | float, n: NDArray[np.int64] | int) -> Array:
        """The scale for a median absolute error (or many) of `n` errors."""
        weight = self._constants.prior_rows * np.maximum(0.0, 1.0 - n / self._constants.window_rows)
        own = MAD_TO_SIGMA * middle
        total = np.maximum(n + weight, 1e-9)
        scale = np.where(n + weight > 0, np.sqrt((n * own**2 + weight * self._prior**2) / total), self._prior)
        return np.asarray(np.maximum(scale, self._floor))

    def accept(self, row: int, y: float, error: float | None) -> None:
        """Take one healthy row in; `error` is its distance from the forecast, None where there was none."""
        x = coordinate(row)
        if len(self.rows) >= LINE_ROWS:
            for place, line in enumerate(self._lines()):
                away = abs(y - line.at(x))
                old = self.line_errors[place]
                self.line_errors[place] = away if math.isinf(old) else old + ERROR_WEIGHT * (away - old)
        self.rows.append(row)
        self.values.append(y)
        self.num_accepted += 1
        if error is not None:
            self.note_error(error)

    def extend(self, rows: Array, values: Array, errors: Array, line_errors: list[float], scale: float) -> None:
        """Take in many healthy rows that were judged together; `scale` is the one that stands behind them."""
        self.rows.extend(rows)
        self.values.extend(values)
        self.errors.extend(errors)
        self.line_errors = line_errors
        self.num_accepted += rows.size
        self.num_errors += errors.size
        self._scale = scale

    def note_error(self, error: float) -> None:
        """Let an error count for the scale without letting its row into the centre."""
        is_full = len(self.errors) == self.errors.keep
        self.errors.append(abs(error))
        self.num_errors += 1
        if not is_full or self.num_errors % SCALE_ROWS == 0:
            self._scale = None

    def forget_from(self, row: int, num_errors: int) -> None:
        """Take back everything from `row` on, and the last `num_errors` errors: they belong to a departure."""
        count = int(np.count_nonzero(self.rows.last() >= row))
        self.rows.drop(count)
        self.values.drop(count)
        self.num_accepted -= count
        self.errors.drop(num_errors)
        self._scale = None

    def restart(self, rows: list[tuple[int, float]]) -> None:
        """Begin again at a new level, keeping what is known of the noise."""
        self.rows.clear()
        self.values.clear()
        for row, y in rows[-self.rows.keep :]:
            self.rows.append(row)
            self.values.append(y)
        self.num_accepted = len(rows)

    def _lines(self) -> list[_Line]:
        if len(self.rows) <= min(self.sizes):
            return [self._line(len(self.rows))] * len(self.sizes)
        return [self._line(size) for size in self.sizes]

    def _line(self, size: int) -> _Line:
        return _Line.through(coordinates(self.rows.last(size)), self.values.last(size))

    def _best_line(self) -> _Line:
        """The longest line, or a shorter one where that predicts clearly better."""
        best = 0
        for place in range(1, len(self.line_errors)):
            if self.line_errors[place] < SHORTER_BY * self.line_errors[best]:
                best = place
        return self._line(self.sizes[best])


def _middle(ordered: list[float]) -> float:
    n = len(ordered)
    if n == 0:
        return 0.0
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2.0
