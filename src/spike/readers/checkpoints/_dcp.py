"""What does a torch.distributed.checkpoint directory hold? Its index, and each tensor put together from its slices.

`.metadata` is a pickle that torch itself loads with the executing unpickler; here it is read as data, and a name that
an honest index does not use makes the checkpoint corrupt. Each slice of a `.distcp` file is a torch archive of its
own, so content is verified by the CRCs inside. (torch/distributed/checkpoint/metadata.py, filesystem.py)
"""

from __future__ import annotations

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Integrity
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._bytes import FileRange, assemble
from spike.readers.checkpoints._numbers import WIDTHS, width
from spike.readers.checkpoints._torch_file import TensorRef, read_torch_file
from spike.readers.checkpoints._zip import open_archive
from spike.readers.checkpoints.contract import ByteSource, Checked, Damaged, Lend
from spike.readers.pickles import Global, Record, collection_paused, read_pickle

METADATA = re.compile(r"^(__\d+)?\.metadata$")
"""One index, or one a rank where the save ran without collectives."""
_ALLOWED = re.compile(
    r"^(torch\.distributed\.checkpoint\.metadata\.\w+|torch\.distributed\.checkpoint\.filesystem\._StorageInfo|"
    r"torch\.distributed\._shard\.(sharded_tensor\.)?metadata\.\w+|torch\.serialization\._get_layout|"
    r"pathlib(\._local)?\.(Pure)?(Posix|Windows)?Path|collections\.OrderedDict|"
    r"torch\.(Size|device|qint8|quint8|qint32|complex32|" + "|".join(WIDTHS) + r"))$"
)
"""An honest index needs a dozen names: descriptions, types, sizes and the path that it was saved to."""
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """A torch archive inside a `.distcp` file."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor as the index describes it."""

    dtype: str
    shape: Sizes
    chunks: tuple[tuple[Sizes, Sizes, Slice], ...]
    """(offsets, sizes, slice) of each shard."""


@dataclass(slots=True)
class DcpIndex:
    """Everything that the index says."""

    folder: Path
    tensors: dict[str, ShardedTensor] = field(default_factory=dict)
    objects: dict[str, Slice] = field(default_factory=dict)
    """Python objects by qualified name, each pickled in its own slice."""
    paths: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Qualified name -> place in the nested state dictionary that was saved."""
    save_id: str = ""

    def slices(self) -> Iterator[Slice]:
        """Every slice of every tensor and object."""
        for tensor in self.tensors.values():
            yield from (piece for _, _, piece in tensor.chunks)
        yield from self.objects.values()


def read_index(folder: Path) -> DcpIndex:
    """The index of a directory; raises `Damaged` where it is missing, broken, hostile or incomplete."""
    files = sorted(entry for entry in folder.iterdir() if METADATA.match(entry.name))
    if not files:
        raise Damaged(f"{folder.name}: has no .metadata, which is written last: cut off", Integrity.TORN)
    index = DcpIndex(folder)
    for file in files:
        with collection_paused(file.stat().st_size):
            _read_one(index, file)
    return index


def tiling(index: DcpIndex) -> Iterator[Damaged]:
    """What the sizes alone prove wrong: missing files, slices past the end, holes and overlaps."""
    by_file: dict[Path, list[Slice]] = defaultdict(list)
    for piece in index.slices():
        by_file[piece.path].append(piece)
    for path, pieces in sorted(by_file.items()):
        if not path.is_file():
            yield Damaged(f"{path.name}: is missing, {len(pieces)} items of the index lie in it", Integrity.TORN)
            continue
        size, end = path.stat().st_size, 0
        for piece in sorted(set(pieces), key=lambda piece: piece.offset):
            if piece.offset < end:
                yield Damaged(f"{path.name}: slices of the index overlap at byte {piece.offset:,}", Integrity.CORRUPT)
                break
            end = piece.offset + piece.length
        if end > size:
            yield Damaged(f"{path.name}: has {size:,} of the {end:,} bytes that the index needs", Integrity.TORN)
        elif end < size:
            yield Damaged(
                f"{path.name}: {size - end:,} bytes follow the last slice of the index", Integrity.OVERWRITTEN
            )
    known = {path.name for path in by_file}
    extra = sorted(p.name for p in index.folder.glob("*.distcp") if p.name not in known)
    if extra:
        yield Damaged(f"{extra[0]}: belongs to no entry of the index", Integrity.OVERWRITTEN)


def source_of(tensor: ShardedTensor) -> ByteSource:
    """The bytes of the whole tensor; raises `Damaged` where its shards do not tile it."""
    item = width(tensor.dtype)
    boxes = [
        (offsets, sizes, SliceBytes(piece, tensor.dtype, sizes))
        for offsets, sizes, piece in tensor.chunks
        if math.prod(sizes) or not tensor.shape
    ]
    if not boxes:
        return FileRange(Path("/dev/null"), 0, 0)
    try:
        return assemble(tensor.shape, item, boxes)
    except InputUnreadable as error:
        raise Damaged(f"{tensor.chunks[0][2].path.name}: {error.message}", Integrity.CORRUPT) from error


@dataclass(frozen=True, slots=True)
class SliceBytes:
    """The tensor bytes inside one slice, found and checked when they are read."""

    piece: Slice
    dtype: str
    sizes: Sizes

    @property
    def nbytes(self) -> int:
        """Bytes of the shard."""
        return width(self.dtype) * math.prod(self.sizes)

    def resolve(self) -> ByteSource:
        """The place of the bytes in the file; raises `Damaged` where the slice holds something else."""
        file = read_torch_file(self.piece.path, start=self.piece.offset, length=self.piece.length)
        found = file.value
        if not isinstance(found, TensorRef) or (found.dtype, found.shape) != (self.dtype, self.sizes):
            raise Damaged(
                f"{self.piece.path.name}: the slice at byte {self.piece.offset:,} is no {self.dtype} tensor of "
                f"{self.sizes}",
                Integrity.CORRUPT,
            )
        return file.locate(found)

    def chunks(self, lend: Lend) -> Iterator[memoryview]:
        """The bytes; raises `Damaged` after the last one where they do not match their CRC."""
        source, crc = self.resolve(), 0
        for chunk in source.chunks(lend):
            crc = zlib.crc32(chunk, crc)
            yield chunk
        if isinstance(source, FileRange) and source.crc is not None and crc != source.crc:
            raise self.mismatch()

    def mismatch(self) -> Damaged:
        """What is wrong where the bytes do not match their CRC."""
        return Damaged(
            f"{self.piece.path.name}: the slice at byte {self.piece.offset:,} does not match its CRC-32",
            Integrity.CORRUPT,
        )


def object_of(piece: Slice) -> Any:
    """The Python object in a slice, as data; raises `Damaged`."""
    return read_torch_file(piece.path, start=piece.offset, length=piece.length).value


def slice_mismatches(index: DcpIndex, _checked: Checked) -> Iterator[tuple[str, str]]:
    """(file, reason) of slices whose archive is broken or whose small members do not match their CRCs.

    Tensor bytes are compared while their tensor is read.
    """
    for piece in sorted(set(index.slices()), key=lambda piece: (piece.path, piece.offset)):
        place = f"{piece.path.relative_to(index.folder).as_posix()} at byte {piece.offset:,}"
        try:
            archive = open_archive(piece.path, start=piece.offset, length=piece.length)
            for name in archive.members:
                if not name.startswith("data/"):
                    archive.small(name)
        except Damaged as damage:
            yield place, damage.message


# -- the pickle ---------------------------------------------------------------------------------------------------


def _read_one(index: DcpIndex, file: Path) -> None:
    try:
        read = read_pickle(file.read_bytes(), source=file.name, constructors={"torch.Size": _size})
    except OSError as error:
        raise Damaged(f"{file.name}: {error.strerror or error}", Integrity.UNVERIFIABLE) from error
    except InputUnreadable as error:
        raise Damaged(error.message, Integrity.CORRUPT) from error
    stranger = next((name for name in read.globals if not _ALLOWED.match(str(name)) or name.is_dangerous), None)
    if stranger is not None:
        raise Damaged(
            f"{file.name}: hostile: its pickle names {str(stranger)[:80]}, which no honest index does; "
            "nothing was run, and torch must not load it",
            Integrity.CORRUPT,
        )
    value = read.value
    places = value.attribute("storage_data") if isinstance(value, Record) else None
    described = value.attribute("state_dict_metadata") if isinstance(value, Record) else None
    if not isinstance(places, dict) or not isinstance(described, dict):
        raise Damaged(f"{file.name}: is no index of a distributed checkpoint", Integrity.CORRUPT)
    stored = _storage(index.folder, file.name, places)
    for fqn, entry in described.items():
        if isinstance(fqn, str) and isinstance(entry, Record):
            _add(index, file.name, fqn, entry, stored)
    planner = value.attribute("planner_data")
    if isinstance(planner, dict):
        index.paths |= {k: v for k, v in planner.items() if isinstance(k, str) and isinstance(v, tuple)}
    meta = value.attribute("storage_meta")
    save_id = meta.attribute("save_id") if isinstance(meta, Record) else None
    index.save_id = save_id if isinstance(save_id, str) else index.save_id


def _storage(folder: Path, name: str, places: dict[Any, Any]) -> dict[tuple[str, Sizes | None], Slice]:
    """(fqn, shard offset) -> slice."""
    stored: dict[tuple[str, Sizes | None], Slice] = {}
    paths: dict[str, Path] = {}
    for key, info in places.items():
        if not isinstance(key, Record) or not isinstance(info, Record):
            raise Damaged(f"{name}: an entry of the index is described in an unknown way", Integrity.CORRUPT)
        relative, offset, length = info.attribute("relative_path"), info.attribute("offset"), info.attribute("length")
        sound = isinstance(relative, str) and type(offset) is int and type(length) is int and offset >= 0 <= length
        if sound and relative not in paths and _is_inside(relative):
            paths[relative] = folder / relative
        if not sound or relative not in paths:
            raise Damaged(f"{name}: an entry of the index points outside of the checkpoint", Integrity.CORRUPT)
        if info.attribute("transform_descriptors"):
            raise Damaged(
                f"{name}: its slices are transformed (compressed or encrypted) and cannot be read",
                Integrity.UNVERIFIABLE,
            )
        fqn = key.attribute("fqn")
        stored[(str(fqn), _sizes(key.attribute("offset")))] = Slice(paths[relative], offset, length)
    return stored


def _is_inside(relative: str) -> bool:
    return "\0" not in relative and not Path(relative).is_absolute() and ".." not in Path(relative).parts


def _add(index: DcpIndex, name: str, fqn: str, entry: Record, stored: dict[tuple[str, Sizes | None], Slice]) -> None:
    if entry.type_name.endswith(".BytesStorageMetadata"):
        piece = stored.get((fqn, None)) or next((s for (f, _), s in stored.items() if f == fqn), None)
        if piece is not None:
            index.objects[fqn] = piece
        return
    properties, shape = entry.attribute("properties"), _sizes(entry.attribute("size"))
    state = properties.state if isinstance(properties, Record) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if isinstance(properties, Record) and dtype is None:
        dtype = properties.attribute("dtype")
    if not isinstance(dtype, Global) or dtype.name not in WIDTHS or shape is None:
        raise Damaged(f"{name}: tensor {fqn[:80]!r} is described in an unknown way", Integrity.UNVERIFIABLE)
    chunks = []
    for chunk in _records(entry.attribute("chunks")):
        offsets, sizes = _sizes(chunk.attribute("offsets")), _sizes(chunk.attribute("sizes"))
        place = stored.get((fqn, offsets)) or (stored.get((fqn, None)) if not any(offsets or ()) else None)
        if offsets is None or sizes is None or place is None:
            raise Damaged(f"{name}: a shard of {fqn[:80]!r} has no place in the files", Integrity.TORN)
        chunks.append((offsets, sizes, place))
    known = index.tensors.get(fqn)
    index.tensors[fqn] = ShardedTensor(dtype.name, shape, (*(known.chunks if known else ()), *chunks))


def _records(value: Any) -> Iterable[Record]:
    return [item for item in value if isinstance(item, Record)] if isinstance(value, list | tuple) else []


def _size(args: tuple[Any, ...]) -> Any:
    return tuple(args[0]) if args and isinstance(args[0], tuple | list) else ()


def _sizes(value: Any) -> Sizes | None:
    """A torch.Size, if it is one."""
    if not isinstance(value, tuple | list):
        return None
    for number in value:
        if type(number) is not int or not 0 <= number < 1 << 62:
            return None
    return tuple(value)
