"""What do the files themselves promise of a tensor's bytes? Stored checksums, found without reading the tensor."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from spike.readers.checkpoints._bytes import Boxes, FileRange, Joined
from spike.readers.checkpoints._dcp import SliceBytes
from spike.readers.checkpoints.contract import ByteSource, LazyTensor

MAX_FILES = 64
MAX_PIECES = 512
"""Pieces looked up in one checkpoint, evenly over its files; each costs a small read."""
TELLING_BYTES = 64
"""Smaller pieces (counters, scalars) are equal in two checkpoints by chance."""

SAMPLE_BYTES = 1 << 16
"""Read from a piece whose file stores no checksum: so much of a trained tensor is equal in two saves by no chance."""

FileMarks = dict[str, dict[str, tuple[int, int]]]
"""File inside the checkpoint -> piece of a tensor -> (bytes, checksum)."""


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


def marks_by_file(root: Path, tensors: Iterable[LazyTensor], wanted: Mapping[str, Iterable[str]] | None) -> FileMarks:
    """The checksums of the pieces of tensors that each file holds; only the pieces of `wanted`, where given."""
    pieces: dict[str, dict[str, ByteSource]] = defaultdict(dict)
    for tensor in tensors:
        for place, path, source in _pieces(tensor.data):
            if source.nbytes > TELLING_BYTES:
                name = f"{tensor.role.value} {tensor.name} {tensor.key} {place}"
                pieces[path.relative_to(root).as_posix() if path != root else path.name][name] = source
    files = list(pieces)[:: max(1, len(pieces) // MAX_FILES)] if wanted is None else [f for f in pieces if f in wanted]
    each = max(2, MAX_PIECES // max(1, len(files)))
    marks: FileMarks = {}
    for file in files:
        names = list(pieces[file]) if wanted is None else [name for name in wanted[file] if name in pieces[file]]
        chosen = [(name, pieces[file][name]) for name in names[:: max(1, len(names) // each)]]
        marks[file] = {name: mark_of(source) or _sample(source) for name, source in chosen}
    return marks


def _sample(source: ByteSource) -> tuple[int, int]:
    """(bytes, checksum of the first ones) of a piece whose file stores none."""
    buffer = memoryview(bytearray(min(SAMPLE_BYTES, max(1, source.nbytes))))
    return source.nbytes, zlib.crc32(next(iter(source.chunks(lambda: buffer)), b""))


def _pieces(data: ByteSource) -> Iterator[tuple[str, Path, ByteSource]]:
    """(place in the tensor, file, bytes) of everything that a tensor is put together from."""
    if isinstance(data, FileRange):
        yield "", data.path, data
    elif isinstance(data, SliceBytes):
        yield "", data.piece.path, data
    elif isinstance(data, Joined):
        for number, part in enumerate(data.parts):
            yield from ((f"{number}{place}", path, source) for place, path, source in _pieces(part))
    elif isinstance(data, Boxes):
        for offsets, _, part in data.boxes:
            yield from ((f"{offsets}{place}", path, source) for place, path, source in _pieces(part))
