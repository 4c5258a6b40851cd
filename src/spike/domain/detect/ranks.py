"""Which ranks disagree with the others? The job as its median rank, and the few ranks worth a look of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spike.domain.signals import GRAD_NORM, LOSS, Series, Signals

MOST_RANKS = 32
"""Ranks judged one by one, the most deviant first; a fault on more than this many is the job's."""

DEVIANT_SIGMAS = 8.0
"""Distance from the median rank, in scales of the ranks' own spread, from which a rank is worth a look."""


def job_wide(signals: Signals) -> dict[str, Series]:
    """One series a signal for the whole job: the job's own, else the median over the ranks."""
    found: dict[str, Series] = {}
    for name in signals.names():
        named = [s for s in signals.series if s.name == name]
        whole = next((s for s in named if s.rank is None), None)
        if whole is not None:
            found[name] = whole
        elif len(named) == 1:
            found[name] = replace(named[0], rank=None)
        else:
            found[name] = _median(named)
    return found


def deviant_ranks(signals: Signals) -> tuple[int, ...]:
    """Ranks whose loss or gradient norm leaves the other ranks, or is not finite where theirs is."""
    scores: dict[int, float] = {}
    for name in (LOSS, GRAD_NORM):
        named = [s for s in signals.series if s.name == name and s.rank is not None]
        if len(named) < 2:
            continue
        for rank, score in _scores(named).items():
            scores[rank] = max(score, scores.get(rank, 0.0))
    worth = [rank for rank, score in scores.items() if score > DEVIANT_SIGMAS]
    return tuple(sorted(worth, key=lambda rank: -scores[rank])[:MOST_RANKS])


def of_rank(signals: Signals, rank: int, job: dict[str, Series]) -> dict[str, Series]:
    """This rank's series, with the job's where it has none."""
    return job | {s.name: s for s in signals.series if s.rank == rank}


def seen_by(signals: Signals, rank: int | None) -> Signals:
    """One series a signal, as the detector judged it: the job's, or this rank's with the job's where it has none."""
    job = job_wide(signals)
    chosen = job if rank is None else of_rank(signals, rank, job)
    return replace(signals, series=tuple(replace(series, rank=None) for series in chosen.values()))


def _grid(named: list[Series]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """(steps, values [steps, ranks], present [steps, ranks])."""
    steps = np.unique(np.concatenate([s.steps for s in named]))
    values = np.full((steps.size, len(named)), np.nan)
    present = np.zeros(values.shape, dtype=bool)
    for column, series in enumerate(named):
        rows = np.searchsorted(steps, series.steps)
        values[rows, column] = series.values
        present[rows, column] = True
    return steps, values, present


def _median(named: list[Series]) -> Series:
    """Median over the ranks; not finite only where at least half of the ranks are not."""
    steps, values, present = _grid(named)
    finite = np.isfinite(values)
    enough = finite.sum(axis=1) * 2 > present.sum(axis=1)
    masked = np.where(finite, values, np.nan)
    middle = np.full(steps.size, np.nan)
    if enough.any():
        middle[enough] = np.nanmedian(masked[enough], axis=1)
    lost = ~enough
    for row in np.flatnonzero(lost):
        there = values[row][present[row] & ~finite[row]]
        middle[row] = there[0] if there.size else np.nan
    return replace(named[0], steps=steps, values=middle, rank=None, digits=min(s.digits for s in named))


def _scores(named: list[Series]) -> dict[int, float]:
    steps, values, present = _grid(named)
    del steps
    positive = bool(np.all(values[np.isfinite(values)] > 0)) if np.isfinite(values).any() else False
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(values) if positive else values
    middle = _median(named).values
    centre = np.log(middle) if positive else middle
    with np.errstate(invalid="ignore"):  # inf - inf: a rank that is as lost as the middle one
        away = np.abs(y - centre[:, None])
    usual = away[np.isfinite(away)]
    scale = max(1.4826 * float(np.median(usual)) if usual.size else 0.0, 1e-6)
    scores: dict[int, float] = {}
    for column, series in enumerate(named):
        lost = present[:, column] & ~np.isfinite(values[:, column]) & np.isfinite(middle)
        own = away[:, column][np.isfinite(away[:, column])]
        assert series.rank is not None
        scores[series.rank] = np.inf if lost.any() else float(own.max(initial=0.0)) / scale
    return scores
