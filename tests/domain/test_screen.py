"""Does the quick look at new rows let everything through that the detector would call an incident at once?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spike.domain.detect import detect
from spike.domain.screen import is_worth_a_look
from spike.domain.signals import GRAD_NORM, LOSS, SKIPPED, Series, Signals


def course(seed: int, rows: int, noise: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (2.0 + 4.0 * (1.0 + np.arange(rows) / 50.0) ** -0.5) * np.exp(noise * rng.standard_normal(rows))


def test_what_the_detector_finds_in_the_newest_rows_has_always_called_it() -> None:
    found = 0
    for seed in range(120):
        rng = np.random.default_rng(1000 + seed)
        name, noise = (LOSS, 0.02) if seed % 2 else (GRAD_NORM, 0.15)
        values = course(seed, int(rng.integers(60, 500)), noise)
        num_new = int(rng.integers(1, 12))
        values[-int(rng.integers(1, num_new + 1))] *= float(np.exp(noise * rng.uniform(4, 20)))
        steps = np.arange(1, values.size + 1)
        incidents = detect(Signals((Series(name, steps, values),))).incidents
        if any(i.onset_step > values.size - num_new for i in incidents):
            found += 1
            assert is_worth_a_look(name, values, num_new), seed
    assert found >= 40


def test_healthy_rows_seldom_call_it() -> None:
    values = course(5, 4000, 0.02)
    calls = [is_worth_a_look(LOSS, values[:end], 10) for end in range(500, 4000, 10)]
    assert len(calls) == 350
    assert sum(calls) <= 7


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [LOSS, GRAD_NORM, SKIPPED])
def test_a_value_that_is_not_finite_always_calls_it(bad: float, name: str) -> None:
    values = course(1, 300, 0.02)
    values[-3] = bad
    assert is_worth_a_look(name, values, 5)
    assert not is_worth_a_look(name, values, 0)


def test_a_skipped_step_calls_it_and_an_applied_one_does_not() -> None:
    values = np.zeros(100)
    assert not is_worth_a_look(SKIPPED, values, 10)
    values[-2] = 1.0
    assert is_worth_a_look(SKIPPED, values, 10)


@given(st.lists(st.floats(), min_size=0, max_size=300), st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_no_values_make_it_fail(values: list[float], num_new: int) -> None:
    assert is_worth_a_look(LOSS, np.asarray(values, dtype=np.float64), num_new) in (True, False)
