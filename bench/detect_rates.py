"""How fast is the detector, and after how many rows does it find a small lasting shift?"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from spike.domain.detect import detect
from spike.domain.incident import Kind
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, Series, Signals

ROUNDS = 5
"""Every round measures all of them one after the other; the medians of the ratios count."""

PEER_WINDOW = 200


def made(rows: int, seed: int, noise: Callable[[np.random.Generator, int], np.ndarray]) -> Signals:
    """A long run with this noise."""
    rng = np.random.default_rng(seed)
    index = np.arange(rows)
    columns = {
        LOSS: (2.0 + 4.0 * (1.0 + index / 200.0) ** -0.5) * np.exp(0.02 * noise(rng, rows)),
        GRAD_NORM: np.exp(0.15 * noise(rng, rows)),
        LEARNING_RATE: 5e-4 * (1.0 + np.cos(np.pi * index / rows)),
    }
    return Signals(tuple(Series(name, index + 1, values) for name, values in columns.items()))


def _remembering(rng: np.random.Generator, n: int) -> np.ndarray:
    noise = rng.standard_normal(n + 8)
    return sum(0.5**lag * noise[8 - lag : n + 8 - lag] for lag in range(8)) * np.sqrt(0.75)


NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "calm": lambda rng, n: rng.standard_normal(n),
    "heavy tails (t, 4)": lambda rng, n: rng.standard_t(4, n) / np.sqrt(2.0),
    "memory 0.5": _remembering,
}


def rolling(values: np.ndarray) -> np.ndarray:
    """The peer: a rolling median and MAD, and how far each value is from them."""
    windows = np.lib.stride_tricks.sliding_window_view(values, PEER_WINDOW)
    middle = np.median(windows, axis=1)
    spread = np.median(np.abs(windows - middle[:, None]), axis=1)
    return np.asarray((values[PEER_WINDOW - 1 :] - middle) / spread)


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def print_speed(rows: int = 300_000) -> None:
    """Judged points (loss and gradient norm) a second of processor time, and the ratio to the peer."""
    records = {name: made(rows, 3, noise) for name, noise in NOISES.items()}
    short, sample = made(2000, 3, NOISES["calm"]), records["calm"].series[0].values[:20_000]
    rates: dict[str, list[float]] = {name: [] for name in (*records, "peer")}
    windows: list[float] = []
    for _ in range(ROUNDS):
        rates["peer"].append(sample.size / _seconds(lambda: rolling(sample)))
        for name, signals in records.items():
            rates[name].append(2 * rows / _seconds(lambda signals=signals: detect(signals)))
        windows.append(_seconds(lambda: detect(short)))
    print(f"peer: rolling median and MAD over {PEER_WINDOW} rows, {np.median(rates['peer']):,.0f} points/s")
    for name in records:
        ratios = np.array(rates[name]) / np.array(rates["peer"])
        print(f"{name:20} {np.median(rates[name]):>12,.0f} judged points/s   {np.median(ratios):.1f} x the peer")
    print(f"three signals of 2,000 rows: {1e3 * np.median(windows):.1f} ms (least {1e3 * min(windows):.1f} ms)")


def print_shifts(seeds: int = 20) -> None:
    """Share of runs in which a lasting shift is told, by its size in sigmas and the rows behind it."""
    print("share found of a lasting shift of the loss, noise 0.01, 4,000 healthy rows before it")
    behind = (500, 1000, 2000, 5000)
    print("sigmas", *(f"{rows:>6} rows" for rows in behind))
    for sigmas in (0.0, 0.5, 1.0, 1.5, 2.0):
        shares = [np.mean([_is_found(sigmas, rows, 9001 + seed) for seed in range(seeds)]) for rows in behind]
        print(f"{sigmas:6.1f}", *(f"{share:11.2f}" for share in shares), "  (false alarms)" if sigmas == 0 else "")


def _is_found(sigmas: float, behind: int, seed: int) -> bool:
    rng, rows = np.random.default_rng(seed), 4000 + behind
    loss = (2.0 + 4.0 * (1.0 + np.arange(rows) / 50.0) ** -0.5) * np.exp(0.01 * rng.standard_normal(rows))
    loss[4000:] *= np.exp(0.01 * sigmas)
    found = detect(Signals((Series(LOSS, np.arange(1, rows + 1), loss),))).incidents
    return any(i.kind in (Kind.LEVEL_SHIFT, Kind.SLOW_DRIFT) for i in found)
