"""What looks alarming and is not? Patterns of healthy runs, each named with its reason."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from spike.domain.detect.constants import Constants
from spike.domain.detect.track import Track
from spike.domain.incident import Notice
from spike.domain.signals import GRAD_NORM, LOSS, Series, Signals

SHORTEST_PERIOD, LONGEST_PERIOD = 2, 400
PERIOD_ROWS = 16_384
"""Newest rows in which a period is looked for: forty of the longest ones."""

FEWEST_PERIODS = 6
"""A swing must be seen this often to be called a period."""


def of_signals(signals: Signals) -> tuple[Notice, ...]:
    """Notices that the readers' facts are enough for: restarts, concatenated runs, timers that print NaN."""
    found: list[Notice] = []
    scratch = [r for r in signals.rewinds if r.restarted_from_scratch]
    again = [r for r in signals.rewinds if not r.restarted_from_scratch]
    if scratch:
        steps = tuple(r.to_step for r in scratch)
        why = "the loss starts again at its first value: several runs are in one log, the last one is judged"
        found.append(Notice("several-runs", steps, why))
    if again:
        steps = tuple(r.to_step for r in again)
        why = "the step counter went back after a restart: the rows logged twice count once, the later ones win"
        found.append(Notice("restart-rows", steps, why))
    timers = [s for s in signals.series if _is_empty_timer(s)]
    if timers:
        names = ", ".join(sorted({s.name for s in timers}))
        first = tuple(int(s) for s in timers[0].steps[~np.isfinite(timers[0].values)][:4])
        found.append(
            Notice("non-finite-timer", first, f"{names} is not finite in its first rows: an average of nothing yet")
        )
    return tuple(found)


def _is_empty_timer(series: Series) -> bool:
    bad = ~np.isfinite(series.values)
    count = int(bad.sum())
    known = series.name in (LOSS, GRAD_NORM) or "loss" in series.name or "norm" in series.name
    return not known and 0 < count < 0.5 * bad.size and bool(bad[:count].all())


def stale(series: Series) -> Notice:
    """A column that repeats itself is no evidence."""
    if bool(np.all(series.values == 0.0)):
        why = f"{series.name} is 0 in every row: it was never computed, so it proves nothing"
    else:
        why = f"{series.name} repeats its previous value in most rows: a stale column, so it proves nothing"
    return Notice("stale-column", (int(series.steps[0]), int(series.steps[-1])), why)


def zero_loss(series: Series) -> Notice | None:
    """A loss that is exactly 0 nearly always, as policy-gradient trainers log it."""
    values = series.values[np.isfinite(series.values)]
    if values.size < 4 or float(np.mean(np.abs(values) < 1e-12)) < 0.8:
        return None
    why = "the loss is exactly 0 almost everywhere with a finite gradient: a policy-gradient trainer logs it so"
    return Notice("zero-loss", (int(series.steps[0]), int(series.steps[-1])), why)


def period(track: Track, constants: Constants) -> int | None:
    """Rows after which the loss repeats its swing, or None."""
    y = track.y[-PERIOD_ROWS:]
    y = y[np.isfinite(y)]
    if y.size < FEWEST_PERIODS * SHORTEST_PERIOD * 4:
        return None
    window = min(401, max(5, y.size // 8) | 1)
    sums = np.cumsum(np.pad(y - y[0], (window // 2 + 1, window // 2), mode="edge"))
    trend = (sums[window:] - sums[:-window]) / window + y[0]
    swing = y - trend
    limit = 4.0 * 1.4826 * float(np.median(np.abs(swing - np.median(swing)))) or 1.0
    swing = np.clip(swing - np.median(swing), -limit, limit)
    power = float(np.dot(swing, swing))
    if power <= 0:
        return None
    longest = min(LONGEST_PERIOD, y.size // FEWEST_PERIODS)
    spectrum = np.fft.rfft(swing, 2 * y.size)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum))[: longest + 1] / power
    here = correlation[1:longest]
    is_peak = (here > correlation[: longest - 1]) & (here >= correlation[2 : longest + 1])
    is_high = (here > constants.period_correlation) & (np.minimum.accumulate(here) < 0.5 * here)
    lags = 1 + np.flatnonzero(is_peak & is_high)
    lags = lags[lags >= SHORTEST_PERIOD]
    return int(lags[0]) if lags.size else None


def periodic(track: Track, rows: int) -> Notice:
    """Length-grouped or otherwise ordered batches."""
    spacing = track.step(1) - track.step(0)
    why = f"the loss swings with a period of {rows * spacing} steps: batches grouped by length or source"
    return Notice("periodic-batches", (track.step(0), track.step(-1)), why)


def hard_batches(steps: Iterable[int]) -> Notice:
    """High rows that this run produces now and then."""
    why = "single high rows that heal at once and are no rarer than this run's own noise makes them"
    return Notice("hard-batches", tuple(steps), why)
