"""Is this record what its writer wrote? CRC-32C (Castagnoli), masked as TensorBoard's records carry it.

In C where the crc32c package is installed; else in Python, so that it is asked only where a record looks wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_SHIFT = 0xA282EAD8


@cache
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


@cache
def in_c() -> Callable[[bytes], int] | None:
    """The function of the crc32c package, fast enough for every record; None where it is not installed."""
    try:
        return cast("Callable[[bytes], int]", importlib.import_module("crc32c").crc32c)
    except (ImportError, AttributeError):
        return None


def crc32c(data: bytes) -> int:
    """The checksum of `data`."""
    quick = in_c()
    return _in_python(data) if quick is None else quick(data)


def _in_python(data: bytes) -> int:
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum rotated and shifted by a constant, as the record format stores it."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + _SHIFT) & 0xFFFFFFFF


def mask(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The stored form of many checksums."""
    return ((values >> np.uint32(15)) | (values << np.uint32(17))) + np.uint32(_SHIFT)
