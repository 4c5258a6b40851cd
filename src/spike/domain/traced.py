"""What does the probe's own record say in the words and steps of the log? Traces as signals.

Logs round, average and count in their own ways, and lack columns; the trace has every bit of what one process did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from spike.domain.factors import same_number
from spike.domain.signals import FULL_DIGITS, GRAD_NORM, LEARNING_RATE, LOSS, Series, Signals
from spike.domain.trace import RankTrace, StepRecord

Reading = Callable[[StepRecord], float]


def _mean_loss(step: StepRecord) -> float:
    return sum(m.loss for m in step.micro_batches) / len(step.micro_batches) if step.micro_batches else step.loss


READINGS: dict[str, tuple[Reading, ...]] = {
    # A script may hand backward the mean of each micro-batch, or the part that adds up to the mean of the step.
    LOSS: (_mean_loss, lambda step: step.loss),
    GRAD_NORM: (lambda step: step.grad_norm,),
    LEARNING_RATE: (lambda step: step.lr[0] if step.lr else math.nan,),
}
"""By signal, the ways in which a stack may have meant it; the first one is taken where nothing tells."""


def trace_series(name: str, traces: Sequence[RankTrace], *, offset: int, reading: int = 0) -> Series:
    """One signal over all ranks (their mean, which a data-parallel log shows), in the log's step numbers."""
    by_step: dict[int, list[float]] = {}
    for trace in traces:
        for step in trace.steps:
            by_step.setdefault(step.step + offset, []).append(READINGS[name][reading](step))
    steps = sorted(by_step)
    values = [float(np.mean(by_step[s])) for s in steps]
    return Series(name, np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64), source="trace")


def completed(logged: Signals, traces: Sequence[RankTrace], *, offset: int) -> Signals:
    """The log with the signals that it lacks."""
    missing = [name for name in READINGS if logged.get(name) is None]
    traced = tuple(trace_series(name, traces, offset=offset) for name in missing)
    return replace(logged, series=(*logged.series, *traced))


def equal_in_every_bit(
    record: Signals, traces: Sequence[RankTrace], *, offset: int, first: int, last: int
) -> tuple[str, ...]:
    """Signals whose trace equals an unrounded record at every recorded step from `first` to `last` (logged steps).

    A console that rounds what a file keeps in full need not limit what a replay can prove.
    """
    found = []
    for name in (LOSS, GRAD_NORM):
        known = record.get(name)
        if known is None or known.digits < FULL_DIGITS - 1:
            continue
        wanted = {int(s): float(v) for s, v in zip(known.steps, known.values, strict=True) if first <= s <= last}
        for reading in range(len(READINGS[name])):
            exact = trace_series(name, traces, offset=offset, reading=reading)
            if wanted and all(same_number(value, _at(exact, step)) for step, value in wanted.items()):
                found.append(name)
                break
    return tuple(found)


def _at(series: Series, step: int) -> float:
    value = series.at(step)
    return math.inf if value is None else value


def renumbered(logged: Signals, record: Signals, *, first_step: int) -> Signals:
    """Rows of a console that prints no step, counted from 1 by the reader, put onto the steps that the record has.

    The k-th row after a resume belongs to the k-th recorded step after the checkpoint; that it really does is for the
    licence to find.
    """
    known = record.get(LOSS) or (record.series[0] if record.series else None)
    if known is None:
        return logged
    expected = sorted({int(s) for s in known.steps if s > first_step})
    rows = sorted({int(s) for series in logged.series for s in series.steps})
    places = dict(zip(rows, expected, strict=False))
    return replace(logged, series=tuple(s for s in (_moved(s, places) for s in logged.series) if s.steps.size))


def _moved(series: Series, places: dict[int, int]) -> Series:
    kept = [i for i, s in enumerate(series.steps) if int(s) in places]
    steps = np.array([places[int(series.steps[i])] for i in kept], dtype=np.int64)
    return replace(series, steps=steps, values=series.values[kept])
