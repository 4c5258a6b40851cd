"""What does the probe's own record say in the words and steps of the log? Traces as signals.

Logs round, average and count in their own ways; the trace has every bit. Where a log agrees with the trace as far as it
printed, the trace may speak for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from spike.domain.licence import half_last_digit, last_unit
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
    """The log with what it lacks: signals that it has not, and digits that it rounded away.

    A rounded series is replaced by the trace's only where both agree at every step to the last printed digit.
    """
    series = {s.name: s for s in logged.series}
    for name, readings in READINGS.items():
        known = series.get(name)
        if known is None:
            series[name] = trace_series(name, traces, offset=offset)
        elif known.digits < FULL_DIGITS - 1:
            finer = (trace_series(name, traces, offset=offset, reading=r) for r in range(len(readings)))
            series[name] = next((f for f in finer if _speaks_for(f, known)), known)
    return replace(logged, series=tuple(series.values()))


def _speaks_for(finer: Series, logged: Series) -> bool:
    exact = {int(s): float(v) for s, v in zip(finer.steps, finer.values, strict=True)}
    unit = last_unit(logged)
    shared = [(float(v), exact[int(s)]) for s, v in zip(logged.steps, logged.values, strict=True) if int(s) in exact]
    return bool(shared) and all(
        abs(a - b) <= half_last_digit(a, logged.digits, unit) or (a != a and b != b) for a, b in shared
    )


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
