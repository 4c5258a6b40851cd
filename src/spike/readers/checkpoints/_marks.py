"""What do the files themselves promise of a tensor's bytes? Stored checksums, found without reading the tensor."""

from __future__ import annotations

import zlib

from spike.readers.checkpoints._bytes import Boxes, FileRange, Joined
from spike.readers.checkpoints._dcp import SliceBytes
from spike.readers.checkpoints.contract import ByteSource


def mark_of(data: ByteSource) -> tuple[int, int] | None:
    """(bytes, checksum) of a tensor, or None where no checksum covers exactly its bytes.

    A tensor in several shards gets one number made of all their checksums.
    """
    if isinstance(data, SliceBytes):
        return mark_of(data.resolve())
    if isinstance(data, FileRange):
        return (data.nbytes, data.crc) if data.crc is not None else None
    if isinstance(data, Joined | Boxes):
        sources = data.parts if isinstance(data, Joined) else tuple(source for _, _, source in data.boxes)
        marks = [mark_of(source) for source in sources]
        if all(marks):
            return data.nbytes, zlib.crc32(repr(marks).encode())
    return None
