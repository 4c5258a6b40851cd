"""Does the loss stop being logged while the run goes on? Megatron leaves the field out where it is not finite."""

from __future__ import annotations

import math

import numpy as np

from spike.domain.detect.constants import Constants
from spike.domain.detect.evidence import Evidence
from spike.domain.incident import Kind, Signature
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, Series

COMPANIONS = (LEARNING_RATE, LOSS_SCALE, GRAD_NORM)
"""Columns that the same line prints; the first that is there says which rows the run wrote."""

TOGETHER = 0.95
"""Share of the rows before the gap that must have had a loss: else it is logged more seldom anyway."""


def find_vanished(series: dict[str, Series], constants: Constants) -> tuple[Evidence, ...]:
    """Rows of a companion column of the same file without a loss, several in a row."""
    loss = series.get(LOSS)
    written = next((series[name] for name in COMPANIONS if name in series), None)
    if loss is None or written is None or loss.source != written.source or loss.steps.size == 0:
        return ()
    steps = np.unique(written.steps)
    missing = ~np.isin(steps, loss.steps)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
    found: list[Evidence] = []
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        had = 1.0 - float(np.mean(missing[:first])) if first else 0.0
        if end - first >= constants.vanished_rows and first >= constants.ready_rows and had >= TOGETHER:
            found.append(
                _evidence(written.name, int(steps[first]), int(steps[end - 1]), end - first, end == steps.size)
            )
    return tuple(found)


def _evidence(beside: str, first: int, last: int, num_rows: int, ends: bool) -> Evidence:
    signature = Signature(LOSS, Kind.NON_FINITE, "identity", 0.0, 0.0, math.inf, 1, first, first, math.nan, last)
    hint = f"no loss in {num_rows} rows that have {beside}: the field is left out where the loss is not finite"
    return Evidence(signature, math.inf, math.inf, ends, False, num_rows, hints=(hint,))
