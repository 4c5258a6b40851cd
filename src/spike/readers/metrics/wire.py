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
    view = memoryview(data)
    for number, kind, start, end in spans(data):
        yield number, kind, varint(view, start)[0] if kind == VARINT else bytes(view[start:end])


def spans(data: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, first byte, byte behind) of each field's value.

    Raises ValueError where the message is cut or is no message.
    """
    at, end = 0, len(data)
    view = memoryview(data)
    while at < end:
        key, at = varint(view, at)
        number, kind = key >> 3, key & 7
        start = at
        if kind == VARINT:
            _, at = varint(view, at)
        elif kind == BYTES:
            size, start = varint(view, at)
            at = start + size
        elif kind in (FIXED32, FIXED64):
            at += 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at > end:
            raise ValueError(f"field {number} is cut at byte {start}")
        yield number, kind, start, at


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
    """A varint as int64; bits beyond the 64th are dropped, as protocol buffers do."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def float32(raw: bytes) -> float:
    """Four little-endian bytes as a float."""
    return float(struct.unpack("<f", raw)[0])


def float64(raw: bytes) -> float:
    """Eight little-endian bytes as a float."""
    return float(struct.unpack("<d", raw)[0])
