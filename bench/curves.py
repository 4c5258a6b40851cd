"""What do runs with a known incident, and runs without one, look like? Generated records with their truth.

Nothing here knows the detector: shapes, noises and sizes are drawn from what public logs show (heavy tails, correlated
batches, warm-up, schedules, scalers, restarts), and the truth is the step at which the generator acted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from spike.domain.signals import (
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    SKIPPED,
    Series,
    Signals,
)

FARTHEST = 6.5
"""Standard deviations at which healthy noise is cut: a batch beyond that is an incident by this bench's own words."""

LARGEST_HEALTHY = 0.12
"""Log loss that a hard batch adds at most: one that lifts the loss by a fifth within a step is what the published
logs of modded-nanogpt call a spike."""


@dataclass(slots=True)
class Record:
    """One run's columns while it is being made."""

    rng: np.random.Generator
    steps: np.ndarray
    loss: np.ndarray
    grad_norm: np.ndarray | None
    lr: np.ndarray
    noise: float
    """Standard deviation of the log loss around its trend."""
    grad_noise: float
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    name: str = ""
    onset: int | None = None
    """Step at which the incident begins; None for a healthy run."""
    last: int | None = None
    sigmas: float = math.inf
    """Size of the incident at its peak, in standard deviations of the noise."""
    leads: bool = False
    """The gradient norm moves before the loss."""
    rank: int | None = None
    digits: int = 6
    """Significant digits that the log writes."""

    def signals(self) -> Signals:
        """The record as a reader would hand it over, rounded as a log rounds."""
        digits = self.digits
        columns = {LOSS: self.loss, GRAD_NORM: self.grad_norm, LEARNING_RATE: self.lr, **self.extra}
        series = tuple(
            Series(name, self.steps, _rounded(values, digits), column=name, digits=digits)
            for name, values in columns.items()
            if values is not None
        )
        return Signals(series)


def _rounded(values: np.ndarray, digits: int) -> np.ndarray:
    return np.array([float(f"{v:.{digits - 1}e}") if np.isfinite(v) else v for v in values.tolist()])


def healthy(rng: np.random.Generator, rows: int | None = None) -> Record:
    """A run that only learns: a power law with noise, warm-up and a schedule, a gradient norm that goes with it."""
    n = rows or int(np.exp(rng.uniform(np.log(220), np.log(3000))))
    spacing = int(rng.choice([1, 1, 1, 5, 10]))
    resumed = rng.random() < 0.25
    first = int(rng.integers(2_000, 90_000)) // spacing * spacing if resumed else spacing
    index = np.arange(n)
    steps = first + index * spacing
    noise = float(np.exp(rng.uniform(np.log(0.003), np.log(0.09))))
    floor = rng.uniform(0.3, 2.4)
    start = rng.uniform(3.0, 8.5)
    age = steps / spacing if not resumed else steps / spacing + 5_000
    power = rng.uniform(0.15, 0.7)
    trend = floor + start * (1.0 + age / rng.uniform(5, 40)) ** -power
    loss = trend * np.exp(_noise(rng, n, noise))
    grad_noise = float(rng.uniform(0.08, 0.35))
    usual = np.exp(rng.uniform(np.log(0.05), np.log(20.0)))
    warm = 1.0 if resumed else 1.0 + rng.uniform(0.0, 8.0) * np.exp(-index / rng.uniform(5, 30))
    drift = np.exp(rng.uniform(-0.4, 0.9) * index / n)
    grad_norm = usual * warm * drift * np.exp(_noise(rng, n, grad_noise, skew=0.15))
    peak_lr = np.exp(rng.uniform(np.log(1e-5), np.log(3e-3)))
    return Record(rng, steps, loss, grad_norm, _schedule(rng, index, n, peak_lr), noise, grad_noise)


def _noise(rng: np.random.Generator, n: int, scale: float, skew: float = 0.0) -> np.ndarray:
    """Noise as batches make it: correlated in a third of the runs, with a tail in a third of them."""
    white = rng.standard_normal(n)
    kind = rng.random()
    if kind < 0.33:
        rho = rng.uniform(0.1, 0.5)
        for i in range(1, n):
            white[i] = rho * white[i - 1] + math.sqrt(1 - rho**2) * white[i]
    elif kind < 0.66:
        freedom = rng.uniform(5, 12)
        white = np.clip(rng.standard_t(freedom, n) / math.sqrt(freedom / (freedom - 2)), -FARTHEST, FARTHEST)
    return scale * (white + skew * np.maximum(white, 0.0))


def _schedule(rng: np.random.Generator, index: np.ndarray, n: int, peak: float) -> np.ndarray:
    warmup = max(1, int(rng.uniform(0.01, 0.08) * n))
    ramp = np.minimum(1.0, (index + 1) / warmup)
    kind = rng.random()
    if kind < 0.4:
        return peak * ramp * (0.55 + 0.45 * np.cos(np.pi * index / n))
    if kind < 0.7:
        return peak * ramp * np.minimum(1.0, (n - index) / (0.2 * n))
    return peak * ramp


# ---------------------------------------------------------------- healthy patterns that look alarming


def periodic(rng: np.random.Generator) -> Record:
    """Batches grouped by length: the loss swings with a period."""
    record = healthy(rng)
    index = np.arange(len(record.steps))
    period = int(rng.integers(4, 40))
    record.loss *= np.exp(rng.uniform(0.05, 0.35) * ((index % period) / period - 0.5))
    return replace(record, name="periodic")


def hard_batches(rng: np.random.Generator) -> Record:
    """Every hundredth batch or so is hard, by three to five times the noise, and heals at once."""
    record = healthy(rng, int(rng.integers(600, 2500)))
    hard = rng.random(len(record.steps)) < rng.uniform(0.008, 0.03)
    size = np.minimum(rng.uniform(3.0, 5.0, len(record.steps)) * record.noise, LARGEST_HEALTHY)
    record.loss = record.loss * np.exp(np.where(hard, size, 0.0))
    return replace(record, name="hard-batches")


def widening(rng: np.random.Generator) -> Record:
    """The noise changes slowly, up or down, by up to a factor of two and a half."""
    record = healthy(rng)
    n = len(record.steps)
    factor = np.exp(np.linspace(0, rng.choice([-1, 1]) * rng.uniform(0.3, 0.9), n)) - 1.0
    record.loss *= np.exp(record.noise * factor * rng.standard_normal(n))
    return replace(record, name="noise-changes")


def epochs(rng: np.random.Generator) -> Record:
    """A fine-tuning run whose loss steps down a little at each epoch."""
    record = healthy(rng, int(rng.integers(300, 1200)))
    n = len(record.steps)
    per_epoch = n // int(rng.integers(3, 6))
    epoch = np.arange(n) // per_epoch
    record.loss *= np.exp(-rng.uniform(0.05, 0.3) * epoch)
    record.extra["epoch"] = np.arange(n) / per_epoch
    return replace(record, name="epochs")


def scaler_skips(rng: np.random.Generator) -> Record:
    """A mixed-precision scaler at work: a search at the start, then one overflow now and then."""
    record = healthy(rng, int(rng.integers(400, 2000)))
    n = len(record.steps)
    assert record.grad_norm is not None
    scale = np.full(n, 65536.0)
    at = sorted(rng.choice(np.arange(60, n - 10), size=int(rng.integers(1, 5)), replace=False).tolist())
    for row in at:
        record.grad_norm[row] = rng.choice([np.nan, np.inf])
        scale[row:] /= 2
        record.lr[row] = record.lr[row - 1]
    search = int(rng.integers(0, 6))
    record.grad_norm[:search] = np.inf
    scale[:search] = 65536.0 * 2.0 ** (search - np.arange(search))
    record.extra[LOSS_SCALE] = scale
    return replace(record, name="scaler-skips")


def late_start(rng: np.random.Generator) -> Record:
    """A plateau at the beginning, then a sudden fall: learning sets in."""
    record = healthy(rng, int(rng.integers(400, 1500)))
    index = np.arange(len(record.steps))
    at, width = rng.uniform(40, 150), rng.uniform(6, 30)
    record.loss *= np.exp(rng.uniform(0.2, 0.7) / (1.0 + np.exp((index - at) / width)))
    return replace(record, name="late-start")


def step_decay(rng: np.random.Generator) -> Record:
    """The learning rate falls by ten and the loss falls with it."""
    record = healthy(rng, int(rng.integers(400, 1500)))
    n = len(record.steps)
    at = int(n * rng.uniform(0.4, 0.8))
    record.lr = np.where(np.arange(n) < at, record.lr.max(), record.lr.max() / 10)
    after = np.maximum(np.arange(n) - at, 0)
    record.loss *= np.exp(-rng.uniform(0.05, 0.25) * (1 - np.exp(-after / rng.uniform(3, 25))))
    return replace(record, name="step-decay")


def policy_gradient(rng: np.random.Generator) -> Record:
    """A trainer whose loss is exactly zero."""
    record = healthy(rng)
    record.loss = np.zeros_like(record.loss)
    return replace(record, name="zero-loss")


def stale_norm(rng: np.random.Generator) -> Record:
    """A gradient norm that was never computed, or repeats an old value."""
    record = healthy(rng)
    assert record.grad_norm is not None
    record.grad_norm = (
        np.zeros_like(record.grad_norm)
        if rng.random() < 0.5
        else np.repeat(record.grad_norm[::10], 10)[: len(record.steps)]
    )
    return replace(record, name="stale-norm")


def plain(rng: np.random.Generator) -> Record:
    """Nothing special."""
    return replace(healthy(rng), name="plain")


def loss_only(rng: np.random.Generator) -> Record:
    """Nothing special, and no gradient norm in the log."""
    record = healthy(rng)
    record.grad_norm = None
    return replace(record, name="loss-only")


def wild_norm(rng: np.random.Generator) -> Record:
    """A fine-tuning run whose gradient norm jumps about by factors without harm."""
    record = healthy(rng)
    assert record.grad_norm is not None
    record.grad_norm *= np.exp(rng.uniform(0.3, 0.6) * np.abs(rng.standard_normal(len(record.steps))) ** 1.3)
    return replace(record, name="wild-norm")


HEALTHY: tuple[Callable[[np.random.Generator], Record], ...] = (
    plain,
    loss_only,
    periodic,
    hard_batches,
    widening,
    epochs,
    scaler_skips,
    late_start,
    step_decay,
    policy_gradient,
    stale_norm,
    wild_norm,
)


# ---------------------------------------------------------------- incidents


def _place(record: Record, share: tuple[float, float] = (0.25, 0.85)) -> int:
    """The row of the incident: at least 20 healthy rows before it."""
    n = len(record.steps)
    return max(20, int(n * record.rng.uniform(*share)))


def _size(record: Record, low: float, high: float) -> float:
    """Log-uniform number of standard deviations, at least two percent of the loss."""
    size = float(np.exp(record.rng.uniform(np.log(low), np.log(high))))
    return max(size, 0.021 / record.noise)


def _done(record: Record, name: str, row: int, last: int, sigmas: float, *, leads: bool = False) -> Record:
    last = min(last, len(record.steps) - 1)
    return replace(
        record,
        name=name,
        onset=int(record.steps[row]),
        last=int(record.steps[last]),
        sigmas=sigmas,
        leads=leads,
    )


def one_row(rng: np.random.Generator) -> Record:
    """One batch far outside the noise; the gradient norm shows it too, or not."""
    record = healthy(rng)
    row, size = _place(record), _size(record, 9.0, 60.0)
    record.loss[row] *= np.exp(size * record.noise)
    if record.grad_norm is not None and rng.random() < 0.7:
        record.grad_norm[row] *= np.exp(rng.uniform(0.8, 3.0))
    return _done(record, "one-row", row, row, size)


def decaying(rng: np.random.Generator) -> Record:
    """A spike that takes a while to heal."""
    record = healthy(rng)
    row, size, life = _place(record, (0.25, 0.75)), _size(record, 4.5, 50.0), rng.uniform(6, 40)
    after = np.maximum(np.arange(len(record.steps)) - row, 0)
    shape = np.where(np.arange(len(record.steps)) >= row, np.exp(-after / life), 0.0)
    record.loss *= np.exp(size * record.noise * shape)
    if record.grad_norm is not None:
        record.grad_norm *= np.exp(rng.uniform(0.5, 3.0) * shape)
    return _done(record, "decaying", row, row + int(3 * life), size)


def led_by_norm(rng: np.random.Generator) -> Record:
    """The gradient norm grows by factors some steps before the loss does, as in BLOOM-176B."""
    record = healthy(rng)
    assert record.grad_norm is not None
    row, lead, size = _place(record, (0.25, 0.75)), int(rng.integers(1, 7)), _size(record, 10.0, 60.0)
    index = np.arange(len(record.steps))
    growth = np.clip(index - row + 1, 0, lead + 2) * rng.uniform(0.9, 1.8)
    heal = np.exp(-np.maximum(index - row - lead - 2, 0) / rng.uniform(2, 8))
    record.grad_norm *= np.exp(growth * heal)
    spike = np.where(index >= row + lead, np.exp(-np.maximum(index - row - lead, 0) / rng.uniform(2, 10)), 0.0)
    record.loss *= np.exp(size * record.noise * spike)
    return _done(record, "led-by-norm", row, row + lead + 30, size, leads=True)


def diverging(rng: np.random.Generator) -> Record:
    """The loss climbs within some rows and stays far up."""
    record = healthy(rng)
    row, rise = _place(record, (0.3, 0.9)), rng.uniform(0.5, 1.6)
    ramp = np.clip((np.arange(len(record.steps)) - row + 1) / rng.integers(1, 12), 0.0, 1.0)
    record.loss *= np.exp(rise * ramp)
    if record.grad_norm is not None:
        record.grad_norm *= np.exp(rng.uniform(0.5, 4.0) * ramp)
    return _done(record, "diverging", row, len(record.steps), rise / record.noise)


def shift(rng: np.random.Generator) -> Record:
    """The loss goes on at another level."""
    record = healthy(rng)
    row, size = _place(record, (0.3, 0.75)), _size(record, 4.0, 20.0)
    record.loss[row:] *= np.exp(size * record.noise)
    return _done(record, "shift", row, len(record.steps), size)


def creep(rng: np.random.Generator) -> Record:
    """The loss turns and creeps up for the rest of the record."""
    record = healthy(rng, int(rng.integers(500, 2500)))
    n = len(record.steps)
    row = int(n * rng.uniform(0.4, 0.6))
    # Above what the learning curve still falls, so that the loss itself turns.
    fall = max(0.0, float(np.median(np.log(record.loss[row - 20 : row + 20])) - np.median(np.log(record.loss[-40:]))))
    rise = fall + max(_size(record, 4.0, 12.0) * record.noise, 0.06)
    record.loss *= np.exp(rise * np.clip((np.arange(n) - row) / (n - row), 0.0, 1.0))
    return _done(record, "creep", row, n, rise / record.noise)


def not_finite(rng: np.random.Generator) -> Record:
    """The loss is NaN from here on, or once; loss and norm may be repaired by the logger."""
    record = healthy(rng)
    assert record.grad_norm is not None
    row = _place(record, (0.2, 0.97))
    kind = rng.random()
    end = len(record.steps) if kind < 0.6 else row + int(rng.integers(1, 4))
    record.grad_norm[row:end] = np.nan
    record.loss[row:end] = 0.0 if rng.random() < 0.4 else np.nan
    return _done(record, "not-finite", row, end - 1, math.inf)


def norm_lost(rng: np.random.Generator) -> Record:
    """The gradient norm is NaN for good while the logger shows a smooth loss."""
    record = healthy(rng)
    assert record.grad_norm is not None
    row = _place(record, (0.3, 0.9))
    record.grad_norm[row:] = np.nan
    record.loss[row:] = record.loss[row - 1]
    return _done(record, "norm-lost", row, len(record.steps), math.inf)


def skips(rng: np.random.Generator) -> Record:
    """The scaler skips step after step, with a counter in the log."""
    record = healthy(rng)
    row, length = _place(record), int(rng.integers(5, 40))
    record.extra[SKIPPED] = np.zeros(len(record.steps))
    record.extra[SKIPPED][row : row + length] = 1.0
    return _done(record, "skips", row, row + length - 1, math.inf)


def falls(rng: np.random.Generator) -> Record:
    """The loss drops at once to a level that no learning explains."""
    record = healthy(rng)
    row = _place(record, (0.3, 0.8))
    size = max(_size(record, 5.0, 30.0), 0.25 / record.noise)
    record.loss[row:] *= np.exp(-size * record.noise)
    return _done(record, "falls", row, len(record.steps), size)


def frozen(rng: np.random.Generator) -> Record:
    """The same loss again and again."""
    record = healthy(rng)
    row = _place(record, (0.3, 0.8))
    record.loss[row:] = record.loss[row]
    return _done(record, "frozen", row, len(record.steps), math.inf)


def jump_of_rate(rng: np.random.Generator) -> Record:
    """A learning rate ten times too high from one step on: the loss rises a row later and comes down slowly."""
    record = healthy(rng, int(rng.integers(220, 320)))
    row, size = _place(record, (0.6, 0.75)), _size(record, 6.0, 40.0)
    record.lr[row:] *= 10.0
    after = np.maximum(np.arange(len(record.steps)) - row - 1, -1)
    shape = np.where(after >= 0, (1 - np.exp(-(after + 1) / 2.0)) * np.exp(-after / 60.0), 0.0)
    record.loss *= np.exp(size * record.noise * shape / max(shape.max(), 1e-9))
    return _done(record, "jump-of-rate", row + 1, len(record.steps), size)


def norm_scaled(rng: np.random.Generator) -> Record:
    """The gradient norm alone is multiplied by a constant from here on: a normalisation bug after a restart."""
    record = healthy(rng)
    assert record.grad_norm is not None
    row = _place(record, (0.3, 0.75))
    factor = float(rng.choice([2.0, 4.0, 8.0, 16.0]))
    while math.log(factor) < 4.5 * record.grad_noise:
        factor *= 2.0
    record.grad_norm[row:] *= factor
    return _done(record, "norm-scaled", row, len(record.steps), math.log(factor) / record.grad_noise)


INCIDENTS: tuple[Callable[[np.random.Generator], Record], ...] = (
    one_row,
    decaying,
    led_by_norm,
    diverging,
    shift,
    creep,
    not_finite,
    norm_lost,
    skips,
    falls,
    frozen,
    jump_of_rate,
    norm_scaled,
)


def labelled(per_family: int, seed: int = 7) -> list[Record]:
    """`per_family` records of every family, reproducible for a seed."""
    records: list[Record] = []
    for place, family in enumerate((*HEALTHY, *INCIDENTS)):
        for number in range(per_family):
            records.append(family(np.random.default_rng([seed, place, number])))
    return records
