"""What happened to the tensors between two checkpoints, and does it look like training?

Training moves every trainable tensor by a little. What does not look like it: nothing moved, one part stayed while
the rest moved (a shard or an optimizer state of another generation), a tensor became zeros or subnormals, single
elements jumped by a power of two that no step size explains.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spike.domain.checkpoint import CheckpointScan, Role, TensorFacts

JUMP = 2.0**10
"""An element this many times the tensor's former largest magnitude did not get there by training: a step moves a
weight by about the learning rate, and weights of one tensor differ by less."""
MOMENT_JUMP = 2.0**24
"""Moments follow gradients: a squared gradient can grow by a factor of a million in an ordinary spike."""
COLLAPSE = 2.0**-40
"""A weight that shrank to less than this part of itself and did not become zero: crossing zero by chance leaves such
a remainder once in 10^12 elements."""
STANDS_OUT = 2.0**6
"""... and an element that a flip made large is this many times every other element of its tensor afterwards."""
FEW_ELEMENTS = 8
"""A flip is a single event. When more elements of one tensor jump, something wrote them."""
SUBNORMAL_SHARE = 0.5
"""More than half of a tensor below the smallest normal number is no state of a trained model."""

SECOND_MOMENTS = frozenset({"exp_avg_sq"})
DECAY_SLACK = 0.5
"""Moments kept in bfloat16 lose up to half a percent an update to rounding; half of the bound is far outside that."""
MIN_ROUNDED = 16
"""A few round numbers are no sign of a rounded tensor; this many in a row are."""

TensorId = tuple[str, str, str, str]
"""(role, name, key, file); the file only where several files hold a tensor of the same name."""


@dataclass(frozen=True, slots=True)
class StalePart:
    """A part of the later checkpoint that is byte by byte the earlier one's while the rest moved."""

    part: str
    """File name, or "moments" / "parameters" of a single file."""
    num_tensors: int
    num_moved_elsewhere: int
    first: str
    """Name of one of its tensors."""


@dataclass(frozen=True, slots=True)
class ScanComparison:
    """Two scans against each other, by digest and statistics."""

    num_compared: int
    num_parameters: int
    """Floating-point parameters in both."""
    unchanged: tuple[TensorFacts, ...]
    """Floating-point parameters whose bytes are equal."""
    zeroed: tuple[TensorFacts, ...]
    """Tensors that became all zeros."""
    subnormal: tuple[TensorFacts, ...]
    """Tensors that became mostly subnormal numbers."""
    nonfinite: tuple[TensorFacts, ...]
    """Tensors that hold NaN or infinities in the later checkpoint and did not before."""
    suspicious: tuple[TensorFacts, ...]
    """Tensors whose largest magnitude jumped: worth reading element by element."""
    added: tuple[TensorFacts, ...]
    removed: tuple[TensorFacts, ...]
    reshaped: tuple[tuple[TensorFacts, TensorFacts], ...]
    """(before, after) of another type or shape."""
    stale: tuple[StalePart, ...]

    @property
    def is_frozen(self) -> bool:
        """True where not a single weight moved: nothing was trained between the two."""
        return self.num_parameters > 0 and len(self.unchanged) == self.num_parameters


@dataclass(frozen=True, slots=True)
class BitFlip:
    """One element whose exponent jumped."""

    role: Role
    tensor: str
    key: str
    element: int
    """Position in the flattened tensor."""
    before: float
    after: float
    bound: float
    """The tensor's former largest magnitude."""

    @property
    def power(self) -> float:
        """log2 of how far it is off: against its own former value where that is not zero, else against the bound."""
        base = abs(self.before) or self.bound
        if not (base and self.after and math.isfinite(self.after)):
            return math.inf
        return math.log2(abs(self.after) / base)


@dataclass(frozen=True, slots=True)
class ValueChange:
    """How much one tensor changed, from its values."""

    role: Role
    tensor: str
    key: str
    relative: float
    """L2 norm of the change over the L2 norm before; inf where the tensor was zero and is not."""
    largest: float
    """Largest absolute change of a finite element."""
    flips: tuple[BitFlip, ...] = ()
    rounded_to: str = ""
    """"float16" or "bfloat16" where every value now fits that type and did not before."""


def compare_scans(before: CheckpointScan, after: CheckpointScan) -> ScanComparison:
    """Compare two generations tensor by tensor, `before` being the older one."""
    old, new = by_identity(before.tensors), by_identity(after.tensors)
    pairs = [(old[key], new[key]) for key in new if key in old]
    same_kind = [(a, b) for a, b in pairs if (a.dtype, a.shape) == (b.dtype, b.shape)]
    weights = [(a, b) for a, b in same_kind if b.role is Role.PARAMETER and is_float(b)]
    return ScanComparison(
        num_compared=len(pairs),
        num_parameters=len(weights),
        unchanged=tuple(b for a, b in weights if is_same(a, b)),
        zeroed=tuple(b for a, b in same_kind if _is_zero(b) and not _is_zero(a) and is_float(b)),
        subnormal=tuple(b for a, b in same_kind if _is_subnormal(b) and not _is_subnormal(a)),
        nonfinite=tuple(b for a, b in same_kind if _count(b.num_nonfinite) and not _count(a.num_nonfinite)),
        suspicious=tuple(b for a, b in same_kind if _has_jumped(a, b)),
        added=tuple(new[key] for key in new if key not in old),
        removed=tuple(old[key] for key in old if key not in new),
        reshaped=tuple((a, b) for a, b in pairs if (a.dtype, a.shape) != (b.dtype, b.shape)),
        stale=stale_parts(same_kind),
    )


def by_identity(tensors: Iterable[TensorFacts]) -> dict[TensorId, TensorFacts]:
    """Tensors by role, name and key; the file is part of the identity only where names repeat across files."""
    tensors = list(tensors)
    files: dict[tuple[str, str, str], int] = defaultdict(int)
    for tensor in tensors:
        files[(tensor.role.value, tensor.name, tensor.key)] += 1
    return {
        (t.role.value, t.name, t.key, t.file if files[(t.role.value, t.name, t.key)] > 1 else ""): t for t in tensors
    }


def stale_parts(pairs: Sequence[tuple[TensorFacts, TensorFacts]]) -> tuple[StalePart, ...]:
    """Files (or, within one file, all moments or all parameters) that stayed equal while other parts moved.

    Only tensors that training moves count: floating-point ones of more than one element that are not constant.
    """
    moving = [(a, b) for a, b in pairs if b.role is not Role.OTHER and is_float(b) and _can_move(b)]
    files = {b.file for _, b in moving}
    found: list[StalePart] = []
    if len(files) > 1:
        found += _stale(moving, {name: [p for p in moving if p[1].file == name] for name in sorted(files)})
    if not found:
        roles = {f"{role.value}s": [p for p in moving if p[1].role is role] for role in (Role.MOMENT, Role.PARAMETER)}
        found += _stale(moving, roles)
    return tuple(found)


def _stale(
    moving: Sequence[tuple[TensorFacts, TensorFacts]], parts: dict[str, list[tuple[TensorFacts, TensorFacts]]]
) -> list[StalePart]:
    total = sum(not is_same(a, b) for a, b in moving)
    found = []
    for name, pairs in parts.items():
        if pairs and total and all(is_same(a, b) for a, b in pairs):
            found.append(StalePart(name, len(pairs), total, pairs[0][1].name))
    return found


def impossible_decays(
    before: CheckpointScan, after: CheckpointScan, *, beta2: float, num_updates: float
) -> tuple[tuple[TensorFacts, float], ...]:
    """Second moments that shrank faster than their own decay allows, with the factor that they are below the bound.

    An update computes v = beta2 * v + (1 - beta2) * g^2 with g^2 >= 0, so after n updates no element, and no norm, is
    below beta2^n times what it was (Kingma and Ba 2015, algorithm 1). `beta2` is the smallest of the groups'.
    """
    if not 0 < beta2 < 1 or num_updates < 0:
        return ()
    bound = beta2**num_updates * DECAY_SLACK
    old = by_identity(before.tensors)
    found = []
    for key, tensor in by_identity(after.tensors).items():
        earlier = old.get(key)
        if earlier is None or tensor.key not in SECOND_MOMENTS or earlier.shape != tensor.shape:
            continue
        if isinstance(earlier.l2, float) and isinstance(tensor.l2, float) and earlier.l2 > 0:
            share = tensor.l2 / earlier.l2
            if share < bound:
                found.append((tensor, share / (bound / DECAY_SLACK)))
    return tuple(found)


def step_counters(scan: CheckpointScan) -> tuple[float, ...]:
    """The distinct counters of updates that the optimizer state holds, sorted; Adam keeps one for each parameter."""
    counters = {
        t.absmax
        for t in scan.tensors
        if t.role is Role.MOMENT and t.key == "step" and isinstance(t.absmax, float) and _size(t) == 1
    }
    return tuple(sorted(counters))


def is_float(tensor: TensorFacts) -> bool:
    """True for real floating-point tensors."""
    return tensor.dtype.startswith(("float", "bfloat"))


def is_same(before: TensorFacts, after: TensorFacts) -> bool:
    """True where both were read and their bytes, type and shape are equal."""
    return isinstance(before.digest, str) and before.digest == after.digest


class ValueComparison:
    """Adds up the difference of one tensor block by block, so that its size does not matter."""

    def __init__(self, before: TensorFacts, after: TensorFacts) -> None:
        self._facts = after
        self._bound = before.absmax if isinstance(before.absmax, float) else math.inf
        self._jump = JUMP if after.role is Role.PARAMETER else MOMENT_JUMP
        self._difference = 0.0
        self._norm = 0.0
        self._largest = 0.0
        self._at = 0
        self._flips: list[BitFlip] = []
        self._num_suspects = 0
        self._rest = 0.0
        self._fits = {name: [True, True] for name in ("bfloat16", "float16")} if after.dtype == "float32" else {}

    def add(self, before: NDArray[Any], after: NDArray[Any]) -> None:
        """One block of values of both, flat and of equal length."""
        old, new = before.astype(np.float64), after.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(new - old)
            usable = np.isfinite(difference)
            self._difference += float(np.square(difference[usable]).sum())
            self._norm += float(np.square(old[np.isfinite(old)]).sum())
            self._largest = max(self._largest, float(difference[usable].max(initial=0.0)))
            self._look_for_flips(old, new)
            for name, fits in self._fits.items():
                fits[0] = fits[0] and _fits(before, name)
                fits[1] = fits[1] and _fits(after, name)
        self._at += len(new)

    def _look_for_flips(self, old: NDArray[np.float64], new: NDArray[np.float64]) -> None:
        size = np.abs(new)
        suspect = np.isfinite(old) & ~(size <= self._bound * self._jump)
        if self._facts.role is Role.PARAMETER:
            suspect |= np.isfinite(old) & (size > 0) & (size < np.abs(old) * COLLAPSE)
        rest = size[~suspect & np.isfinite(size)]
        self._rest = max(self._rest, float(rest.max(initial=0.0)))
        places = np.flatnonzero(suspect)
        self._num_suspects += len(places)
        for place in places[: max(0, FEW_ELEMENTS + 1 - len(self._flips))]:
            self._flips.append(
                BitFlip(
                    self._facts.role,
                    self._facts.name,
                    self._facts.key,
                    self._at + int(place),
                    float(old[place]),
                    float(new[place]),
                    self._bound,
                )
            )

    def _stands_out(self, flip: BitFlip) -> bool:
        """A flip leaves the tensor's other elements where they are; a diverging run takes them along."""
        return abs(flip.after) < abs(flip.before) or not abs(flip.after) <= self._rest * STANDS_OUT

    def result(self) -> ValueChange:
        """The totals. Flips are reported only where they are few: many jumps together are no flip."""
        relative = math.sqrt(self._difference / self._norm) if self._norm else (math.inf if self._difference else 0.0)
        few = 0 < self._num_suspects <= min(FEW_ELEMENTS, _size(self._facts) / 2) and self._bound > 0
        flips = tuple(flip for flip in self._flips if few and self._stands_out(flip))
        coarse = [name for name, (before, now) in self._fits.items() if now and not before and self._norm]
        rounded = coarse[0] if coarse and _size(self._facts) >= MIN_ROUNDED else ""
        return ValueChange(self._facts.role, self._facts.name, self._facts.key, relative, self._largest, flips, rounded)


def _fits(values: NDArray[Any], dtype: str) -> bool:
    """True where every float32 value is exactly a value of the narrower type."""
    if dtype == "float16":
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values, equal_nan=True))
    return not bool(np.any(values.view(np.uint32) & np.uint32(0xFFFF)))


def single_nonfinite(tensors: Iterable[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Tensors with a few non-finite elements among finite ones: an exponent of all ones is a flip away."""
    return tuple(t for t in tensors if 0 < _count(t.num_nonfinite) <= FEW_ELEMENTS < _size(t))


def _has_jumped(before: TensorFacts, after: TensorFacts) -> bool:
    if not isinstance(before.absmax, float) or not isinstance(after.absmax, float) or not is_float(after):
        return False
    if after.key == "step":
        return False
    jump = JUMP if after.role is Role.PARAMETER else MOMENT_JUMP
    return after.absmax > before.absmax * jump > 0 or bool(_count(after.num_nonfinite))


def _is_zero(tensor: TensorFacts) -> bool:
    return _size(tensor) > 1 and isinstance(tensor.num_zeros, int) and tensor.num_zeros == _size(tensor)


def _is_subnormal(tensor: TensorFacts) -> bool:
    return is_float(tensor) and _size(tensor) > 1 and _count(tensor.num_subnormal) > SUBNORMAL_SHARE * _size(tensor)


def _can_move(tensor: TensorFacts) -> bool:
    return _size(tensor) > 1 and isinstance(tensor.absmax, float) and tensor.absmax > 0


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _size(tensor: TensorFacts) -> int:
    return math.prod(tensor.shape)
