"""Which samples of a batch look unlike the healthy ones? A first guess, which trials then test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTLIER_SIGMAS = 4.0
"""A sample is suspicious when its score is this many robust standard deviations off the healthy samples'."""
MAX_VOCABULARY = 1 << 22
"""Larger ids are no tokens (hashes, positions), and their counts would not fit."""
MIN_SCALE_NATS = 0.05
"""Scores of near-identical healthy samples still differ by this much from shard to shard."""


def suspicious(batch: NDArray[Any], healthy: Sequence[NDArray[Any]]) -> tuple[int, ...]:
    """Positions of samples that look unlike the healthy ones, in either direction.

    `batch` is (samples, values); `healthy` are such arrays of control batches. Token ids (integers) are scored in nats
    per token by their cross-entropy under the healthy unigram distribution and by the entropy of their own; numbers by
    their mean and their largest magnitude.
    """
    alike = [h for h in healthy if h.dtype == batch.dtype and h.size]
    if not alike or not batch.size:
        return ()
    if np.issubdtype(batch.dtype, np.integer):
        score, floor = _token_score(batch, alike), MIN_SCALE_NATS
        if score is None:
            return ()
    else:
        score, floor = _number_score, 1e-12
    usual = np.array([score(row) for rows in alike for row in rows])
    centre = np.median(usual, axis=0)
    scale = np.maximum(1.4826 * np.median(np.abs(usual - centre), axis=0), floor)
    scores = np.array([np.max(np.abs(np.array(score(row)) - centre) / scale) for row in batch])
    return _above_the_gap(np.where(np.isfinite(scores), scores, 1e9))


Score = Callable[[NDArray[Any]], tuple[float, float]]


def _token_score(batch: NDArray[np.int64], healthy: Sequence[NDArray[np.int64]]) -> Score | None:
    vocabulary = int(max(batch.max(), *(h.max() for h in healthy))) + 1
    if vocabulary > MAX_VOCABULARY or vocabulary < 1:
        return None
    counts = np.ones(vocabulary)
    for rows in healthy:
        counts += np.bincount(rows[rows >= 0], minlength=vocabulary)
    log_p = np.log(counts / counts.sum())
    return lambda row: _scores(row, log_p)


def _number_score(row: NDArray[np.float64]) -> tuple[float, float]:
    return float(row.mean()), float(np.abs(row).max())


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
