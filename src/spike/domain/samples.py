"""Which samples of a batch look unlike the healthy ones? A first guess, which trials then test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

OUTLIER_SIGMAS = 4.0
"""A sample is suspicious when its score is this many robust standard deviations off the healthy samples'."""
MIN_SCALE_NATS = 0.05
"""Scores of near-identical healthy samples still differ by this much from shard to shard."""


def suspicious(batch: NDArray[np.int64], healthy: Sequence[NDArray[np.int64]]) -> tuple[int, ...]:
    """Positions of samples whose tokens the healthy batches make improbable, or that hardly vary.

    `batch` is (samples, tokens); `healthy` are such arrays of control batches. Two scores a sample, in nats per
    token: cross-entropy under the healthy unigram distribution, and the entropy of its own tokens.
    """
    if not healthy:
        return ()
    vocabulary = int(max(batch.max(), *(h.max() for h in healthy))) + 1
    if batch.min() < 0 or vocabulary > 1 << 22:
        return ()
    counts = np.ones(vocabulary)
    for rows in healthy:
        counts += np.bincount(rows.clip(0).ravel(), minlength=vocabulary)
    log_p = np.log(counts / counts.sum())
    usual = np.array([_scores(row, log_p) for rows in healthy for row in rows])
    centre = np.median(usual, axis=0)
    scale = np.maximum(1.4826 * np.median(np.abs(usual - centre), axis=0), MIN_SCALE_NATS)
    scores = np.array([np.max(np.abs(np.array(_scores(row, log_p)) - centre) / scale) for row in batch])
    return _above_the_gap(scores)


def _above_the_gap(scores: NDArray[np.float64]) -> tuple[int, ...]:
    """Positions of the outlying scores, cut where the sorted scores fall most steeply.

    Short samples scatter: a threshold alone takes some healthy ones along. What was damaged stands apart.
    """
    order = np.argsort(-scores, kind="stable")
    outlying = int((scores > OUTLIER_SIGMAS).sum())
    if not outlying:
        return ()
    ranked = np.append(scores[order], 0.0)
    falls = ranked[:outlying] - ranked[1 : outlying + 1]
    return tuple(sorted(int(i) for i in order[: int(np.argmax(falls)) + 1]))


def _scores(row: NDArray[np.int64], log_p: NDArray[np.float64]) -> tuple[float, float]:
    known = row[row >= 0]
    if not known.size:
        return 0.0, 0.0
    share = np.bincount(known) / known.size
    share = share[share > 0]
    return float(-log_p[known].mean()), float(-(share * np.log(share)).sum())
