"""What does a safetensors file hold? Its header, parsed strictly, and where each tensor lies.

Format: 8 bytes little-endian header length, JSON header, one byte buffer without holes or overlaps
(huggingface/safetensors README). The format has no checksum: truncation shows, a flipped bit does not.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Integrity, Role
from spike.readers.checkpoints._bytes import FileRange
from spike.readers.checkpoints._numbers import WIDTHS
from spike.readers.checkpoints.contract import Damaged, LazyTensor

MAX_HEADER = 100_000_000
"""The reference implementation's own limit."""
MAX_PADDING = 1 << 16
"""Writers pad the header to eight bytes; a megabyte of blanks is there to hurt a parser."""
DTYPES: dict[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: FileRange


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A file whose header describes exactly its bytes."""

    path: Path
    entries: tuple[Entry, ...]
    metadata: dict[str, str]

    def tensors(self, role: Role, file: str) -> Iterable[LazyTensor]:
        """Its tensors, in the order of their bytes."""
        for entry in self.entries:
            yield LazyTensor(role, entry.name, -1, "", entry.dtype, entry.shape, file, entry.data)


def read_safetensors(path: Path) -> SafetensorsFile:
    """The file's header, checked against its size.

    Raises `Damaged`: torn where bytes are missing, corrupt where the header is not one that a writer makes
    (duplicate names, overlaps, holes, sizes that do not fit), unverifiable for element types not known here.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            if len(head) < 8:
                raise Damaged(f"{path.name}: {size} bytes, too short for a header", Integrity.TORN)
            length = struct.unpack("<Q", head)[0]
            if length > MAX_HEADER:
                raise Damaged(f"{path.name}: announces a header of {length:,} bytes", Integrity.CORRUPT)
            if 8 + length > size:
                raise Damaged(f"{path.name}: ends inside its header", Integrity.TORN)
            text = file.read(length)
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror or error}", Integrity.UNVERIFIABLE) from error
    header = _parse(path.name, text)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise Damaged(f"{path.name}: its __metadata__ is no mapping", Integrity.CORRUPT)
    entries = [_entry(path, name, value, 8 + length) for name, value in header.items()]
    entries.sort(key=lambda entry: (entry.data.offset, entry.data.nbytes))
    _must_tile(path, entries, 8 + length, size)
    return SafetensorsFile(path, tuple(entries), {str(k): str(v) for k, v in metadata.items()})


def _parse(name: str, text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{") or len(text) - len(text.rstrip(b" ")) > MAX_PADDING:
        raise Damaged(f"{name}: its header is not a JSON object padded by a few blanks", Integrity.CORRUPT)
    if len(text) > 1 << 20 and text.count(b" ") > len(text) // 2:
        raise Damaged(f"{name}: its header of {len(text):,} bytes is mostly blanks", Integrity.CORRUPT)
    try:
        header = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name}: broken header ({str(error)[:200]})", Integrity.CORRUPT) from error
    if not isinstance(header, dict):
        raise Damaged(f"{name}: its header is no JSON object", Integrity.CORRUPT)
    return header


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice[:80]!r} appears twice")
    return made


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} in a header")


def _entry(path: Path, name: str, value: Any, start: int) -> Entry:
    fields = value if isinstance(value, dict) else {}
    shape, offsets = _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2 or not isinstance(fields.get("dtype"), str):
        raise Damaged(f"{path.name}: tensor {name[:80]!r} is described in an unknown way", Integrity.CORRUPT)
    dtype = DTYPES.get(value["dtype"])
    if dtype is None:
        raise Damaged(
            f"{path.name}: tensor {name[:80]!r} has the type {value['dtype'][:20]!r}, not known to this version",
            Integrity.UNVERIFIABLE,
        )
    begin, end = offsets
    if end - begin != math.prod(shape) * WIDTHS[dtype]:
        raise Damaged(
            f"{path.name}: tensor {name[:80]!r} of {shape} {dtype} has {end - begin:,} bytes", Integrity.CORRUPT
        )
    return Entry(name, dtype, tuple(shape), FileRange(path, start + begin, end - begin))


def _sizes(value: Any) -> list[int] | None:
    if isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value):
        return value
    return None


def _must_tile(path: Path, entries: list[Entry], start: int, size: int) -> None:
    at = start
    for entry in entries:
        if entry.data.offset != at:
            what = "overlaps" if entry.data.offset < at else "leaves a hole after"
            raise Damaged(f"{path.name}: tensor {entry.name[:80]!r} {what} the one before", Integrity.CORRUPT)
        at += entry.data.nbytes
    if at > size:
        raise Damaged(f"{path.name}: {at - size:,} bytes are missing at its end", Integrity.TORN)
    if at < size:
        raise Damaged(f"{path.name}: {size - at:,} bytes follow the last tensor", Integrity.CORRUPT)
