"""What would the next healthy row be, and how far off could it be? A robust, trend-aware, clean baseline.

Nothing that was rejected ever enters: neither outliers nor non-finite values. The scale is measured on the
baseline's own one-row-ahead errors, so whatever the trend model misses is part of the noise.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spike.domain.detect.constants import Constants

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal noise, as a standard deviation."""

LOG_ROWS = 256
"""Up to here a learning curve is straight in the logarithm of the row number, beyond it in the row number."""

SHORTER_BY = 0.85
"""A shorter window is used where its errors are below this share of a longer one's: the trend bends."""

SLOPE_ROWS = 10
"""Fewer rows than this have no slope worth extrapolating: their median stands."""

SLOPE_ERRORS = 2.0
"""Standard errors by which a slope is drawn towards zero before it is carried on."""

REFRESH = 512
"""Running sums are summed anew after this many rows, so that rounding does not pile up."""


def coordinate(row: int) -> float:
    """Row number on the axis on which learning curves are straight."""
    if row < LOG_ROWS:
        return math.log1p(row)
    return math.log1p(LOG_ROWS) + (row - LOG_ROWS) / (1 + LOG_ROWS)


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


class _Line:
    """A straight line through the last `size` healthy rows, by running sums."""

    __slots__ = ("_adds", "_points", "_sx", "_sxx", "_sxy", "_sy", "error", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.error = math.inf
        """Typical recent one-row-ahead error."""
        self._points: deque[tuple[float, float]] = deque()
        self._sx = self._sy = self._sxx = self._sxy = 0.0
        self._adds = 0

    def rebuild(self, points: Iterable[tuple[float, float]]) -> None:
        """Start again from these (coordinate, value) pairs."""
        self._points = deque(points)
        while len(self._points) > self.size:
            self._points.popleft()
        self._sum()

    def add(self, x: float, y: float) -> None:
        """Take one row in."""
        predicted = self.at(x)
        if predicted is not None:
            error = abs(y - predicted)
            self.error = error if self.error == math.inf else 0.95 * self.error + 0.05 * error
        self._points.append((x, y))
        self._sx += x
        self._sy += y
        self._sxx += x * x
        self._sxy += x * y
        if len(self._points) > self.size:
            x, y = self._points.popleft()
            self._sx -= x
            self._sy -= y
            self._sxx -= x * x
            self._sxy -= x * y
        self._adds += 1
        if self._adds % REFRESH == 0:
            self._sum()

    def at(self, x: float) -> float | None:
        """The line's value, None with fewer than four rows."""
        n = len(self._points)
        if n < 4:
            return None
        sx = self._sx
        spread = self._sxx - sx * sx / n
        if spread < 1e-12:
            return self._sy / n
        return (self._sy + (self._sxy - sx * self._sy / n) / spread * (n * x - sx)) / n

    def slope(self) -> float:
        """Least-squares slope."""
        n = len(self._points)
        spread = self._sxx - self._sx * self._sx / n
        return (self._sxy - self._sx * self._sy / n) / spread if spread > 1e-12 else 0.0

    def significant_slope(self, noise: float) -> float:
        """The slope, drawn towards zero by two of its standard errors."""
        n = len(self._points)
        spread = self._sxx - self._sx * self._sx / n
        slope = self.slope()
        error = noise / math.sqrt(spread) if spread > 1e-12 else math.inf
        return math.copysign(max(0.0, abs(slope) - SLOPE_ERRORS * error), slope)

    def with_slope(self, slope: float, x: float) -> float:
        """The value at `x` of a line of this slope through the middle of the rows."""
        n = len(self._points)
        return self._sy / n + slope * (x - self._sx / n)

    def width(self) -> float:
        """Coordinates that the rows span."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0

    def _sum(self) -> None:
        self._sx = math.fsum(x for x, _ in self._points)
        self._sy = math.fsum(y for _, y in self._points)
        self._sxx = math.fsum(x * x for x, _ in self._points)
        self._sxy = math.fsum(x * y for x, y in self._points)


class Baseline:
    """The last healthy rows of one signal."""

    def __init__(self, constants: Constants, prior: float, floor: float) -> None:
        self._constants = constants
        self._prior = prior
        self._floor = max(floor, constants.min_scale)
        self._rows: deque[tuple[int, float]] = deque(maxlen=2 * constants.window_rows)
        self._lines = [_Line(max(8, constants.window_rows // part)) for part in (1, 2, 4)]
        self._errors: deque[float] = deque()
        self._sorted: list[float] = []
        self.num_accepted = 0

    def forecast(self, row: int) -> Forecast:
        """Centre and scale for row number `row` (0-based)."""
        n = len(self._rows)
        scale = self.scale()
        if n == 0:
            return Forecast(math.nan, 0.0, 0.0, scale, False)
        if n < SLOPE_ROWS:
            return Forecast(_middle_value(sorted(y for _, y in self._rows)), 0.0, 0.0, scale, False)
        line = self._line()
        centre = line.at(coordinate(row))
        assert centre is not None
        is_ready = self.num_accepted >= self._constants.ready_rows
        return Forecast(centre, line.slope(), 0.5 * line.width(), scale, is_ready)

    def frozen(self, row: int, inflation: float) -> Forecast:
        """The forecast to hold on to from row `row` on: its slope only as far as it is significant.

        `inflation` is by how much the noise's memory widens the slope's error.
        """
        forecast = self.forecast(row)
        if len(self._rows) < SLOPE_ROWS:
            return forecast
        line = self._line()
        slope = line.significant_slope(forecast.scale * inflation)
        return replace(forecast, slope=slope, centre=line.with_slope(slope, coordinate(row)))

    def scale(self) -> float:
        """Robust standard deviation of the one-row-ahead errors, with the fading weight of the prior."""
        n = len(self._sorted)
        weight = self._constants.prior_rows * max(0.0, 1.0 - n / self._constants.window_rows)
        own = MAD_TO_SIGMA * _middle_value(self._sorted) if n else 0.0
        if n + weight <= 0:
            return max(self._prior, self._floor)
        return max(math.sqrt((n * own**2 + weight * self._prior**2) / (n + weight)), self._floor)

    def accept(self, row: int, y: float, error: float | None) -> None:
        """Take one healthy row in; `error` is its distance from the forecast, None where there was none."""
        self._rows.append((row, y))
        x = coordinate(row)
        for line in self._lines:
            line.add(x, y)
        self.num_accepted += 1
        if error is not None:
            self.note_error(error)

    def note_error(self, error: float) -> None:
        """Let an error count for the scale without letting its row into the centre."""
        if len(self._errors) >= self._constants.noise_rows:
            del self._sorted[bisect_left(self._sorted, self._errors.popleft())]
        self._errors.append(abs(error))
        insort(self._sorted, abs(error))

    def forget_from(self, row: int, num_errors: int) -> None:
        """Take back everything from `row` on, and the last `num_errors` errors: they belong to a departure."""
        while self._rows and self._rows[-1][0] >= row:
            self._rows.pop()
            self.num_accepted -= 1
        points = [(coordinate(row), y) for row, y in self._rows]
        for line in self._lines:
            line.rebuild(points)
        for _ in range(min(num_errors, len(self._errors))):
            del self._sorted[bisect_left(self._sorted, self._errors.pop())]

    def restart(self, rows: list[tuple[int, float]]) -> None:
        """Begin again at a new level, keeping what is known of the noise."""
        self._rows.clear()
        self._rows.extend(rows)
        points = [(coordinate(row), y) for row, y in rows]
        for line in self._lines:
            line.rebuild(points)
        self.num_accepted = len(rows)

    def _line(self) -> _Line:
        """The longest line, or a shorter one where that predicts clearly better."""
        best = self._lines[0]
        for line in self._lines[1:]:
            if line.error < SHORTER_BY * best.error:
                best = line
        return best


def _middle_value(ordered: list[float]) -> float:
    n = len(ordered)
    if n == 0:
        return 0.0
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2.0
