from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.reduce import reduce_items
from spike.domain.samples import suspicious


def failing(*culprits: int) -> Callable[[tuple[int, ...]], bool | None]:
    return lambda kept: any(c in kept for c in culprits)


def test_a_good_guess_needs_two_tests() -> None:
    found = reduce_items(range(8), failing(2, 5), guess=(2, 5))
    assert (found.items, found.is_separated, found.num_tests) == ((2, 5), True, 2)


def test_a_wrong_guess_is_dropped_and_the_culprit_found_by_splitting() -> None:
    found = reduce_items(range(8), failing(6), guess=(1,))
    assert (found.items, found.is_separated) == ((6,), True)


@given(st.sets(st.integers(0, 15), min_size=1, max_size=3))
def test_every_culprit_that_suffices_alone_is_found(culprits: set[int]) -> None:
    found = reduce_items(range(16), failing(*culprits), max_tests=64)
    assert set(found.items) == culprits
    assert found.is_separated


def test_two_samples_that_only_hurt_together_are_reported_as_their_group() -> None:
    found = reduce_items(range(16), lambda kept: 1 in kept and 3 in kept, max_tests=64)
    assert set(found.items) == {0, 1, 2, 3}


def test_the_whole_batch_is_no_answer() -> None:
    found = reduce_items(range(8), lambda kept: len(kept) > 1, max_tests=64)
    assert found.items == ()
    assert "as a whole" in found.reason


def test_a_cause_that_is_spread_evenly_is_given_up_after_the_quarters() -> None:
    found = reduce_items(range(32), lambda kept: True)
    assert (found.items, found.num_tests) == ((), 6)


def test_a_contiguous_half_is_found_without_a_guess() -> None:
    found = reduce_items(range(32), lambda kept: any(8 <= k < 24 for k in kept), max_tests=16)
    assert found.items == tuple(range(8, 24))


def test_a_spent_budget_is_said_and_nothing_is_claimed() -> None:
    found = reduce_items(range(64), failing(63), max_tests=2)
    assert found.items == ()
    assert "budget" in found.reason


def test_a_rest_that_still_fails_is_admitted() -> None:
    found = reduce_items(range(4), lambda kept: 0 in kept or kept == (1, 2, 3), guess=(0,), max_tests=64)
    assert found.items != (0,) or not found.is_separated


def _text(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.choice(np.arange(97, 123), size=(rows, 64), p=np.arange(1, 27) / np.arange(1, 27).sum())


def test_random_bytes_and_a_repeated_token_look_unlike_text() -> None:
    rng = np.random.default_rng(3)
    batch = _text(rng, 8)
    batch[2] = rng.integers(0, 256, 64)
    batch[5] = 101
    assert suspicious(batch, [_text(rng, 8) for _ in range(4)]) == (2, 5)


def test_healthy_samples_are_not_suspected() -> None:
    rng = np.random.default_rng(4)
    assert suspicious(_text(rng, 16), [_text(rng, 16) for _ in range(4)]) == ()


def test_without_healthy_batches_nothing_is_suspected() -> None:
    assert suspicious(np.zeros((4, 8), dtype=np.int64), []) == ()


def test_numbers_far_from_the_healthy_ones_are_suspected_and_healthy_ones_are_not() -> None:
    rng = np.random.default_rng(5)
    healthy = [rng.normal(size=(32, 1)) for _ in range(3)]
    batch = rng.normal(size=(32, 1))
    assert suspicious(batch, healthy) == ()
    batch[4:12] += 400.0
    assert suspicious(batch, healthy) == tuple(range(4, 12))
    batch[20] = np.nan
    assert 20 in suspicious(batch, healthy)
