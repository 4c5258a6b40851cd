"""In which byte ranges of which files do a tensor's elements lie, in whatever order? Statistics need no order.

A tensor in shards is the sum of its shards, and a transposed one holds the same elements as its storage: both can be
counted while their files pass by. A view with gaps, or one that repeats elements, cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spike.readers.checkpoints._bytes import Boxes, FileRange, Joined, Strided
from spike.readers.checkpoints._dcp import SliceBytes
from spike.readers.checkpoints.contract import ByteSource


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a tensor: elements next to each other in one file."""

    source: ByteSource
    """Reads (and checks) the same elements."""
    place: FileRange


def stretches(data: ByteSource) -> tuple[Stretch, ...] | None:
    """Stretches that hold each element of a tensor exactly once; None where only reading it gives its elements.

    Raises `InputUnreadable` where a part of a distributed checkpoint is not what its index says.
    """
    found = []
    for source in _parts(data):
        place = _place(source)
        if place is None:
            return None
        found.append(Stretch(source, place))
    return tuple(found)


def _parts(data: ByteSource) -> Iterator[ByteSource]:
    if isinstance(data, Joined):
        for part in data.parts:
            yield from _parts(part)
    elif isinstance(data, Boxes):
        for _, _, part in data.boxes:
            yield from _parts(part)
    else:
        yield data


def _place(source: ByteSource) -> FileRange | None:
    if isinstance(source, SliceBytes):
        return _place(source.resolve())
    if isinstance(source, Strided) and _is_dense(source):
        storage = source.storage
        if storage.nbytes == source.nbytes:
            return storage
        return FileRange(storage.path, storage.offset, source.nbytes, within=storage.within)
    return source if isinstance(source, FileRange) else None


def _is_dense(view: Strided) -> bool:
    """True where the elements fill their stretch of the storage, each once, in some order of the dimensions."""
    expected = 1
    for step, size in sorted(zip(view.strides, view.shape, strict=True)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
