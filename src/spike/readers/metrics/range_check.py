"""Was every key of these lines read? Lines and colons of a file, counted by range, for exactness checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

_BLOCK = 1 << 20
_NEWLINE, _COLON = ord("\n"), ord(":")


@dataclass(frozen=True, slots=True)
class Ranges:
    """Consecutive ranges of lines."""

    offsets: list[int]
    """Byte at which each range begins, and the end of the last."""
    colons: list[int]
    """Colons in each range."""
    num_lines: int
    """Lines of the whole file, an unfinished last one included."""
    has_blank_lines: bool
    is_torn: bool
    """The last line has no newline."""


def count_colons(stream: BinaryIO) -> int:
    """Colons in the whole file."""
    stream.seek(0)
    count = 0
    while block := stream.read(_BLOCK):
        count += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _COLON))
    return count


def measure(stream: BinaryIO, boundaries: Sequence[int]) -> Ranges:
    """The ranges between these line numbers (ascending, 0-based, from 0); lines behind the last are not looked at."""
    stream.seek(0)
    offsets, colons_before = [0], [0]
    at = lines = colons = 0
    has_blank, before = False, b"\n"
    left = list(boundaries[1:])
    while raw := stream.read(_BLOCK):
        block = np.frombuffer(raw, np.uint8)
        ends = np.flatnonzero(block == _NEWLINE)
        # A line of one byte counts as blank, because it may be a carriage return; no row of metrics is that short.
        has_blank = has_blank or bool((np.diff(ends) <= 2).any()) or b"\n\n" in before + raw[:1]
        is_colon = block == _COLON
        while left and left[0] <= lines + ends.size:
            end = int(ends[left.pop(0) - lines - 1]) + 1
            offsets.append(at + end)
            colons_before.append(colons + int(np.count_nonzero(is_colon[:end])))
        lines += int(ends.size)
        colons += int(np.count_nonzero(is_colon))
        at, before = at + len(raw), raw[-1:]
    is_torn = at > 0 and before != b"\n"
    offsets += [at] * len(left)
    colons_before += [colons] * len(left)
    return Ranges(offsets, np.diff(colons_before).tolist(), lines + is_torn, has_blank, is_torn)
