"""Does judging thousands of rows at once give what judging each of them on its own gives?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench.curves import labelled
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.domain.detect.curves import learning

from spike.domain.detect import tail
from spike.domain.detect.constants import Constants
from spike.domain.detect.departures import Pass, departures
from spike.domain.detect.recent import Recent
from spike.domain.detect.track import track
from spike.domain.signals import GRAD_NORM, LOSS, Series

CONSTANTS = Constants()


def found(passed: Pass) -> list[tuple[int, int, int, int, bool, bool]]:
    return [(d.direction, d.onset, d.peak, d.last, d.is_open, d.is_settled) for d in passed.departures]


def assert_same(series: Series) -> int:
    """The same departures with the same figures both ways; returns their number."""
    made = track(series, CONSTANTS)
    together, apart = departures(made, CONSTANTS), departures(made, CONSTANTS, many_at_once=False)
    assert found(together) == found(apart)
    assert together.hard_rows == apart.hard_rows
    for a, b in zip(together.departures, apart.departures, strict=True):
        assert (a.sigmas, a.centre, a.scale) == pytest.approx((b.sigmas, b.centre, b.scale), rel=1e-6, abs=1e-9)
    return len(together.departures)


def test_generated_runs_of_every_family_give_the_same_departures_both_ways() -> None:
    judged = total = 0
    for record in labelled(1, seed=41):
        for series in record.signals().series:
            if series.name in (LOSS, GRAD_NORM):
                end = min(series.steps.size, 900)  # row by row is slow
                total += assert_same(replace(series, steps=series.steps[-end:], values=series.values[-end:]))
                judged += 1
    assert judged >= 45
    assert total >= 15


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    noise=st.floats(0.001, 0.3),
    freedom=st.sampled_from([2.5, 4.0, 30.0]),
    rho=st.sampled_from([0.0, 0.6]),
    holes=st.booleans(),
)
def test_any_noise_gives_the_same_departures_both_ways(
    seed: int, noise: float, freedom: float, rho: float, holes: bool
) -> None:
    rng = np.random.default_rng(seed)
    steps, loss, _ = learning(700, noise=0.0)
    white = rng.standard_t(freedom, 700)
    for row in range(1, 700):
        white[row] = rho * white[row - 1] + np.sqrt(1 - rho**2) * white[row]
    loss *= np.exp(noise * white)
    if holes:
        loss[rng.choice(700, 12, replace=False)] = rng.choice([np.nan, np.inf, 0.0], 12)
    assert_same(Series(LOSS, steps, loss))


def values(*numbers: float) -> NDArray[np.float64]:
    return np.array(numbers, dtype=float)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.lists(st.floats(-9, 9), max_size=40), st.integers(0, 5)), max_size=20))
def test_a_bounded_memory_keeps_the_newest_however_they_came(changes: list[list[float] | int]) -> None:
    memory, kept = Recent(16), []
    for change in changes:
        if isinstance(change, int):
            memory.drop(change)
            kept = kept[: max(0, len(kept) - change)]
        elif len(change) == 1:
            memory.append(change[0])
            kept = [*kept, *change][-16:]
        else:
            memory.extend(values(*change))
            kept = [*kept, *change][-16:]
        assert memory.last().tolist() == kept
        assert memory.last(3).tolist() == kept[-3:]


def test_the_limit_of_a_normal_noise_is_near_its_own_and_a_heavy_tail_is_farther_out() -> None:
    rng = np.random.default_rng(0)
    normal = tail.rare(rng.standard_normal((1, 2048)), 0.01)
    heavy = tail.rare(rng.standard_t(3, (1, 2048)), 0.01)
    assert 3.9 < float(normal[0][0]) < 6.0
    assert 3.9 < float(normal[1][0]) < 6.0
    assert min(float(heavy[0][0]), float(heavy[1][0])) > 8.0


def test_a_tail_is_fitted_more_seldom_the_longer_it_is_and_never_skips() -> None:
    at, found_at = 0, []
    while at < 20_000:
        at = tail.next_refit(at)
        found_at.append(at)
    gaps = np.diff(found_at)
    assert found_at[0] == tail.FEWEST_ROWS
    assert gaps.max() == tail.LAST_REFIT
    assert bool(np.all(np.diff(gaps) >= 0))
    assert all(tail.next_refit(n - 1) == n for n in found_at)
