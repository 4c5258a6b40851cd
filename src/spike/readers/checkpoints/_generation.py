"""Are all files of a checkpoint of one save? What the files say of themselves, held against each other.

Two kinds of witness. A file that stores the step it was written at, beside its peers of other ranks: they were written
together, so a difference is proof. And the optimizer's counters of updates: files that disagree only there may hold
parameters that began to train later, so that difference is a doubt, except where a stack steps all of them at once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from spike.domain.checkpoint import Integrity
from spike.readers.checkpoints._describe import count_of, is_counter
from spike.readers.checkpoints._parts import Parts
from spike.readers.checkpoints.contract import Damaged, LazyTensor

MAX_FILES = 64
"""Files whose counters are read, evenly spread; each costs a few small reads."""
COUNTERS_OF_A_FILE = 4

_DIGITS = re.compile(r"\d+")


def check_generation(parts: Parts, *, lockstep: bool = False) -> None:
    """Remember damage where the files contradict each other. `lockstep`: every file's optimizer takes every step."""
    for kind in _peers(parts.steps):
        _compare(parts, kind, "says step", is_proof=True)
    counters = dict(_counters(parts.contents.tensors))
    for kind in _peers(counters):
        _compare(parts, kind, "counts", is_proof=lockstep)


def _peers(said: dict[str, int]) -> Iterator[dict[str, int]]:
    """The files that differ in numbers only: one a rank."""
    kinds: dict[str, dict[str, int]] = defaultdict(dict)
    for name, step in sorted(said.items()):
        kinds[_DIGITS.sub("#", name)][name] = step
    yield from kinds.values()


def _compare(parts: Parts, said: dict[str, int], verb: str, *, is_proof: bool) -> None:
    if len(set(said.values())) < 2:
        return
    by_step: dict[int, list[str]] = defaultdict(list)
    for name, step in said.items():
        by_step[step].append(name)
    rarest, *_, usual = sorted(by_step, key=lambda step: len(by_step[step]))
    text = f"{by_step[rarest][0]}: mixed generations: it {verb} {rarest}, {by_step[usual][0]} {verb} {usual}"
    if is_proof:
        parts.damages.append(Damaged(text, Integrity.CORRUPT))
    else:
        parts.doubts.append(f"{text} updates (or its parameters began to train at another step)")


def _counters(tensors: list[LazyTensor]) -> Iterator[tuple[str, int]]:
    """(file, updates) of files all of whose sampled counters agree."""
    by_file: dict[str, list[LazyTensor]] = defaultdict(list)
    for tensor in tensors:
        if is_counter(tensor):
            by_file[tensor.file].append(tensor)
    if len(by_file) < 2:
        return
    for name in list(by_file)[:: max(1, len(by_file) // MAX_FILES)]:
        found = by_file[name]
        values = {count_of(tensor) for tensor in found[:: max(1, len(found) // COUNTERS_OF_A_FILE)]}
        value = values.pop()
        if not values and value is not None and value.is_integer():
            yield name, int(value)
