"""What do these bits mean as numbers? Element types of tensors, their widths, and exact decoding without torch.

Floats that numpy does not have (bfloat16, the float8 family) are decoded from their bit layout: OCP 8-bit Floating
Point Specification 1.0 for e4m3fn, e5m2 and e8m0fnu; the "fnuz" variants as torch defines them (no negative zero,
0x80 is NaN, exponent bias one higher).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spike.domain.errors import InputUnreadable

WIDTHS: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex128": 16,
    "complex64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
"""Bytes an element, by torch's name of the type."""

_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_NATIVE = frozenset(WIDTHS) - {"bfloat16"} - {name for name in WIDTHS if name.startswith("float8")}


def width(dtype: str) -> int:
    """Bytes an element; raises `InputUnreadable` for a type that is not known."""
    if dtype not in WIDTHS:
        raise InputUnreadable(f"tensors of type {dtype!r} are not known to this version of spike")
    return WIDTHS[dtype]


def bits_of(raw: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Bytes as unsigned integers of the element's width; a complex element becomes two."""
    size = width(dtype)
    if dtype.startswith("complex"):
        halves: NDArray[Any] = raw.view(_UNSIGNED[size // 2]).reshape(-1, 2)
        return halves
    bits: NDArray[Any] = raw.view(_UNSIGNED[size])
    return bits


def decode(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Values of `bits` (as `LazyTensor.read` returns them): the native type where numpy has it, else float32."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.startswith("float8"):
        values: NDArray[Any] = float8_values(dtype)[bits]
        return values
    if dtype not in _NATIVE:
        raise InputUnreadable(f"tensors of type {dtype!r} are not known to this version of spike")
    return bits.view(np.dtype(dtype))


@cache
def float8_values(dtype: str) -> NDArray[np.float32]:
    """The value of each of the 256 bit patterns."""
    if dtype == "float8_e8m0fnu":
        scales = np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan])
        return scales.astype(np.float32)
    exponent_bits, mantissa_bits = (4, 3) if "e4m3" in dtype else (5, 2)
    unsigned_zero = dtype.endswith("fnuz")
    bias = (1 << (exponent_bits - 1)) - (0 if unsigned_zero else 1)
    codes = np.arange(256)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    values = np.where(codes & 0x80, -values, values)
    if unsigned_zero:
        values[0x80] = np.nan
    elif dtype == "float8_e4m3fn":
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[[0x7C, 0xFC]] = (np.inf, -np.inf)
        values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return values.astype(np.float32)
