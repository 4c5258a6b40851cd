"""How do small records look? Series for the detector's tests, made from a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spike.domain.signals import GRAD_NORM, LOSS, Series, Signals

Values = NDArray[np.float64]


def learning(rows: int = 300, noise: float = 0.02, seed: int = 0, first: int = 1) -> tuple[Values, Values, Values]:
    """(steps, loss, grad_norm) of a run that only learns."""
    rng = np.random.default_rng(seed)
    steps = np.arange(first, first + rows)
    loss = (2.0 + 4.0 * (1.0 + np.arange(1, rows + 1) / 20.0) ** -0.5) * np.exp(noise * rng.standard_normal(rows))
    return steps, loss, np.exp(0.15 * rng.standard_normal(rows))


def signals(steps: Values, loss: Values | None = None, grad_norm: Values | None = None, **others: Values) -> Signals:
    """The columns as a reader hands them over."""
    columns = {LOSS: loss, GRAD_NORM: grad_norm, **others}
    return Signals(
        tuple(
            Series(name, np.asarray(steps, dtype=np.int64), np.asarray(values, dtype=np.float64), column=name)
            for name, values in columns.items()
            if values is not None
        )
    )
