"""Which plain facts at an onset are worth a look? Clean ratios, ln V, an exact zero, a jump of the learning rate."""

from __future__ import annotations

import math

import numpy as np

from spike.domain.detect.evidence import Evidence
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, Series

VOCABULARIES = (
    28996, 30522, 32000, 32064, 49152, 50257, 50265, 50272, 50277, 50280, 50304, 50432, 51200, 64000, 65024, 65536,
    100277, 100352, 102400, 128000, 128256, 129280, 151643, 151936, 152064, 200019, 201088, 250002, 250880, 255000,
    256000, 256128, 262144,
)  # fmt: skip
"""Sizes of common tokenizers and their padded embeddings: ln V is the loss of a model that knows nothing."""

LN_V_TOLERANCE = 0.004
"""A fresh model's loss is within this share of ln V."""

RATIO_TOLERANCE = 0.03
"""A normalisation bug multiplies by an exact factor; three percent is the noise of a level."""

END_SHARE = 0.01
"""Below this share of the highest learning rate a schedule is at its end."""

LR_JUMP = 0.05
"""A schedule moves the learning rate by less than this share a row, past its first rows."""


def clean_ratio(evidence: Evidence) -> str | None:
    """A lasting change by a power of two or its root: accumulation, world size or a per-shard norm."""
    signature = evidence.signature
    if signature.transform != "log" or not math.isfinite(evidence.effect) or evidence.num_rows < 3:
        return None
    if not (evidence.is_settled or evidence.is_open) or signature.signal not in (LOSS, GRAD_NORM):
        return None
    ratio = math.exp(evidence.level)
    for power in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 65536):
        roots = ((math.sqrt(power), f"sqrt({power})"),) if signature.signal == GRAD_NORM else ()
        for factor, name in ((float(power), f"x{power}"), *roots):
            if abs(ratio / factor - 1.0) < RATIO_TOLERANCE:
                times = f"{ratio:.3g} times" if signature.direction > 0 else f"1/{ratio:.3g} of"
                close = name if signature.direction > 0 else f"1/{name.removeprefix('x')}"
                return (
                    f"{signature.signal} is {times} its usual value, close to {close}:"
                    " accumulation steps, ranks or shards?"
                )
    return None


def log_vocabulary(value: float, first_loss: float | None) -> str | None:
    """A loss level that equals ln V of a known vocabulary, or the run's own first loss."""
    if first_loss is not None and first_loss > 0 and abs(value / first_loss - 1.0) < LN_V_TOLERANCE:
        return f"the loss is back at the run's first value ({first_loss:.4g}): fresh weights or another run?"
    size = min(VOCABULARIES, key=lambda size: abs(value - math.log(size)))
    level = math.log(size)
    is_plausible = first_loss is None or abs(first_loss / level - 1.0) < 0.1
    if is_plausible and abs(value / level - 1.0) < LN_V_TOLERANCE / 2:
        return f"the loss {value:.4g} is ln({size}): a model that knows nothing of a vocabulary of that size"
    return None


def learning_rate_jump(lr: Series | None, onset: int) -> str | None:
    """A discontinuity of the logged learning rate within three rows of the onset, beyond its own trend."""
    jump = find_lr_jump(lr, onset)
    if jump is None:
        return None
    step, before, after = jump
    factor = f"x{after / before:.3g}" if before > 0 else "from zero"
    return f"the learning rate jumps at step {step}: {before:g} -> {after:g} ({factor})"


def find_lr_jump(lr: Series | None, onset: int) -> tuple[int, float, float] | None:
    """(step, before, after) of the largest learning-rate discontinuity near `onset`, or None."""
    if lr is None or lr.name != LEARNING_RATE or lr.steps.size < 3:
        return None
    finite = lr.values[np.isfinite(lr.values)]
    highest = float(finite.max()) if finite.size else 0.0
    # Steps never decrease, so the rows that matter lie around the first one behind the onset.
    at = int(np.searchsorted(lr.steps, onset, side="right"))
    start = max(0, at - 20)
    steps, values = lr.steps[start : at + 12].tolist(), lr.values[start : at + 12].tolist()
    near = [i for i in range(1, len(steps)) if steps[i - 1] <= onset][-4:]
    changes = [_change(values[i - 1], values[i]) for i in range(1, len(steps))]
    best: tuple[int, float, float] | None = None
    largest = 0.0
    for i in near:
        change = changes[i - 1]
        if max(values[i - 1], values[i]) < END_SHARE * highest:
            continue  # a schedule's last rows fall by large factors to nothing
        around = sorted(changes[max(0, i - 12) : i - 1] + changes[i : i + 8])
        usual = around[int(0.9 * (len(around) - 1))] if around else 0.0
        if change > max(LR_JUMP, 3.0 * usual, largest):
            largest, best = change, (steps[i], values[i - 1], values[i])
    return best


LOWERED_BY = 1.5
"""A step of a schedule divides the learning rate by at least this."""

LOWERED_ROWS = 40
"""The loss answers such a step within this many rows."""


def lowered_rate(lr: Series | None, onset: int) -> int | None:
    """The step of the last sudden reduction of the learning rate shortly before `onset`, or None."""
    if lr is None or lr.steps.size < 2:
        return None
    end = min(int(np.searchsorted(lr.steps, onset, side="right")) + 1, lr.steps.size)
    near = lr.values[max(0, end - LOWERED_ROWS - 1) : end]
    found = np.flatnonzero((near[1:] > 0) & (near[1:] * LOWERED_BY <= near[:-1]))
    return int(lr.steps[end - near.size + 1 + int(found[-1])]) if found.size else None


def _change(before: float, after: float) -> float:
    if before == after:
        return 0.0
    if before <= 0 or after <= 0 or not (math.isfinite(before) and math.isfinite(after)):
        return math.inf
    return abs(math.log(after / before))
