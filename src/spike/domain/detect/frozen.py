"""Is the run still training? Values that repeat where noise must show, and norms that say that nothing moves."""

from __future__ import annotations

import math

import numpy as np

from spike.domain.detect.constants import Constants
from spike.domain.detect.evidence import Evidence
from spike.domain.incident import Kind, Signature
from spike.domain.signals import GRAD_NORM, LOSS, PARAM_NORM, UPDATE_NORM, Series

NOISY_DIGITS = 4
"""A loss printed with fewer digits may repeat by chance."""

NOISY_SHARE = 0.2
"""A column that repeats itself in more of its earlier rows than this was never noisy."""


def find_frozen(series: dict[str, Series], constants: Constants) -> tuple[Evidence, ...]:
    """Runs in which loss or parameter norm repeat exactly, or the update or gradient norm becomes exactly zero."""
    found: list[Evidence] = []
    loss = series.get(LOSS)
    if loss is not None and loss.digits >= NOISY_DIGITS:
        found += _repeats(loss, constants.frozen_rows, lambda value: value != 0.0)
    weights = series.get(PARAM_NORM)
    if weights is not None and weights.digits > NOISY_DIGITS:
        found += _repeats(weights, 2 * constants.frozen_rows, lambda value: value != 0.0)
    for name in (UPDATE_NORM, GRAD_NORM):
        norm = series.get(name)
        if norm is not None:
            found += _repeats(norm, constants.frozen_rows, lambda value: value == 0.0)
    return tuple(found)


def _repeats(series: Series, shortest: int, test: object) -> list[Evidence]:
    assert callable(test)
    values = series.values
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1  # a NaN is equal to nothing
    starts = np.concatenate([[0], changes])
    lengths = np.diff(np.concatenate([starts, [values.size]]))
    long = np.flatnonzero(lengths > shortest)
    if long.size == 0 or np.unique(values[starts][np.isfinite(values[starts])]).size < 3:
        return []  # nothing repeats, or everything does: a constant column says nothing about training
    found: list[Evidence] = []
    for run in long.tolist():
        start, length, value = int(starts[run]), int(lengths[run]), float(values[starts[run]])
        repeated = start - run  # rows before this run that were equal to the row before them
        was_noisy = start >= shortest and repeated < NOISY_SHARE * start
        if math.isfinite(value) and test(value) and was_noisy:
            found.append(_evidence(series, start + 1, start + length - 1, value))  # the first one is no repeat
    return found


def _evidence(series: Series, first: int, last: int, value: float) -> Evidence:
    step = int(series.steps[first])
    signature = Signature(
        series.name, Kind.FROZEN, "identity", value, 0.0, 0.0, 1, step, step, value, int(series.steps[last])
    )
    hint = f"{series.name} is exactly {value:g} in {last - first + 1} rows in a row"
    return Evidence(signature, 0.0, math.inf, last == series.steps.size - 1, False, last - first + 1, hints=(hint,))
