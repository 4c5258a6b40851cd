"""Is what ranks log judged rightly: which part, which are late, and what may differ?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.measured import NotMeasured
from spike.domain.rank_sync import Extent, Gathered, gather, judge, ranges
from spike.domain.signals import Series, Signals


def job(ranks: int, name: str = "lr", steps: int = 10) -> list[Series]:
    return [Series(name, np.arange(1, steps + 1), np.full(steps, 1e-3), rank) for rank in range(ranks)]


def test_the_majority_comes_first_and_the_minority_is_named() -> None:
    series = job(5)
    series[3].values[6:] = 2e-3
    sync = judge(gather(Signals(tuple(series))))
    (parting,) = sync.partings
    assert sync.agree is False
    assert (parting.quantity, parting.step, parting.num_steps, parting.minority) == ("learning rate", 7, 4, (3,))
    assert not parting.is_tie


def test_of_two_ranks_neither_is_called_right() -> None:
    series = job(2)
    series[1].values[2] = 5.0
    (parting,) = judge(gather(Signals(tuple(series)))).partings
    assert parting.is_tie
    assert parting.minority == (1,)


def test_what_each_rank_counts_for_itself_is_no_disagreement() -> None:
    series = job(6) + [Series("tokens", np.arange(1, 11), np.arange(10) * (100.0 + r), r) for r in range(6)]
    sync = judge(gather(Signals(tuple(series))))
    assert sync.agree is True
    assert "tokens" not in sync.compared
    assert any("local count" in note for note in sync.notes)
    series[6 + 2].values[:] = series[6].values
    series = job(6) + [Series("tokens", np.arange(1, 11), np.arange(10) * (100.0 + (r == 4)), r) for r in range(6)]
    assert [p.minority for p in judge(gather(Signals(tuple(series)))).partings] == [(4,)]


def test_ranks_that_log_at_different_intervals_have_no_gaps() -> None:
    series = job(3)
    series[2] = Series("lr", np.array([1, 6]), np.full(2, 1e-3), 2)
    sync = judge(gather(Signals(tuple(series))))
    assert sync.agree is True
    assert any("another interval" in note for note in sync.notes)


@pytest.mark.parametrize("series", [(), tuple(job(1)), (Series("loss", np.arange(3), np.ones(3)),)])
def test_fewer_than_two_ranks_measure_nothing(series: tuple[Series, ...]) -> None:
    assert isinstance(judge(gather(Signals(series))).agree, NotMeasured)


def test_ranks_that_end_earlier_than_most_are_late_and_that_is_no_disagreement() -> None:
    extents = {r: Extent(1, 300 if r != 7 else 250, 300 if r != 7 else 250) for r in range(10)}
    sync = judge(Gathered(extents, ("learning rate",), world=12))
    assert (sync.agree, sync.late, sync.last_step, sync.missing) == (True, ((250, (7,)),), 300, (10, 11))


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_exactly_the_ranks(ranks: set[int]) -> None:
    told: set[int] = set()
    for part in filter(None, ranges(ranks).split(", ")):
        first, _, last = part.partition("-")
        told |= set(range(int(first), int(last or first) + 1))
    assert told == ranks
