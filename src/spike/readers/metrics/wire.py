"""What is in a protocol-buffer message whose schema we do not import? Its fields, one by one.

Wire format: https://protobuf.dev/programming-guides/encoding/. Groups (deprecated) raise ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value) of each field: an int for varints, raw bytes for everything else.

    Raises ValueError where the message is cut or is no message.
    """
    at, end = 0, len(data)
    view = memoryview(data)
    while at < end:
        key, at = varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(view, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = varint(view, at)
        elif kind == FIXED32:
            size = 4
        elif kind == FIXED64:
            size = 8
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > end:
            raise ValueError(f"field {number} is cut at byte {at}")
        yield number, kind, bytes(view[at : at + size])
        at += size


def varint(view: memoryview, at: int) -> tuple[int, int]:
    """(value, next position). Raises ValueError where it is cut or longer than ten bytes."""
    value, shift = 0, 0
    while True:
        if at >= len(view) or shift > 63:
            raise ValueError(f"a varint is cut at byte {at}")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """A varint as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def float32(raw: bytes) -> float:
    """Four little-endian bytes as a float."""
    return float(struct.unpack("<f", raw)[0])


def float64(raw: bytes) -> float:
    """Eight little-endian bytes as a float."""
    return float(struct.unpack("<d", raw)[0])
