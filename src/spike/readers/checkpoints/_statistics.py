"""How large, how many zeros, is anything not finite? Statistics of a tensor from the bits of its elements.

IEEE order is integer order: the largest magnitude says whether anything is non-finite at all, the smallest whether
there are zeros or subnormals. Read as unsigned numbers the negative elements are the largest, read as signed ones the
smallest, so the minimum and the maximum of both readings bound every magnitude without a pass that writes them. Narrow
elements are never widened to a copy: each part of a 32-bit word becomes a float32 by a mask and a shift. Sums of
squares go row by row in float32 and are added up in float64, except where magnitudes would vanish or overflow.

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
    num_saturated: int = 0
    """Elements of the largest finite magnitude of their type."""

    def add(self, other: Statistics) -> None:
        """Take in what another part of the same tensor holds."""
        self.num_nonfinite += other.num_nonfinite
        self.absmax = max(self.absmax, other.absmax)
        self.sum_squares += other.sum_squares
        self.num_zeros += other.num_zeros
        self.num_subnormal += other.num_subnormal
        self.num_saturated += other.num_saturated


def counter(dtype: str, scratch: Scratch) -> Counter:
    """The function that adds one chunk of this type to the totals."""
    if dtype.startswith("complex"):
        return counter("float64" if dtype == "complex128" else "float32", scratch)
    if dtype in _IEEE:
        return lambda raw, totals: _count_floats(raw, totals, dtype, scratch)
    if dtype.startswith("float8"):
        return lambda raw, totals: _count_float8(raw, totals, dtype, scratch)
    native = np.dtype(dtype)
    return lambda raw, totals: _count_integers(raw.view(native), totals)


_IEEE: dict[str, tuple[Any, Any, int, int]] = {
    # bits read as unsigned and as signed numbers, mantissa bits, magnitude mask
    "float64": (np.uint64, np.int64, 52, 0x7FFF_FFFF_FFFF_FFFF),
    "float32": (np.uint32, np.int32, 23, 0x7FFF_FFFF),
    "float16": (np.uint16, np.int16, 10, 0x7FFF),
    "bfloat16": (np.uint16, np.int16, 7, 0x7FFF),
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
    kind, signed, mantissa, mask = _IEEE[dtype]
    bits, infinity = raw.view(kind), mask ^ ((1 << mantissa) - 1)
    bottom, top = _bounds(bits, raw.view(signed), mask)
    magnitude = scratch[0][: raw.size].view(kind)
    if bottom < 1 << mantissa or top >= infinity - 1:
        np.bitwise_and(bits, kind(mask), out=magnitude)
    if bottom < 1 << mantissa:
        tiny = int(np.count_nonzero(magnitude < kind(1 << mantissa)))
        zeros = magnitude.size - int(np.count_nonzero(magnitude))
        totals.num_zeros += zeros
        totals.num_subnormal += tiny - zeros
    if top >= infinity - 1:
        totals.num_saturated += int(np.count_nonzero(magnitude == kind(infinity - 1)))
    if top >= infinity:
        finite = magnitude[magnitude < kind(infinity)]
        totals.num_nonfinite += magnitude.size - finite.size
        top = int(finite.max(initial=0))
        totals.sum_squares += _wide(decode(finite, dtype))
    else:
        totals.sum_squares += _sum_squares(raw, dtype, _value(top, dtype), scratch)
    totals.absmax = max(totals.absmax, _value(top, dtype))


def _bounds(unsigned: NDArray[Any], signed: NDArray[Any], mask: int) -> tuple[int, int]:
    """Smallest and largest magnitude: each is an end of one of the two readings, whatever the signs are."""
    low, high = int(unsigned.min()) & mask, int(unsigned.max()) & mask
    other_low, other_high = int(signed.min()) & mask, int(signed.max()) & mask
    return min(low, other_low), max(high, other_high)


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


_FLOAT8: dict[str, tuple[int, int, int, float]] = {
    # first magnitude that is not finite, exponent mask, place of its lowest bit in a float32, scale of the float32
    "float8_e4m3fn": (0x7F, 0x78, 20, 2.0**120),
    "float8_e5m2": (0x7C, 0x7C, 21, 2.0**112),
}
_MANY_SUBNORMAL = 64
"""One subnormal in so many elements: beyond it some processors multiply so slowly that a histogram is faster."""


def _count_float8(raw: NDArray[np.uint8], totals: Statistics, dtype: str, scratch: Scratch) -> None:
    layout = _FLOAT8.get(dtype)
    if layout is None or raw.size % 4 or not raw.size:
        _count_codes(raw, totals, dtype)
        return
    nonfinite, exponents, place, scale = layout
    magnitude, masked = scratch[0][: raw.size], scratch[1][: raw.size]
    np.bitwise_and(raw, np.uint8(0x7F), out=magnitude)
    np.bitwise_and(raw, np.uint8(exponents), out=masked)
    top, zeros = int(magnitude.max()), raw.size - int(np.count_nonzero(magnitude))
    subnormal = raw.size - zeros - int(np.count_nonzero(masked))
    if top >= nonfinite or subnormal * _MANY_SUBNORMAL > raw.size:
        _count_codes(raw, totals, dtype)
        return
    totals.absmax = max(totals.absmax, float(float8_values(dtype)[top]))
    totals.num_zeros += zeros
    totals.num_subnormal += subnormal
    if top == nonfinite - 1:
        totals.num_saturated += int(np.count_nonzero(magnitude == np.uint8(top)))
    totals.sum_squares += _lanes(raw.view(np.uint32), place, np.float32(scale), masked.view(np.uint32))


def _lanes(words: NDArray[np.uint32], place: int, scale: np.float32, out: NDArray[np.uint32]) -> float:
    """Sum of squares of four elements a word: each lane moves to where a float32 has its exponent and mantissa."""
    total, values = 0.0, out.view(np.float32)
    for lane in range(0, 32, 8):
        np.bitwise_and(words, np.uint32(0x7F << lane), out=out)
        shift = np.left_shift if place > lane else np.right_shift
        shift(out, np.uint32(abs(place - lane)), out=out)
        total += _rows(np.multiply(values, scale, out=values))
    return total


def _count_codes(raw: NDArray[np.uint8], totals: Statistics, dtype: str) -> None:
    """One histogram of the bytes: every statistic follows from the 256 counts."""
    values = float8_values(dtype).astype(np.float64)
    counts = _histogram(raw)
    finite = np.isfinite(values)
    magnitude = np.abs(np.where(finite, values, 0.0))
    totals.num_nonfinite += int(counts[~finite].sum())
    totals.absmax = max(totals.absmax, float(magnitude[counts > 0].max(initial=0.0)))
    totals.sum_squares += float(np.dot(counts, magnitude**2))
    totals.num_saturated += int(counts[magnitude == magnitude.max()].sum())
    if dtype != "float8_e8m0fnu":  # has neither zero nor subnormals
        exponent_mask = 0x78 if "e4m3" in dtype else 0x7C
        subnormal = (magnitude > 0) & ((np.arange(256) & exponent_mask) == 0)
        totals.num_zeros += int(counts[values == 0].sum())
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
