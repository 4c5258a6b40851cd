"""How else can a run look? Records of shapes that the labelled set does not hold, healthy and with a known incident.

Nothing here knows the detector, and nothing of it was drawn while the detector was made: noise with heavy tails, with a
long memory or of a changing size, records of sixty rows, logs that round to three digits or write every tenth step,
toy models whose loss falls by a factor of a hundred, schedules with a decay at the end, runs resumed half-way.
The size of an incident is counted in robust standard deviations (MAD) of the noise that was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from bench.curves import Record

FARTHEST = 7.0
"""Robust standard deviations at which healthy noise is cut: what lies beyond is an incident to whoever sees it ..."""

LARGEST = 0.17
"""... and so is a row that is six of them out and lifts the loss by a fifth."""

MAD = 1.4826

Array = np.ndarray


# ---------------------------------------------------------------- noise, of unit robust scale


def white(rng: np.random.Generator, n: int) -> Array:
    """Independent and normal."""
    return rng.standard_normal(n)


def heavy(rng: np.random.Generator, n: int) -> Array:
    """Student's t with three to six degrees of freedom."""
    return rng.standard_t(rng.uniform(3.0, 6.0), n)


def skewed(rng: np.random.Generator, n: int) -> Array:
    """Hard batches rather than easy ones: a gamma noise."""
    shape = rng.uniform(2.0, 8.0)
    return (rng.gamma(shape, size=n) - shape) / math.sqrt(shape)


def remembering(rng: np.random.Generator, n: int) -> Array:
    """A first-order memory, as an order of the data makes it."""
    rho = rng.uniform(0.3, 0.85)
    noise = rng.standard_normal(n)
    for row in range(1, n):
        noise[row] = rho * noise[row - 1] + math.sqrt(1 - rho**2) * noise[row]
    return noise


def wandering(rng: np.random.Generator, n: int) -> Array:
    """White noise on a slow swing of about its own size."""
    life = rng.uniform(20.0, 200.0)
    rho, swing = math.exp(-1.0 / life), np.empty(n)
    swing[0] = rng.standard_normal()
    steps = rng.standard_normal(n)
    for row in range(1, n):
        swing[row] = rho * swing[row - 1] + math.sqrt(1 - rho**2) * steps[row]
    return rng.standard_normal(n) + rng.uniform(0.3, 1.0) * swing


def changing(rng: np.random.Generator, n: int) -> Array:
    """Stretches of another size: sources of data that differ."""
    size = np.ones(n)
    row = 0
    while row < n:
        length = int(rng.integers(20, 200))
        size[row : row + length] = rng.uniform(0.6, 1.6)
        row += length
    return size * rng.standard_normal(n)


NOISES: tuple[Callable[[np.random.Generator, int], Array], ...] = (
    white, heavy, skewed, remembering, wandering, changing,
)  # fmt: skip


def _unit(noise: Array, farthest: float = FARTHEST) -> Array:
    noise = noise - np.median(noise)
    noise = noise / (MAD * np.median(np.abs(noise)))
    return np.clip(noise, -FARTHEST, farthest)


# ---------------------------------------------------------------- learning curves


def power_law(rng: np.random.Generator, n: int) -> Array:
    """A language model from scratch."""
    age = np.arange(n) + rng.uniform(1, 30)
    return rng.uniform(0.5, 2.5) + rng.uniform(3.0, 8.0) * (age / age[0]) ** -rng.uniform(0.2, 0.8)


def toy(rng: np.random.Generator, n: int) -> Array:
    """A tiny model on a tiny task: from ln V to nearly nothing within a hundred rows or so."""
    life = rng.uniform(8.0, 60.0)
    return rng.uniform(0.02, 0.6) + rng.uniform(2.0, 7.0) * np.exp(-np.arange(n) / life)


def resumed(rng: np.random.Generator, n: int) -> Array:
    """The middle of a long run."""
    return rng.uniform(1.5, 3.0) * (1.0 + np.arange(n) / rng.uniform(20_000, 200_000)) ** -0.2


def fine_tuning(rng: np.random.Generator, n: int) -> Array:
    """A quick gain, then little."""
    return rng.uniform(0.3, 1.5) + rng.uniform(0.2, 1.5) * np.exp(-np.arange(n) / (n * rng.uniform(0.02, 0.3)))


def two_stages(rng: np.random.Generator, n: int) -> Array:
    """A plateau that ends when a skill is learnt."""
    at, width = n * rng.uniform(0.2, 0.6), rng.uniform(8, 40)
    base = power_law(rng, n)
    return base * np.exp(rng.uniform(0.1, 0.5) / (1.0 + np.exp((np.arange(n) - at) / width)))


def decayed(rng: np.random.Generator, n: int) -> Array:
    """Warm-up, stable, decay: the loss falls faster while the rate does."""
    share = np.clip((np.arange(n) / n - 0.8) / 0.2, 0.0, 1.0)
    return power_law(rng, n) * np.exp(-rng.uniform(0.03, 0.15) * share)


def warmed(rng: np.random.Generator, n: int) -> Array:
    """A loss that stands or rises a little while the rate warms up."""
    hump = rng.uniform(0.0, 0.08) * np.exp(-(((np.arange(n) - rng.uniform(10, 40)) / rng.uniform(6, 20)) ** 2))
    return power_law(rng, n) * np.exp(hump)


TRENDS: tuple[Callable[[np.random.Generator, int], Array], ...] = (
    power_law, toy, resumed, fine_tuning, two_stages, decayed, warmed,
)  # fmt: skip


# ---------------------------------------------------------------- records


def odd(rng: np.random.Generator, *, shortest: int = 60) -> Record:
    """A healthy record of one of these shapes."""
    n = int(rng.integers(shortest, 300)) if rng.random() < 0.4 else int(np.exp(rng.uniform(np.log(300), np.log(5000))))
    trend, noise = TRENDS[int(rng.integers(len(TRENDS)))], NOISES[int(rng.integers(len(NOISES)))]
    spacing = int(rng.choice([1, 1, 10, 25]))
    first = int(rng.integers(5_000, 80_000)) // spacing * spacing if trend is resumed else spacing
    scale = float(np.exp(rng.uniform(np.log(0.003), np.log(0.2))))
    loss = trend(rng, n) * np.exp(scale * _unit(noise(rng, n), max(6.0, min(FARTHEST, LARGEST / scale))))
    grad_noise = float(rng.uniform(0.06, 0.4))
    shape = NOISES[int(rng.integers(len(NOISES)))]
    course = np.exp(rng.uniform(-1.0, 1.5) * (np.arange(n) / n) ** rng.uniform(0.5, 2.0))
    start = 1.0 + (0.0 if trend is resumed else rng.uniform(0.0, 10.0)) * np.exp(-np.arange(n) / rng.uniform(4, 30))
    norm = np.exp(rng.uniform(-3, 3)) * course * start * np.exp(grad_noise * _unit(shape(rng, n)))
    record = Record(
        rng, first + spacing * np.arange(n), loss, norm, _rate(rng, n, trend), scale, grad_noise,
        name=f"{trend.__name__}/{noise.__name__}",
    )  # fmt: skip
    record.digits = int(rng.choice([3, 4, 5, 17]))
    if rng.random() < 0.25:
        record.grad_norm = None
    return record


def _rate(rng: np.random.Generator, n: int, trend: Callable[..., Array]) -> Array:
    row = np.arange(n)
    ramp = np.minimum(1.0, (row + 1) / max(1.0, rng.uniform(0.01, 0.1) * n)) if trend is not resumed else np.ones(n)
    if trend is decayed:
        return 1e-3 * ramp * np.clip((1.0 - row / n) / 0.2, 0.01, 1.0)
    return 3e-4 * ramp * (0.55 + 0.45 * np.cos(np.pi * row / n))


def _with(record: Record, kind: str, row: int, last: int, sigmas: float) -> Record:
    last = min(last, len(record.steps) - 1)
    return replace(
        record,
        name=f"{kind} in {record.name}",
        onset=int(record.steps[row]),
        last=int(record.steps[last]),
        sigmas=sigmas,
    )


def _row(record: Record) -> int:
    return max(30, int(len(record.steps) * record.rng.uniform(0.3, 0.85)))


def _lift(record: Record, row: int, sigmas: float, shape: Array) -> None:
    lift = max(sigmas * record.noise, 0.025) * shape
    record.loss = record.loss * np.exp(np.concatenate([np.zeros(row), lift])[: len(record.loss)])


def bump(rng: np.random.Generator) -> Record:
    """Up within a row, back over some."""
    record = odd(rng, shortest=90)
    row, sigmas, life = _row(record), float(np.exp(rng.uniform(np.log(8), np.log(40)))), rng.uniform(3, 30)
    _lift(record, row, sigmas, np.exp(-np.arange(len(record.steps) - row) / life))
    if record.grad_norm is not None and rng.random() < 0.6:
        shape = np.exp(-np.arange(len(record.steps) - row) / life)
        record.grad_norm[row:] *= np.exp(rng.uniform(1.0, 4.0) * shape)
    return _with(record, "bump", row, row + int(3 * life), sigmas)


def climb(rng: np.random.Generator) -> Record:
    """Up over some rows, and never back."""
    record = odd(rng, shortest=90)
    row, sigmas = _row(record), float(np.exp(rng.uniform(np.log(8), np.log(60))))
    ramp = np.minimum(1.0, (1 + np.arange(len(record.steps) - row)) / rng.integers(1, 10))
    _lift(record, row, sigmas, ramp * max(1.0, 0.4 / (sigmas * record.noise)))
    return _with(record, "climb", row, len(record.steps), sigmas)


def step_up(rng: np.random.Generator) -> Record:
    """Another level from one row on, four sigmas or more away."""
    record = odd(rng, shortest=160)
    row, sigmas = int(len(record.steps) * rng.uniform(0.3, 0.7)), float(np.exp(rng.uniform(np.log(4.5), np.log(15))))
    _lift(record, row, sigmas, np.ones(len(record.steps) - row))
    return _with(record, "step", row, len(record.steps), sigmas)


def lost(rng: np.random.Generator) -> Record:
    """Not finite for some rows or for good, or a filtered NaN."""
    record = odd(rng, shortest=90)
    row = _row(record)
    end = len(record.steps) if rng.random() < 0.6 else row + int(rng.integers(1, 4))
    kind = rng.random()
    if record.grad_norm is None or kind < 0.4:
        record.loss[row:end] = rng.choice([np.nan, np.inf])
    else:
        record.grad_norm[row:end] = np.nan
        record.loss[row:end] = 0.0
    return _with(record, "lost", row, end - 1, math.inf)


def fall(rng: np.random.Generator) -> Record:
    """Down at once by a third or more, and it stays: a leak or broken labels."""
    record = odd(rng, shortest=120)
    row = _row(record)
    depth = max(rng.uniform(0.4, 2.0), 8.0 * record.noise)
    record.loss[row:] *= np.exp(-depth)
    return _with(record, "fall", row, len(record.steps), depth / record.noise)


def still(rng: np.random.Generator) -> Record:
    """The same loss again and again."""
    record = odd(rng, shortest=120)
    record.digits = int(rng.choice([5, 6, 17]))
    row = _row(record)
    record.loss[row:] = record.loss[row]
    return _with(record, "still", row, len(record.steps), math.inf)


def norm_times(rng: np.random.Generator) -> Record:
    """The gradient norm alone, by a clean factor: accumulation, ranks or shards."""
    record = odd(rng, shortest=160)
    if record.grad_norm is None:
        record.grad_norm = np.exp(record.grad_noise * rng.standard_normal(len(record.steps)))
    row = int(len(record.steps) * rng.uniform(0.35, 0.7))
    factor = float(rng.choice([2.0, math.sqrt(8.0), 4.0, 8.0, 16.0]))
    while math.log(factor) < 4.5 * record.grad_noise:
        factor *= 2.0
    record.grad_norm[row:] *= factor
    return _with(record, "norm", row, len(record.steps), math.log(factor) / record.grad_noise)


INCIDENTS: tuple[Callable[[np.random.Generator], Record], ...] = (
    bump, climb, step_up, lost, fall, still, norm_times,
)  # fmt: skip


def healthy_records(count: int, seed: int) -> list[Record]:
    """Records without an incident, reproducible for a seed."""
    return [odd(np.random.default_rng([seed, 0, number])) for number in range(count)]


def records_with_incidents(per_kind: int, seed: int) -> list[Record]:
    """Records with one, reproducible for a seed."""
    return [
        kind(np.random.default_rng([seed, 1 + place, number]))
        for place, kind in enumerate(INCIDENTS)
        for number in range(per_kind)
    ]
