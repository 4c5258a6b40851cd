"""How large, how many zeros, is anything not finite? Statistics of a tensor from the bits of its elements.

IEEE order is integer order: the maximum of `bits & 0x7fff...` is the largest magnitude and says whether anything is
non-finite at all, the minimum whether there are zeros or subnormals. Two bytes wide elements are never widened to a
copy: each half of a 32-bit word becomes a float32 by a shift and a mask. Sums of squares go row by row in float32 and
are added up in float64, except where magnitudes would vanish or overflow in float32.

Complex elements count as two; the norm and the magnitude are those of the finite elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spike.readers.checkpoints._numbers import decode, float8_values

Scratch = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Two buffers as long as the longest chunk: memory that is touched once stays in the cache."""
Counter = Callable[[NDArray[np.uint8], "Statistics"], None]


@dataclass(slots=True)
class Statistics:
    """Running totals over one tensor."""

    num_nonfinite: int = 0
    absmax: float = 0.0
    sum_squares: float = 0.0
    num_zeros: int = 0
    num_subnormal: int = 0


def counter(dtype: str, scratch: Scratch) -> Counter:
    """The function that adds one chunk of this type to the totals."""
    if dtype.startswith("complex"):
        return counter("float64" if dtype == "complex128" else "float32", scratch)
    if dtype in _IEEE:
        return lambda raw, totals: _count_floats(raw, totals, dtype, scratch)
    if dtype.startswith("float8"):
        return lambda raw, totals: _count_float8(raw, totals, dtype)
    native = np.dtype(dtype)
    return lambda raw, totals: _count_integers(raw.view(native), totals)


_IEEE: dict[str, tuple[Any, int, int]] = {
    # bits type, mantissa bits, magnitude mask
    "float64": (np.uint64, 52, 0x7FFF_FFFF_FFFF_FFFF),
    "float32": (np.uint32, 23, 0x7FFF_FFFF),
    "float16": (np.uint16, 10, 0x7FFF),
    "bfloat16": (np.uint16, 7, 0x7FFF),
}
_SAFE_SQUARES = (1e-12, 1e15)
"""Magnitudes whose squares neither vanish nor overflow in a float32 sum over one row."""
_ROW = 8192
"""Elements summed in float32 at a time: accurate to a few parts in 10^7, and below the size at which BLAS starts
threads of its own."""
_HALF_SCALE = np.float32(2.0**112)
"""A float16 whose exponent and mantissa are shifted into a float32's place is too small by this factor."""


def _count_floats(raw: NDArray[np.uint8], totals: Statistics, dtype: str, scratch: Scratch) -> None:
    if not raw.size:
        return
    kind, mantissa, mask = _IEEE[dtype]
    bits = raw.view(kind)
    magnitude = np.bitwise_and(bits, kind(mask), out=scratch[0][: raw.size].view(kind))
    top, infinity = int(magnitude.max()), mask ^ ((1 << mantissa) - 1)
    if top >= infinity:
        totals.num_nonfinite += int(np.count_nonzero(magnitude >= kind(infinity)))
        finite = magnitude[magnitude < kind(infinity)]
        top = int(finite.max(initial=0))
        totals.sum_squares += _wide(decode(finite, dtype))
    else:
        totals.sum_squares += _sum_squares(raw, dtype, _value(top, dtype), scratch)
    totals.absmax = max(totals.absmax, _value(top, dtype))
    if int(magnitude.min()) < 1 << mantissa:
        tiny = int(np.count_nonzero(magnitude < kind(1 << mantissa)))
        zeros = magnitude.size - int(np.count_nonzero(magnitude))
        totals.num_zeros += zeros
        totals.num_subnormal += tiny - zeros


def _sum_squares(raw: NDArray[np.uint8], dtype: str, top: float, scratch: Scratch) -> float:
    """Of a chunk whose elements are all finite; `scratch[1]` is used."""
    small, large = _SAFE_SQUARES
    if dtype == "float64":
        return _wide(raw.view(np.float64))
    if not small < top < large:
        return _wide(decode(raw.view(_IEEE[dtype][0]), dtype))
    if dtype == "float32":
        return _rows(raw.view(np.float32))
    if raw.size % 4:
        return _wide(decode(raw.view(np.uint16), dtype))
    words, out = raw.view(np.uint32), scratch[1][: raw.size].view(np.uint32)
    if dtype == "bfloat16":
        low = _rows(np.left_shift(words, np.uint32(16), out=out).view(np.float32))
        return low + _rows(np.bitwise_and(words, np.uint32(0xFFFF_0000), out=out).view(np.float32))
    np.left_shift(np.bitwise_and(words, np.uint32(0x7FFF), out=out), np.uint32(13), out=out)
    low = _rows(np.multiply(out.view(np.float32), _HALF_SCALE, out=out.view(np.float32)))
    np.bitwise_and(np.right_shift(words, np.uint32(3), out=out), np.uint32(0x0FFF_E000), out=out)
    return low + _rows(np.multiply(out.view(np.float32), _HALF_SCALE, out=out.view(np.float32)))


def _rows(values: NDArray[np.float32]) -> float:
    """Sum of squares, row by row in float32, rows in float64."""
    whole = values.size - values.size % _ROW
    rows = values[:whole].reshape(-1, _ROW)
    per_row = np.vecdot(rows, rows) if hasattr(np, "vecdot") else np.einsum("ij,ij->i", rows, rows)
    rest = values[whole:]
    return float(per_row.sum(dtype=np.float64)) + float(np.dot(rest, rest))


def _wide(values: NDArray[Any]) -> float:
    """Sum of squares in float64; inf where even that is too small."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore"):
        return float(np.dot(wide, wide))


def _value(bits: int, dtype: str) -> float:
    return float(decode(np.array([bits], dtype=_IEEE[dtype][0]), dtype)[0])


def _count_float8(raw: NDArray[np.uint8], totals: Statistics, dtype: str) -> None:
    """One histogram of the bytes: every statistic follows from the 256 counts."""
    values = float8_values(dtype).astype(np.float64)
    counts = _histogram(raw)
    finite = np.isfinite(values)
    totals.num_nonfinite += int(counts[~finite].sum())
    used = np.abs(values[finite & (counts > 0)])
    totals.absmax = max(totals.absmax, float(used.max(initial=0.0)))
    totals.sum_squares += float(np.dot(counts[finite], values[finite] ** 2))
    if dtype != "float8_e8m0fnu":  # has neither zero nor subnormals
        zero = values == 0
        exponent_mask = 0x78 if "e4m3" in dtype else 0x7C
        subnormal = finite & ~zero & ((np.arange(256) & exponent_mask) == 0)
        totals.num_zeros += int(counts[zero].sum())
        totals.num_subnormal += int(counts[subnormal].sum())


def _histogram(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Counts of the 256 byte values; pairs are counted together, which halves the work."""
    even = raw.size - raw.size % 2
    pairs = np.bincount(raw[:even].view(np.uint16), minlength=1 << 16).reshape(256, 256)
    counts = pairs.sum(axis=0) + pairs.sum(axis=1)
    if even != raw.size:
        counts[int(raw[-1])] += 1
    total: NDArray[np.int64] = counts.astype(np.int64, copy=False)
    return total


def _count_integers(values: NDArray[Any], totals: Statistics) -> None:
    if not values.size:
        return
    wide = values.astype(np.float64)
    totals.absmax = max(totals.absmax, float(np.abs(wide).max()))
    totals.sum_squares += float(np.dot(wide, wide))
    totals.num_zeros += values.size - int(np.count_nonzero(values))
