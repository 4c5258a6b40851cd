"""What objects does a `torch.save` file hold? Its data.pkl, with tensors as lazy references and nothing run.

Names of the rebuild functions and storage classes: torch/_utils.py, torch/storage.py, torch/serialization.py.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spike.domain.checkpoint import Integrity
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._bytes import FileRange, strided
from spike.readers.checkpoints._numbers import WIDTHS, width
from spike.readers.checkpoints._zip import Archive, open_archive
from spike.readers.checkpoints.contract import ByteSource, Damaged
from spike.readers.pickles import Constructor, Global, Pickle, Record, read_pickle

STORAGE_TYPES: dict[str, str] = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8",
}
KNOWN_PACKAGES = frozenset(
    (
        "torch",
        "numpy",
        "collections",
        "argparse",
        "pathlib",
        "builtins",
        "__builtin__",
        "_codecs",
        "copyreg",
        "types",
        "enum",
        "datetime",
        "transformers",
        "accelerate",
        "deepspeed",
        "megatron",
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "omegaconf",
        "functools",
        "uuid",
        "io",
        "signal",
        "random",
        "decimal",
        "fractions",
    )
)
"""Top-level packages whose classes training stacks store; others are mentioned, since a loader would import them."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A persistent id: where a tensor's bytes are."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorRef:
    """A tensor as the pickle describes it."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    storage: Storage


@dataclass(frozen=True, slots=True)
class TorchFile:
    """One file, its objects and the way to its bytes."""

    path: Path
    value: Any
    locate: Callable[[TensorRef], ByteSource]
    archive: Archive | None
    foreign: tuple[str, ...]
    """Classes that a loader would import from outside the known packages."""


def read_torch_file(path: Path, *, start: int = 0, length: int | None = None) -> TorchFile:
    """The objects of a zip archive written by `torch.save`.

    Raises `Damaged` where the archive or the pickle does not hold together, and where the pickle asks for a
    name that no checkpoint needs (`os.system`): such a file is never called whole.
    """
    archive = open_archive(path, start=start, length=length)
    order = archive.small("byteorder") if "byteorder" in archive.members else b"little"
    if order != b"little":
        raise Damaged(f"{path.name}: written on a big-endian machine", Integrity.UNVERIFIABLE)
    try:
        read = read_pickle(
            archive.small("data.pkl"), source=path.name, persistent=storage_of, constructors=CONSTRUCTORS
        )
    except Damaged:
        raise
    except InputUnreadable as error:
        raise Damaged(error.message, Integrity.CORRUPT) from error
    refuse_dangerous(read, path.name)
    return TorchFile(path, read.value, lambda ref: _locate(archive, ref), archive, foreign_names(read))


def refuse_dangerous(read: Pickle, source: str) -> None:
    """Raise `Damaged` for a pickle that refers to something which is no data."""
    found = read.dangerous()
    if found:
        names = ", ".join(str(name)[:80] for name in found[:5])
        raise Damaged(
            f"{source}: hostile: its pickle calls {names}; nothing was run, and it must not be loaded",
            Integrity.CORRUPT,
        )


def foreign_names(read: Pickle) -> tuple[str, ...]:
    """Classes from outside the packages that training stacks use, "module.Class"."""
    return tuple(str(name) for name in read.globals if name.module.partition(".")[0] not in KNOWN_PACKAGES)


def storage_of(identity: Any) -> Any:
    """The storage that a persistent id names; raises `InputUnreadable` for any other kind of id."""
    if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
        raise InputUnreadable("a persistent id that is no storage")
    kind, key, numel = identity[1], identity[2], identity[4]
    if not (isinstance(kind, Global) and isinstance(key, str) and isinstance(numel, int) and numel >= 0):
        raise InputUnreadable("a storage described in an unknown way")
    dtype = STORAGE_TYPES.get(kind.name)
    if dtype is None:
        raise InputUnreadable(f"storages of type {kind} are not known to this version of spike")
    return Storage(key, dtype, numel)


def _locate(archive: Archive, ref: TensorRef) -> ByteSource:
    member = archive.members.get(f"data/{ref.storage.key}")
    if member is None:
        raise Damaged(f"{archive.path.name}: storage data/{ref.storage.key} is missing", Integrity.TORN)
    if member.nbytes != ref.storage.numel * width(ref.storage.dtype):
        raise Damaged(
            f"{archive.path.name}: data/{ref.storage.key} has {member.nbytes:,} bytes where "
            f"{ref.storage.numel:,} elements of {ref.storage.dtype} are announced",
            Integrity.CORRUPT,
        )
    return view_of(member, ref)


def view_of(storage: FileRange, ref: TensorRef) -> ByteSource:
    """The bytes of a tensor inside its storage; raises `Damaged` where it reaches outside."""
    try:
        return strided(storage, width(ref.dtype), ref.start, ref.shape, ref.strides)
    except InputUnreadable as error:
        raise Damaged(f"{storage.path.name}: {error.message}", Integrity.CORRUPT) from error


# -- what the pickle of a checkpoint is made of ---------------------------------------------------------------


def _tensor(args: tuple[Any, ...]) -> Any:
    """torch._utils._rebuild_tensor_v2(storage, storage_offset, size, stride, ...); also the older form."""
    storage, start, shape, strides = args[:4]
    return _reference(storage, storage.dtype if isinstance(storage, Storage) else "", start, shape, strides)


def _tensor_v3(args: tuple[Any, ...]) -> Any:
    """torch._utils._rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype, ...)."""
    storage, start, shape, strides = args[:4]
    dtype = args[6]
    if not (isinstance(dtype, Global) and dtype.module == "torch" and dtype.name in WIDTHS):
        raise InputUnreadable("a tensor of an unknown type")
    return _reference(storage, dtype.name, start, shape, strides)


def _reference(storage: Any, dtype: str, start: Any, shape: Any, strides: Any) -> TensorRef:
    whole = (start, *shape, *strides)
    if not isinstance(storage, Storage) or not all(type(n) is int and 0 <= n < 1 << 62 for n in whole):
        raise InputUnreadable("a tensor described in an unknown way")
    if len(shape) != len(strides) or len(shape) > 64 or math.prod(shape) >= 1 << 62:
        raise InputUnreadable(f"a tensor with the impossible shape {tuple(shape)[:8]}")
    return TensorRef(dtype, tuple(shape), tuple(strides), start, storage)


def _from_type(args: tuple[Any, ...]) -> Any:
    """torch._tensor._rebuild_from_type_v2(function, type, arguments, state): a tensor subclass."""
    function, kind, inner = args[:3]
    build = CONSTRUCTORS.get(str(function)) if isinstance(function, Global) else None
    return build(inner) if build and isinstance(inner, tuple) else Record(kind, inner)


def _size(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(args[0]) if args and isinstance(args[0], list | tuple) else ()


_NUMBER = re.compile(r"(?:[<>=|])?(?:f[248]|[iu][1248]|b1)")


def _numpy_scalar(args: tuple[Any, ...]) -> Any:
    """numpy.core.multiarray.scalar(dtype, bytes): one number, as Python's own."""
    kind, raw = args[0], args[1]
    code = kind.args[0] if isinstance(kind, Record) and kind.args else None
    order = kind.state[1] if isinstance(kind, Record) and isinstance(kind.state, tuple) else "|"
    if not (isinstance(code, str) and _NUMBER.fullmatch(code) and isinstance(raw, bytes)):
        return Record(Global("numpy", "scalar"), args)
    dtype = np.dtype(code).newbyteorder(">" if order == ">" else "<")
    return np.frombuffer(raw, dtype=dtype, count=1)[0].item()


CONSTRUCTORS: dict[str, Constructor] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": lambda args: args[0],
    "torch._utils._rebuild_parameter_with_state": lambda args: args[0],
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": _size,
    "numpy.core.multiarray.scalar": _numpy_scalar,
    "numpy._core.multiarray.scalar": _numpy_scalar,
}


# -- files from before torch 1.6 -----------------------------------------------------------------------------

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""torch/serialization.py MAGIC_NUMBER: the first of the four pickles of a legacy file."""
_LEGACY_HEAD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def is_legacy(path: Path) -> bool:
    """True where the file starts as a legacy `torch.save` file does."""
    try:
        with path.open("rb") as file:
            return file.read(len(_LEGACY_HEAD)) == _LEGACY_HEAD
    except OSError:
        return False


def read_legacy_file(path: Path) -> TorchFile:
    """The objects of a file in the format before torch 1.6: pickles, then each storage as length and bytes.

    The format has no checksums. Raises `Damaged` as `read_torch_file` does.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        # Storages follow the pickles; the pickles themselves are small, but where they end is known only after
        # reading them.
        head = file.read(min(size, 256 << 20))
    storages: dict[str, int] = {}

    def remember(identity: Any) -> Any:
        storage = storage_of(identity)
        storages[storage.key] = storage.numel * width(storage.dtype)
        return storage

    try:
        at = 0
        for _ in range(3):
            at = read_pickle(head, source=path.name, start=at).end
        read = read_pickle(head, source=path.name, start=at, persistent=remember, constructors=CONSTRUCTORS)
        keys = read_pickle(head, source=path.name, start=read.end)
    except InputUnreadable as error:
        raise Damaged(error.message, Integrity.TORN) from error
    refuse_dangerous(read, path.name)
    places = _legacy_storages(path, size, keys.end, keys.value, storages)
    return TorchFile(path, read.value, lambda ref: view_of(places[ref.storage.key], ref), None, foreign_names(read))


def _legacy_storages(path: Path, size: int, at: int, keys: Any, storages: dict[str, int]) -> dict[str, FileRange]:
    assert sys.byteorder == "little"
    places: dict[str, FileRange] = {}
    if not isinstance(keys, list) or set(storages) - set(map(str, keys)):
        raise Damaged(f"{path.name}: its list of storages is incomplete", Integrity.CORRUPT)
    with path.open("rb") as file:
        for key in keys:
            nbytes = storages.get(key)
            file.seek(at)
            count = file.read(8)
            if nbytes is None or len(count) < 8 or at + 8 + nbytes > size:
                raise Damaged(f"{path.name}: ends before storage {str(key)[:40]}", Integrity.TORN)
            if struct.unpack("<q", count)[0] < 0:
                raise Damaged(f"{path.name}: storage {key} has a negative length", Integrity.CORRUPT)
            places[key] = FileRange(path, at + 8, nbytes)
            at += 8 + nbytes
    return places
