"""What would the published rules have said? Each as a function of the record, written from its description.

They return the steps at which they fire. None of them looks at more than the columns that its own stack has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

Rule = Callable[[np.ndarray, np.ndarray, np.ndarray | None], list[int]]
"""(steps, loss, grad_norm) -> steps at which it fires."""


def megatron(steps: np.ndarray, loss: np.ndarray, grad_norm: np.ndarray | None) -> list[int]:
    """A loss at least ten times the largest of the first hundred; NaN and Inf are checked apart, and fatal."""
    del grad_norm
    first = loss[:100][np.isfinite(loss[:100])]
    limit = 10.0 * float(first.max()) if first.size else math.inf
    return [
        int(step)
        for row, (step, value) in enumerate(zip(steps, loss, strict=True))
        if not math.isfinite(value) or (row >= 100 and value >= limit)
    ]


def llm_foundry(steps: np.ndarray, loss: np.ndarray, grad_norm: np.ndarray | None) -> list[int]:
    """Twice the mean of a window (at least 100 rows, 5% of the run) five rows in a row; blind to NaN."""
    del grad_norm
    size = max(100, len(loss) // 20)
    window: deque[float] = deque(maxlen=size)
    fired, run = [], 0
    for step, value in zip(steps, loss, strict=True):
        if len(window) == size:
            run = run + 1 if value >= 2.0 * float(np.mean(window)) else 0
            if run >= 5:
                fired.append(int(step))
        window.append(float(value))
    return fired


def lightning(steps: np.ndarray, loss: np.ndarray, grad_norm: np.ndarray | None) -> list[int]:
    """More than three times the running mean of ten rows, and not better than the row before; NaN counts."""
    del grad_norm
    window: deque[float] = deque(maxlen=10)
    fired, last = [], math.inf
    for step, value in zip(steps, loss, strict=True):
        mean = float(np.mean(window)) if window else math.inf
        if not math.isfinite(value) or (value >= last and value - mean >= 2.0 * mean):
            fired.append(int(step))
            continue
        window.append(float(value))
        last = float(value)
    return fired


def olmo(steps: np.ndarray, loss: np.ndarray, grad_norm: np.ndarray | None) -> list[int]:
    """Six standard deviations above the mean of 128 rows (from 64 on), on loss and gradient norm; outliers enter."""
    fired = set()
    for values in (loss, grad_norm):
        if values is None:
            continue
        window: deque[float] = deque(maxlen=128)
        for step, value in zip(steps, values, strict=True):
            if len(window) >= 64:
                mean, spread = float(np.mean(window)), float(np.std(window))
                if value > mean + 6.0 * spread:
                    fired.add(int(step))
            window.append(float(value))
    return sorted(fired)


def zclip(steps: np.ndarray, loss: np.ndarray, grad_norm: np.ndarray | None) -> list[int]:
    """Gradient norm more than 2.5 standard deviations above exponential averages (0.97, 25 rows of warm-up)."""
    del loss
    if grad_norm is None:
        return []
    fired: list[int] = []
    first = grad_norm[:25]
    mean, variance = float(np.mean(first)), float(np.var(first))
    for step, value in list(zip(steps, grad_norm, strict=True))[25:]:
        z = (value - mean) / math.sqrt(variance + 1e-12)
        used = value
        if z > 2.5:
            fired.append(int(step))
            used = mean + 2.5 * math.sqrt(variance) / z * 2.5
        mean = 0.97 * mean + 0.03 * float(used)
        variance = 0.97 * variance + 0.03 * (float(used) - mean) ** 2
    return fired


def losslint() -> Rule | None:
    """The installed package's own checks for spikes, divergence and non-finite values; None where it is not there.

    It names no more than the first five steps of a kind, and no place for a divergence: that counts at the last tenth,
    which it is measured on.
    """
    try:
        from losslint.checks import check_divergence, check_loss_spike, check_nan_inf
        from losslint.parsing import RunLog
    except ImportError:
        return None

    def rule(steps: np.ndarray, loss: np.ndarray, grad_norm: np.ndarray | None) -> list[int]:
        series = {"loss": loss.tolist()} | ({} if grad_norm is None else {"grad_norm": grad_norm.tolist()})
        log = RunLog([int(step) for step in steps], series, Path("run.jsonl"))
        findings = [*check_nan_inf(log), *check_loss_spike(log), *check_divergence(log)]
        fired = {step for finding in findings for step in finding.details.get("steps", ())}
        if any(finding.check == "divergence" for finding in findings):
            fired.add(int(steps[-max(1, len(steps) // 10)]))
        return sorted(fired)

    return rule


RULES: dict[str, Rule] = {
    "Megatron-LM": megatron,
    "llm-foundry": llm_foundry,
    "Lightning": lightning,
    "OLMo": olmo,
    "ZClip": zclip,
}


def rules() -> dict[str, Rule]:
    """Every rule that can be compared here."""
    installed = losslint()
    return RULES if installed is None else {**RULES, "losslint": installed}
