"""What does a TensorBoard event file say? Its scalars, read straight from the record stream.

Record: length u64, masked CRC-32C of it u32, payload, masked CRC-32C of the payload u32, all little-endian.
Histograms, images and texts are passed over.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np

from spike.readers.metrics.contract import FLOAT32_DIGITS, Parsed, Session, Table
from spike.readers.metrics.crc32c import in_c, mask, masked
from spike.readers.metrics.event_scalars import read_scalars
from spike.readers.metrics.numbers import HIGHEST_STEP
from spike.readers.metrics.pieces import read_through

_HEADER, _FOOTER = 12, 4
_FRAME = _HEADER + _FOOTER
_UNPACK = struct.Struct("<QI").unpack_from
_STORED = struct.Struct("<I").unpack_from

_NOT_ZERO = re.compile(rb"[^\0]")

_KNOWN_LENGTHS = 4096

MAX_RECORD_BYTES = 256 << 20
"""A longer record is an image or a graph; it is passed over in bounded memory, and reported."""


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
        """All scalars. A cut last record is benign; a record that fails its checksum is passed over."""
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Record by record."""
        return _Records(Table(self.format))


class _Records:
    """The records of a file, piece by piece."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._go_on_at = 0
        """First byte of the next record."""
        self._sums: dict[int, int] = {}
        """Length -> checksum of it."""
        self._lost_from: int | None = None
        """Behind a header with a wrong checksum, where no record has been found again yet."""
        self._end: int | None = None

    def take(self, data: bytes, offset: int, *, is_end: bool) -> int:
        """Read every whole record."""
        starts, lengths = self._frames(data, offset)
        if starts and in_c() is not None:
            starts, lengths = self._checked(data, offset, starts, lengths)
        found, refused = read_scalars(data, np.asarray(starts, np.int64), np.asarray(lengths, np.int64))
        for tag, rows in found.items():
            good = (rows.steps >= 0) & (rows.steps <= HIGHEST_STEP)
            self._table.add_many(tag, rows.steps[good], rows.values[good])
            for record, step in zip(rows.records[~good].tolist(), rows.steps[~good].tolist(), strict=True):
                reason = f"a value of {tag[:40]!r} whose step is {step}: it is not read"
                self._table.damage(0, offset + starts[record] - _HEADER, reason)
        for record, why in refused:
            self._refuse(data, offset, starts[record], lengths[record], why)
        used = max(0, min(self._go_on_at - offset, len(data)))
        if is_end:
            self._finish(data, offset, used)
        return used

    def drain(self) -> Parsed:
        """The scalars since the last call."""
        if self._end is not None:
            if self._table.num_rows == 0 and not self._table.damages:
                reason = "an event file that holds no scalar: nothing was logged"
                self._table.damage(0, self._end, reason, benign=True)
            if in_c() is None:
                self._table.note("checksums", "checked only where a record cannot be read (no crc32c package)")
        return self._table.drain(digits=FLOAT32_DIGITS)

    def _frames(self, data: bytes, offset: int) -> tuple[list[int], list[int]]:
        """Start and length of each whole payload in this piece."""
        starts: list[int] = []
        lengths: list[int] = []
        quick, at, end = in_c() is not None, self._go_on_at - offset, len(data)
        if self._lost_from is not None:
            at = self._found_again(data, offset, at)
        while at + _FRAME <= end:
            length, check = _UNPACK(data, at)
            after = at + _FRAME + length
            if (quick or after > end or length == 0) and not self._is_header(data, at, length, check):
                if not any(data[at:]):
                    break  # zeros up to the end: a hole that the writer may still fill
                self._lost_from = offset + at
                at = self._found_again(data, offset, at + 1)
            elif after <= end:
                starts.append(at + _HEADER)
                lengths.append(length)
                at = after
            elif length > MAX_RECORD_BYTES:
                self._table.damage(0, offset + at, f"a record of {length} bytes: passed over")
                at = after
            else:
                break
        self._go_on_at = offset + at
        return starts, lengths

    def _is_header(self, data: bytes, at: int, length: int, check: int) -> bool:
        """Whether the checksum is that of the length; few lengths make up a file, so that each is summed once."""
        right = self._sums.get(length)
        if right is None:
            right = masked(data[at : at + 8])
            if length <= MAX_RECORD_BYTES and len(self._sums) < _KNOWN_LENGTHS:
                self._sums[length] = right
        return right == check

    def _found_again(self, data: bytes, offset: int, at: int) -> int:
        """The next place where a header's checksum is right."""
        assert self._lost_from is not None
        while (zeros := data.find(b"\0\0\0\0", at + 4)) >= 0 and zeros + 8 <= len(data):
            at = zeros - 4
            if masked(data[at : at + 8]) == _STORED(data, at + 8)[0]:
                lost = offset + at - self._lost_from
                self._table.damage(0, self._lost_from, f"a record header with a wrong checksum; {lost} bytes are lost")
                self._lost_from = None
                return at
            filled = _NOT_ZERO.search(data, at)
            at = max(at + 1, (len(data) if filled is None else filled.start()) - 7)
        return max(at, len(data) - _HEADER + 1)

    def _checked(self, data: bytes, offset: int, starts: list[int], lengths: list[int]) -> tuple[list[int], list[int]]:
        """The records whose checksums are right."""
        quick = in_c()
        assert quick is not None
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        sums = np.fromiter((quick(data[a:b]) for a, b in zip(starts, ends, strict=True)), np.uint32, len(ends))
        places = np.asarray(ends)[:, None] + np.arange(_FOOTER)
        stored = np.frombuffer(data, np.uint8)[places].view("<u4").ravel()
        wrong = set(np.flatnonzero(mask(sums) != stored).tolist())
        for record in sorted(wrong):
            self._table.damage(0, offset + starts[record] - _HEADER, "a record with a wrong checksum")
        if not wrong:
            return starts, lengths
        kept = [record for record in range(len(starts)) if record not in wrong]
        return [starts[record] for record in kept], [lengths[record] for record in kept]

    def _refuse(self, data: bytes, offset: int, start: int, length: int, why: str) -> None:
        stored = _STORED(data, start + length)[0]
        state = "right" if masked(data[start : start + length]) == stored else "wrong"
        reason = f"a record that is no event ({why}; its checksum is {state})"
        self._table.damage(0, offset + start - _HEADER, reason)

    def _finish(self, data: bytes, offset: int, used: int) -> None:
        self._end = offset + len(data)
        if self._lost_from is not None:
            lost = self._end - self._lost_from
            self._table.damage(0, self._lost_from, f"a record header with a wrong checksum; {lost} bytes are lost")
        elif used < len(data) or self._go_on_at > self._end:
            self._table.damage(0, offset + used, "the last record is not finished yet", benign=True)


READER = TensorBoard()
