"""Which part of the reading does each of n processes do? The same answer in every process, balanced by bytes."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One of `count` parts."""

    number: int
    """1 for the first."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard "2/5". Raises `ValueError`."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"{text!r} is no part of a whole, such as 2/5")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Unit:
    """What cannot be divided between processes."""

    checkpoint: int
    """Position in the plan."""
    path: str
    """One file of it, encoded; "" is the whole checkpoint, hashed and judged in one pass."""
    num_bytes: int


def share(units: Sequence[Unit], count: int) -> tuple[tuple[Unit, ...], ...]:
    """The units of each of `count` shards; each unit is in exactly one.

    Largest first, always to the shard with the least: no shard gets more than a fair share and the largest unit.
    """
    order = sorted(units, key=lambda u: (-u.num_bytes, u.checkpoint, u.path))
    loads = [(0, shard) for shard in range(count)]
    parts: list[list[Unit]] = [[] for _ in range(count)]
    for unit in order:
        load, shard = heapq.heappop(loads)
        parts[shard].append(unit)
        heapq.heappush(loads, (load + unit.num_bytes, shard))
    return tuple(tuple(part) for part in parts)
