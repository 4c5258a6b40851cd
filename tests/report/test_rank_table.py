"""Is where the ranks part told in a screenful, whatever their number?"""

from __future__ import annotations

import json

import pytest

from spike.domain.rank_sync import QUANTITIES, Extent, Gathered, judge, ranges
from spike.report.rank_table import rank_lines, rank_payload


def gathered(ranks: int, per_host: int = 8) -> Gathered:
    """Ranks 8 to 15, one whole host, at another rate; rank 3 behind; the last two hosts silent."""
    extents = {r: Extent(1, 300 if r != 3 else 200, 300 if r != 3 else 200) for r in range(ranks)}
    rates = {r: "0.0002" if 8 <= r < 16 else "0.0003" for r in range(ranks)}
    hosts = {r: f"node{r // per_host:04d}" for r in range(ranks)}
    return Gathered(extents, ("learning rate",), {"learning rate": (140, 161, rates)}, hosts, ranks + 16)


@pytest.mark.parametrize("ranks", [24, 1024, 16384])
def test_the_minority_is_named_with_its_host_and_the_majority_is_counted(ranks: int) -> None:
    lines = rank_lines(judge(gathered(ranks)))
    assert lines == [
        f"ranks: {ranks:,} ranks on {ranks // 8:,} hosts, 300 steps: part at step 140, in the learning rate",
        "   learning rate, step 140 (161 steps from there on)",
        f"      0.0003: {ranks - 8:,} ranks",
        "      0.0002: 8 ranks, ranks 8-15 on all of node0001",
        f"   missing: ranks {ranks}-{ranks + 15}",
        "   ends at step 200, others at 300: rank 3 on node0000",
    ]


def test_however_much_differs_it_fits_a_screen() -> None:
    ranks = 16384
    extents = {r: Extent(1, 300 - r % 7, 300 - r % 7) for r in range(ranks)}
    values = {r: str(r % 997) for r in range(ranks)}
    parted = {q: (10 + i, 5, values) for i, q in enumerate(QUANTITIES)}
    hosts = {r: f"a-long-host-name-{r % 4096:05d}.cluster.example" for r in range(ranks)}
    sync = judge(Gathered(extents, QUANTITIES, parted, hosts, ranks + 4096, notes=("a", "b", "c")))
    lines = rank_lines(sync)
    assert len(lines) <= 20
    assert max(len(line) for line in lines) < 200
    payload = json.loads(json.dumps(rank_payload(sync), allow_nan=False))
    assert len(payload["partings"]) == len(QUANTITIES)
    assert sum(group["num_ranks"] for group in payload["partings"][0]["groups"]) == ranks


def test_ranks_that_agree_take_one_line() -> None:
    extents = {r: Extent(1, 9, 9) for r in range(64)}
    assert rank_lines(judge(Gathered(extents, ("learning rate", "loss scale")))) == [
        "ranks: 64 ranks, 9 steps: agree in learning rate, loss scale"
    ]
    assert ranges([5]) == "5"
