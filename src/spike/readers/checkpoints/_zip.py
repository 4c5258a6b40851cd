"""What is in a torch archive? The members of a `torch.save` file, checked without trusting the file.

torch writes an uncompressed zip: `<name>/data.pkl` describes the objects, `<name>/data/<key>` holds each storage.
torch never checks the CRC of a storage and accepts compressed, duplicate and overlapping members; all of them are
refused here, because an honest writer makes none. (torch/serialization.py, caffe2/serialize/inline_container.cc)
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Integrity
from spike.readers.checkpoints._bytes import FileRange, load
from spike.readers.checkpoints.contract import Checked, Damaged

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC = b"PK\x03\x04"
_END, _END_MAGIC = struct.Struct("<4s4H2LH"), b"PK\x05\x06"
_DEFERRED = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
"""What the short end record says where the long one is to be asked."""
_LOCATOR, _LOCATOR_MAGIC = struct.Struct("<4sLQL"), b"PK\x06\x07"
_LONG_END, _LONG_END_MAGIC = struct.Struct("<4sQ2H2L4Q"), b"PK\x06\x06"
MAX_MEMBERS = 5_000_000


@dataclass(frozen=True, slots=True)
class Archive:
    """A torch archive whose directory holds together."""

    path: Path
    members: dict[str, FileRange]
    """By name without the archive's own prefix: "data.pkl", "data/0"."""
    has_checksums: bool
    """False where the writer was told to leave the CRCs out: content cannot be verified then."""

    def small(self, name: str) -> bytes:
        """A member's content, checked; raises `Damaged` where it is missing or does not match its CRC."""
        member = self.members.get(name)
        if member is None:
            raise Damaged(f"{self.path.name}: has no {name}", Integrity.CORRUPT)
        content = load(member)
        if member.crc is not None and zlib.crc32(content) != member.crc:
            raise Damaged(f"{self.path.name}: {name} does not match its CRC", Integrity.CORRUPT)
        return content


def is_zip(path: Path) -> bool:
    """True where the file starts as a zip archive does."""
    try:
        with path.open("rb") as file:
            return file.read(4) == _LOCAL_MAGIC
    except OSError:
        return False


def open_archive(path: Path, *, start: int = 0, length: int | None = None) -> Archive:
    """The archive in `path`, or in `length` bytes of it from `start` (a slice of a sharded file).

    Raises `Damaged`: torn where the central directory is missing, corrupt where it does not describe the file.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = size - start if length is None else length
            if start + length > size:
                raise Damaged(f"{path.name}: ends {start + length - size:,} bytes early", Integrity.TORN)
            view: Any = file if start == 0 and length == size else _Window(file, start, length)
            with zipfile.ZipFile(view) as archive:
                infos = archive.infolist()
            _check_end(path, file.fileno(), len(infos), start, length)
            ranges = dict(_ranges(path, file.fileno(), infos, start, length))
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror or error}", Integrity.UNVERIFIABLE) from error
    except zipfile.BadZipFile as error:
        raise Damaged(
            f"{path.name}: {length or 0:,} bytes without a readable zip directory ({error})", Integrity.TORN
        ) from error
    except (ValueError, struct.error, NotImplementedError, LookupError, EOFError, OverflowError) as error:
        raise Damaged(f"{path.name}: broken zip directory ({error})", Integrity.CORRUPT) from error
    checksums = any(info.CRC for info in infos)
    if not checksums:
        ranges = {name: FileRange(r.path, r.offset, r.nbytes, None, r.member) for name, r in ranges.items()}
    return Archive(path, ranges, checksums)


def mismatches(archive: Archive, checked: Checked, file: str) -> Iterator[tuple[str, str]]:
    """(member, reason) of members that do not match their CRC, leaving out those already `checked`."""
    buffer = memoryview(bytearray(1 << 20))
    for name, member in archive.members.items():
        if member.crc is None or (str(member.path), member.offset) in checked:
            continue
        crc = 0
        for chunk in member.chunks(lambda: buffer):
            crc = zlib.crc32(chunk, crc)
        if crc != member.crc:
            yield f"{file}!{name}", "does not match its CRC-32"


class _Window:
    """A part of a file that behaves like a file of its own, for zipfile."""

    def __init__(self, file: Any, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._length)[whence]
        if base + offset < 0:
            raise ValueError("seek before the start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        size = left if size < 0 else min(size, left)
        data = os.pread(self._file.fileno(), size, self._start + self._at)
        self._at += len(data)
        return data


def _ranges(
    path: Path, handle: int, infos: list[zipfile.ZipInfo], start: int, length: int
) -> Iterator[tuple[str, FileRange]]:
    """Each member's bytes by its name without prefix, in file order; raises `Damaged` for what no writer makes."""
    if not infos or len(infos) > MAX_MEMBERS:
        raise Damaged(f"{path.name}: a zip archive with {len(infos):,} members", Integrity.CORRUPT)
    prefix = infos[0].filename.partition("/")[0] + "/"
    seen: set[str] = set()
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        name = info.filename.removeprefix(prefix)
        if info.filename in seen:
            raise Damaged(f"{path.name}: holds {name!r} twice", Integrity.CORRUPT)
        seen.add(info.filename)
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise Damaged(f"{path.name}: {name!r} is compressed; torch writes none", Integrity.CORRUPT)
        if info.flag_bits & 0x1:
            raise Damaged(f"{path.name}: {name!r} is encrypted", Integrity.CORRUPT)
        offset = _data_offset(path, handle, info, start, length)
        if info.header_offset < end or (end == 0 and info.header_offset != 0):
            raise Damaged(f"{path.name}: {name!r} does not start where the member before ends", Integrity.CORRUPT)
        end = offset + info.file_size
        if end > length:
            raise Damaged(f"{path.name}: {name!r} reaches past the end of the archive", Integrity.TORN)
        yield name, FileRange(path, start + offset, info.file_size, info.CRC, name)


def _check_end(path: Path, handle: int, num_members: int, start: int, length: int) -> None:
    """The end record must count the members that the directory lists, and lie right behind it.

    Readers of zip files differ in which of the two they believe; a file that says both is read as two things.
    """
    at = length - _END.size
    record = os.pread(handle, _END.size, start + at) if at >= 0 else b""
    if len(record) < _END.size or record[:4] != _END_MAGIC:
        raise Damaged(f"{path.name}: bytes follow the archive's end record", Integrity.CORRUPT)
    short = _END.unpack(record)[3:7]
    told = short
    locator = os.pread(handle, _LOCATOR.size, start + at - _LOCATOR.size) if at >= _LOCATOR.size else b""
    if locator[:4] == _LOCATOR_MAGIC:
        at = _LOCATOR.unpack(locator)[2]
        long = os.pread(handle, _LONG_END.size, start + at) if at < length else b""
        if len(long) < _LONG_END.size or long[:4] != _LONG_END_MAGIC:
            raise Damaged(f"{path.name}: its zip64 end record is not where it should be", Integrity.CORRUPT)
        told = _LONG_END.unpack(long)[6:10]
    here, total, size, offset = told
    agree = all(a in (b, most) for a, b, most in zip(short, told, _DEFERRED, strict=True))
    if not agree or not here == total == num_members or offset + size != at:
        raise Damaged(
            f"{path.name}: its end record tells of {short[1]:,} members, its directory of {num_members:,}, "
            "and they do not lie where it says",
            Integrity.CORRUPT,
        )


def _data_offset(path: Path, handle: int, info: zipfile.ZipInfo, start: int, length: int) -> int:
    """Where the member's bytes begin; the local header must tell the same story as the directory."""
    at = info.header_offset
    head = os.pread(handle, _LOCAL_HEADER.size, start + at) if at + _LOCAL_HEADER.size <= length else b""
    if len(head) < _LOCAL_HEADER.size:
        raise Damaged(f"{path.name}: {info.filename!r} starts past the end of the archive", Integrity.TORN)
    magic, _, flags, method, _, _, _, _, _, name_length, extra_length = _LOCAL_HEADER.unpack(head)
    name = os.pread(handle, name_length, start + at + _LOCAL_HEADER.size)
    if magic != _LOCAL_MAGIC or method != info.compress_type or (flags ^ info.flag_bits) & 0x1:
        raise Damaged(f"{path.name}: the header of {info.filename!r} contradicts the directory", Integrity.CORRUPT)
    if name.decode("utf-8", "replace") != info.orig_filename and name.decode("cp437") != info.orig_filename:
        raise Damaged(f"{path.name}: the header of {info.filename!r} has another name", Integrity.CORRUPT)
    return int(at + _LOCAL_HEADER.size + name_length + extra_length)
