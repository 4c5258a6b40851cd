"""Is this record what its writer wrote? CRC-32C (Castagnoli), masked as TensorBoard's records carry it.

Pure Python, so it is asked only where a record looks wrong.
"""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0x82F63B78


@cache
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes) -> int:
    """The checksum of `data`."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum rotated and shifted by a constant, as the record format stores it."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
