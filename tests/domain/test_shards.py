"""Is work divided whole, evenly, and the same way by everybody?"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.shards import Shard, Unit, share

UNITS = st.lists(
    st.builds(Unit, st.integers(0, 5), st.text("abc/", min_size=0, max_size=4), st.integers(0, 1 << 40)),
    max_size=40,
    unique_by=lambda u: (u.checkpoint, u.path),
)


@given(UNITS, st.integers(1, 9), st.randoms())
def test_every_unit_is_in_exactly_one_shard_whatever_the_order(
    units: list[Unit], count: int, rng: random.Random
) -> None:
    parts = share(units, count)
    assert len(parts) == count
    assert sorted(u.path for part in parts for u in part) == sorted(u.path for u in units)
    shuffled = list(units)
    rng.shuffle(shuffled)
    assert share(shuffled, count) == parts


@given(UNITS, st.integers(1, 9))
def test_no_shard_has_more_than_a_fair_share_and_the_largest_unit(units: list[Unit], count: int) -> None:
    loads = [sum(u.num_bytes for u in part) for part in share(units, count)]
    fair = sum(u.num_bytes for u in units) / count
    assert max(loads) <= fair + max((u.num_bytes for u in units), default=0)


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "1/", "/2", "1/0", "a/b", "-1/2", "1/2/3", "1 /2", "٣/٤"])
def test_what_is_no_part_of_a_whole_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no part of a whole"):
        Shard.parse(text)


@given(st.integers(1, 999), st.integers(0, 999))
def test_a_shard_comes_back_from_its_text(number: int, more: int) -> None:
    shard = Shard(number, number + more)
    assert Shard.parse(str(shard)) == shard
