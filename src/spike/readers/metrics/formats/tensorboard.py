"""What does a TensorBoard event file say? Its scalars, read straight from the record stream.

Record: length u64, masked CRC-32C of it u32, payload, masked CRC-32C of the payload u32, all little-endian.
Payload: an Event message (1 wall_time, 2 step, 3 file_version, 5 summary); Summary.value: 1 tag, 2 simple_value,
8 tensor. Histograms, images and texts are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from spike.readers.metrics.contract import FLOAT32_DIGITS, Parsed, Table
from spike.readers.metrics.crc32c import masked
from spike.readers.metrics.wire import BYTES, FIXED32, VARINT, fields, float32, float64, signed

_HEADER, _FOOTER = 12, 4
_DOUBLE_DTYPE = 2


class TensorBoard:
    """events.out.tfevents.* files of any writer."""

    format = "tensorboard"
    order = 10

    def sniff(self, path: Path, head: bytes) -> bool:
        """The first record is a whole Event with a file version."""
        if len(head) < _HEADER:
            return False
        (length,) = struct.unpack_from("<Q", head, 0)
        if length > 4096 or len(head) < _HEADER + length:
            return False
        return b"brain.Event:" in head[_HEADER : _HEADER + length]

    def read(self, path: Path) -> Parsed:
        """All scalars. A cut last record is benign; a record that fails its checksum ends the file."""
        table = Table(self.format)
        data = path.read_bytes()
        for offset, payload in _records(table, data):
            try:
                for step, tag, value in _scalars(payload):
                    table.add(step, {tag: value})
            except (ValueError, struct.error) as error:
                stored = struct.unpack_from("<I", data, offset + _HEADER + len(payload))[0]
                why = "its checksum is right" if masked(bytes(payload)) == stored else "its checksum is wrong"
                table.damage(0, offset, f"a record that is no event ({error}; {why})")
        if table.num_rows == 0 and not table.damages:
            table.damage(0, len(data), "an event file that holds no scalar: nothing was logged", benign=True)
        return table.parsed(digits=FLOAT32_DIGITS)


def _records(table: Table, data: bytes) -> Iterator[tuple[int, memoryview]]:
    view, at, end = memoryview(data), 0, len(data)
    while at < end:
        if at + _HEADER > end:
            table.damage(0, at, "the last record is not finished yet", benign=True)
            return
        length, check = struct.unpack_from("<QI", data, at)
        after = at + _HEADER + length + _FOOTER
        if after > end:
            if masked(data[at : at + 8]) == check:
                table.damage(0, at, "the last record is not finished yet", benign=True)
            else:
                table.damage(0, at, f"a record header with a wrong checksum; {end - at} bytes behind it are lost")
            return
        yield at, view[at + _HEADER : at + _HEADER + length]
        at = after


def _scalars(payload: memoryview) -> Iterator[tuple[int, str, float]]:
    step = 0
    summaries: list[bytes] = []
    for number, kind, value in fields(payload):
        if number == 2 and kind == VARINT:
            assert isinstance(value, int)
            step = signed(value)
        elif number == 5 and kind == BYTES:
            assert isinstance(value, bytes)
            summaries.append(value)
    for summary in summaries:
        for number, kind, value in fields(summary):
            if number == 1 and kind == BYTES:
                assert isinstance(value, bytes)
                tag, scalar = _value(value)
                if tag and scalar is not None:
                    yield step, tag, scalar


def _value(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, kind, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if number == 1 and kind == BYTES:
            tag = value.decode("utf-8", errors="replace")
        elif number == 2 and kind == FIXED32:
            scalar = float32(value)
        elif number == 8 and kind == BYTES:
            scalar = _tensor(value)
    return tag, scalar


def _tensor(message: bytes) -> float | None:
    """The value of a scalar TensorProto: 1 dtype, 4 tensor_content, 5 float_val, 6 double_val."""
    dtype, content, found = 0, b"", None
    for number, kind, value in fields(message):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif isinstance(value, bytes) and number == 4:
            content = value
        elif isinstance(value, bytes) and number == 5 and len(value) == 4:
            found = float32(value)
        elif isinstance(value, bytes) and number == 6 and len(value) == 8:
            found = float64(value)
        del kind
    if found is None and dtype == 1 and len(content) == 4:
        return float32(content)
    if found is None and dtype == _DOUBLE_DTYPE and len(content) == 8:
        return float64(content)
    return found


READER = TensorBoard()
