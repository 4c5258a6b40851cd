"""What happened between two checkpoints? Digests first, then the values of every tensor that moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from spike.actions.checks.check_scene import Scene
from spike.domain.checkpoint import Checkpoint, CheckpointScan, Role, TensorFacts
from spike.domain.compare import (
    BitFlip,
    ScanComparison,
    ValueChange,
    ValueComparison,
    by_identity,
    compare_scans,
    is_float,
    is_same,
)
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints import LazyTensor, lazy_tensors


@dataclass(frozen=True, slots=True)
class Compared:
    """Two checkpoints, compared by digest and where needed by value."""

    before: Checkpoint
    after: Checkpoint
    scans: ScanComparison
    values: tuple[ValueChange, ...]

    def flips(self) -> tuple[BitFlip, ...]:
        """Elements that jumped."""
        return tuple(flip for change in self.values for flip in change.flips)


def compare(scene: Scene, before: Checkpoint, after: Checkpoint) -> Compared:
    """Compare two checkpoints of a scene: digests and statistics, then the values of what moved."""
    old, new = scene.scan(before), scene.scan(after)
    return Compared(before, after, compare_scans(old, new), tuple(compare_values(before, after, old, new)))


def compare_values(
    before: Checkpoint, after: Checkpoint, old: CheckpointScan, new: CheckpointScan
) -> Iterator[ValueChange]:
    """How much each floating-point tensor that moved has changed; read block by block, largest change not first.

    Tensors that cannot be read are left out: the scans list them as unreadable.
    """
    facts_before, facts_after = by_identity(old.tensors), by_identity(new.tensors)
    wanted = {
        key
        for key, fact in facts_after.items()
        if key in facts_before
        and is_float(fact)
        and fact.role is not Role.OTHER
        and (fact.dtype, fact.shape) == (facts_before[key].dtype, facts_before[key].shape)
        and not is_same(facts_before[key], fact)
    }
    try:
        earlier = dict(_by_key(lazy_tensors(before), facts_before))
        later = dict(_by_key(lazy_tensors(after), facts_after))
    except InputUnreadable:
        return
    for key in facts_after:
        if key not in wanted or key not in earlier or key not in later:
            continue
        comparison = ValueComparison(facts_before[key], facts_after[key])
        try:
            for a, b in zip_longest(earlier[key].blocks(), later[key].blocks()):
                if a is None or b is None or len(a) != len(b):
                    raise InputUnreadable("the two tensors end at different places")
                comparison.add(a, b)
        except InputUnreadable:
            continue
        yield comparison.result()


def find_flips(scene: Scene, before: Checkpoint, after: Checkpoint) -> tuple[BitFlip, ...]:
    """Single elements whose exponent jumped between two checkpoints, parameters first."""
    flips = compare(scene, before, after).flips()
    return tuple(sorted(flips, key=lambda flip: (flip.role is not Role.PARAMETER, -abs(flip.power))))


def _by_key(
    tensors: Iterator[LazyTensor], facts: dict[tuple[str, str, str, str], TensorFacts]
) -> Iterator[tuple[tuple[str, str, str, str], LazyTensor]]:
    for tensor in tensors:
        short = (tensor.role.value, tensor.name, tensor.key)
        for key in ((*short, ""), (*short, tensor.file)):
            if key in facts:
                yield key, tensor
