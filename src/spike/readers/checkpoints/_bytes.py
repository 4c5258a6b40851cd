"""Where do a tensor's bytes lie? Byte sources over files: a range, ranges one after another, boxes, strides."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints.contract import ByteSource, Lend

MAX_EXPANSION = 64 << 20
"""A tensor that repeats its storage (stride 0) may be this much larger than what the file holds for it."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of one file."""

    path: Path
    offset: int
    nbytes: int
    crc: int | None = None
    """CRC-32 that the file promises for exactly these bytes."""
    member: str = ""
    """Name of the archive member whose whole content this is; "" otherwise."""
    within: FileRange | None = None
    """The archive member that this is a part of, where there is one with a CRC."""

    def chunks(self, lend: Lend) -> Iterator[memoryview]:
        """The bytes, read into lent buffers; raises `InputUnreadable` where the file is too short."""
        if not self.nbytes:
            return
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputUnreadable(f"{self.path}: {error.strerror}") from error
        try:
            at, left = self.offset, self.nbytes
            while left:
                window = lend()[:left]
                count = os.preadv(handle, [window], at)
                if count == 0:
                    raise InputUnreadable(f"{self.path}: ends at byte {at:,}, {left:,} bytes short")
                yield window[:count]
                at, left = at + count, left - count
        except OSError as error:
            raise InputUnreadable(f"{self.path}: {error.strerror} at byte {at:,}") from error
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class Joined:
    """Several sources, one after the other: shards along the first dimension."""

    parts: tuple[ByteSource, ...]

    @property
    def nbytes(self) -> int:
        """Their total."""
        return sum(part.nbytes for part in self.parts)

    def chunks(self, lend: Lend) -> Iterator[memoryview]:
        """Each part's pieces in order."""
        for part in self.parts:
            yield from part.chunks(lend)


@dataclass(frozen=True, slots=True)
class Strided:
    """A view that does not lie row by row in its storage; made contiguous in memory when it is read."""

    storage: FileRange
    """From the view's first element to the end of the storage."""
    item: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of the contiguous tensor."""
        return self.item * math.prod(self.shape)

    def chunks(self, lend: Lend) -> Iterator[memoryview]:
        """The contiguous bytes."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        needed = FileRange(self.storage.path, self.storage.offset, (last + 1) * self.item)
        raw = np.frombuffer(load(needed), dtype=np.uint8).reshape(-1, self.item)
        strides = (*(step * self.item for step in self.strides), 1)
        view = np.lib.stride_tricks.as_strided(raw, (*self.shape, self.item), strides, writeable=False)
        yield from _pieces(np.ascontiguousarray(view).tobytes(), lend)


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tensor cut into boxes along several dimensions; assembled in memory when it is read."""

    item: int
    shape: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...], ByteSource], ...]
    """(offsets, sizes, bytes) of each box, in elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.item * math.prod(self.shape)

    def chunks(self, lend: Lend) -> Iterator[memoryview]:
        """The contiguous bytes of the whole."""
        whole = np.zeros((*self.shape, self.item), dtype=np.uint8)
        for offsets, sizes, source in self.boxes:
            place = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
            whole[place] = np.frombuffer(load(source), dtype=np.uint8).reshape(*sizes, self.item)
        yield from _pieces(whole.tobytes(), lend)


def load(source: ByteSource) -> bytes:
    """All bytes of a source at once; for what is small or has to be rearranged."""
    buffer = memoryview(bytearray(min(1 << 20, max(1, source.nbytes))))
    return b"".join(bytes(chunk) for chunk in source.chunks(lambda: buffer))


def assemble(
    shape: tuple[int, ...], item: int, boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...], ByteSource]]
) -> ByteSource:
    """The cheapest source for a tensor that lies in boxes.

    Raises `InputUnreadable` where the boxes leave a hole, overlap or reach outside.
    """
    covered = sum(math.prod(sizes) for _, sizes, _ in boxes)
    for offsets, sizes, source in boxes:
        inside = len(offsets) == len(sizes) == len(shape) and all(
            at >= 0 and at + size <= full for at, size, full in zip(offsets, sizes, shape, strict=True)
        )
        if not inside or source.nbytes != item * math.prod(sizes):
            raise InputUnreadable(f"a shard of {sizes} at {offsets} does not fit a tensor of {shape}")
    if covered != math.prod(shape):
        raise InputUnreadable(f"the shards hold {covered:,} of {math.prod(shape):,} elements")
    ordered = sorted(boxes, key=lambda box: box[0])
    if len(ordered) == 1:
        return ordered[0][2]
    if all(sizes[1:] == shape[1:] for _, sizes, _ in ordered):
        at, row = 0, max(1, item * math.prod(shape[1:]))
        for offsets, _, source in ordered:
            if offsets[0] != at and source.nbytes:
                raise InputUnreadable(f"the shards overlap at row {offsets[0]}")
            at += source.nbytes // row
        return Joined(tuple(source for _, _, source in ordered))
    _refuse_overlap(ordered)
    return Boxes(item, shape, tuple(ordered))


def strided(storage: FileRange, item: int, start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> ByteSource:
    """The source of a tensor that views a storage: `start` and `strides` in elements.

    Raises `InputUnreadable` where the view reaches outside the storage.
    """
    count = math.prod(shape)
    if len(shape) != len(strides) or any(n < 0 for n in (start, *shape, *strides)):
        raise InputUnreadable("a tensor with a negative size, stride or offset")
    if count == 0:
        return FileRange(storage.path, storage.offset, 0)
    last = start + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if (last + 1) * item > storage.nbytes:
        raise InputUnreadable(
            f"a tensor of {shape} needs {(last + 1) * item:,} bytes, its storage has {storage.nbytes:,}"
        )
    if _is_contiguous(shape, strides):
        if count * item == storage.nbytes:
            return storage
        return _part(storage, start * item, count * item)
    if count * item > storage.nbytes + MAX_EXPANSION:
        raise InputUnreadable(f"a tensor of {shape} repeats {storage.nbytes:,} bytes too often")
    return Strided(_part(storage, start * item, storage.nbytes - start * item), item, shape, strides)


def _part(storage: FileRange, start: int, nbytes: int) -> FileRange:
    whole = storage if storage.crc is not None else None
    return FileRange(storage.path, storage.offset + start, nbytes, within=whole)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _refuse_overlap(boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...], ByteSource]]) -> None:
    for number, (first, size, _) in enumerate(boxes):
        for other, other_size, _ in boxes[number + 1 :]:
            if all(a < b + m and b < a + n for a, n, b, m in zip(first, size, other, other_size, strict=True)):
                raise InputUnreadable(f"the shards at {first} and {other} overlap")


def _pieces(data: bytes, lend: Lend) -> Iterator[memoryview]:
    at = 0
    while at < len(data):
        window = lend()[: len(data) - at]
        window[:] = data[at : at + len(window)]
        yield window
        at += len(window)
