"""Which element was flipped, and which of its bits? From the last good checkpoint and the first one after the onset."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spike.actions.experiment.bench import Bench
from spike.domain.checkpoint import Role
from spike.domain.compare import BitFlip, ValueComparison, compare_scans
from spike.readers.checkpoints import inspect_checkpoint, lazy_tensors
from spike.readers.checkpoints.contract import LazyTensor

_FLOATS = {"float16": (np.float16, 10, 5), "float32": (np.float32, 23, 8), "float64": (np.float64, 52, 11)}
"""numpy type, mantissa bits, exponent bits; bfloat16 has no numpy type and is read through float32."""


@dataclass(frozen=True, slots=True)
class Flip:
    """One flipped element of a parameter."""

    name: str
    index: int
    """Position in the flattened tensor."""
    mask: int
    """Bits that turn the healthy element into one of the corrupt element's magnitude."""
    before: float
    after: float


def find_flip(bench: Bench) -> Flip | None:
    """The only parameter element whose exponent jumped, or None where there is none or there are several.

    Training went on after the flip, so the mantissa has moved; what is looked for is the exponent bit that takes the
    healthy value nearest to the corrupt one's magnitude.
    """
    facts = bench.investigation.case.facts
    if facts.last_good is None or not facts.suspect:
        return None
    before, after = facts.last_good, facts.suspect[0]
    jumped = {
        t.name for t in compare_scans(bench.scan(before), bench.scan(after)).suspicious if t.role is Role.PARAMETER
    }
    old, new = (_parameters(bench, p.pinned, jumped) for p in (before, after))
    sizes = {t.name: t for t in bench.scan(before).tensors}
    found: list[tuple[BitFlip, LazyTensor]] = []
    for name in sorted(jumped & old.keys() & new.keys()):
        comparison = ValueComparison(sizes[name], sizes[name])
        for left, right in zip(old[name].blocks(), new[name].blocks(), strict=True):
            comparison.add(left, right)
        found += [(flip, old[name]) for flip in comparison.result().flips]
    if len(found) != 1:
        return None
    flip, tensor = found[0]
    mask = _mask(int(tensor.read().reshape(-1)[flip.element]), tensor.dtype, flip.after)
    return Flip(flip.tensor, flip.element, mask, flip.before, flip.after) if mask else None


def _parameters(bench: Bench, pinned: str, names: set[str]) -> dict[str, LazyTensor]:
    checkpoint = inspect_checkpoint(bench.investigation.case.path / pinned)
    return {t.name: t for t in lazy_tensors(checkpoint) if t.role is Role.PARAMETER and t.name in names}


def _mask(bits: int, dtype: str, wanted: float) -> int:
    """The single exponent bit (or 0) whose flip comes nearest to the wanted magnitude."""
    width, mantissa, exponent = _layout(dtype)
    if not width:
        return 0
    best, distance = 0, math.inf
    for bit in range(mantissa, mantissa + exponent):
        value = abs(_value(bits ^ (1 << bit), dtype))
        off = 0.0 if value == abs(wanted) else abs(_log2(value) - _log2(abs(wanted)))
        if off < distance:
            best, distance = 1 << bit, off
    return best if distance < 1.0 else 0


def _layout(dtype: str) -> tuple[int, int, int]:
    if dtype == "bfloat16":
        return 16, 7, 8
    kind = _FLOATS.get(dtype)
    return (np.dtype(kind[0]).itemsize * 8, kind[1], kind[2]) if kind else (0, 0, 0)


def _value(bits: int, dtype: str) -> float:
    if dtype == "bfloat16":
        return float(np.array([bits << 16], dtype=np.uint32).view(np.float32)[0])
    kind = _FLOATS[dtype][0]
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(kind).itemsize]
    return float(np.array([bits], dtype=unsigned).view(kind)[0])


def _log2(value: float) -> float:
    if value == 0:
        return -2000.0
    return math.log2(value) if math.isfinite(value) else 2000.0
