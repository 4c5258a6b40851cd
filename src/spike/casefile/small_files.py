"""How do configuration, logs and sources of the run get into the case without bringing its secrets along?

Text is copied with secrets taken out, and the manifest says how many. A binary file cannot be edited that way: if it
holds what looks like a secret it stays out, with the reason. The run's own file is only read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from spike.casefile.atomic import inside, write_atomic, writing
from spike.casefile.hashing import hash_open_file
from spike.casefile.tree import directory_beneath, open_quietly
from spike.domain.manifest import Algorithm, EntryKind, Exclusion, Guarantee, ManifestEntry, encode_path
from spike.domain.redaction import count_in_binary, redact_counted

MAX_COPY_BYTES = 64 << 20
"""A longer log is named with its digest; its numbers are in signals.parquet anyway."""
_LOOK_BYTES = 8192
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that is in the case now."""

    entry: ManifestEntry
    """Without digest: the manifest takes it from the bytes in the case."""


def copy_small_file(
    root: Path, relative: str, evidence: Path, place: str, role: str, *, max_bytes: int = MAX_COPY_BYTES
) -> Kept | Exclusion:
    """Copy `root/relative` to `evidence/place`; no component of `relative` may be a symlink.

    Returns what is in the case, or why it is not. Raises `SpikeError` where the case cannot be written.
    """
    origin = encode_path(os.fspath(root / relative))
    directory, _, name = relative.rpartition("/")
    try:
        with directory_beneath(root, directory) as parent:
            handle = open_quietly(name, dir_fd=parent)
    except OSError as error:
        return Exclusion(origin, f"cannot be read: {error.strerror or error}")
    try:
        status = os.fstat(handle)
        if status.st_size > max_bytes:
            digest = hash_open_file(handle, Algorithm.SHA256)
            shown = digest.problem or f"sha256 {digest.digest}"
            return Exclusion(origin, f"{status.st_size} bytes are more than a case copies ({max_bytes}); {shown}")
        data = _read(handle, max_bytes)
    except OSError as error:
        return Exclusion(origin, f"cannot be read: {error.strerror or error}")
    finally:
        os.close(handle)
    return keep_bytes(data, evidence, place, role, origin=origin, mtime_ns=status.st_mtime_ns)


def keep_bytes(
    data: bytes, evidence: Path, place: str, role: str, *, origin: str = "", mtime_ns: int | None = None
) -> Kept | Exclusion:
    """Write `data` to `evidence/place` with secrets taken out, read-only, with the original's mtime."""
    safe, redactions = _without_secrets(data)
    if safe is None:
        return Exclusion(origin or place, "a binary file that holds what looks like a secret")
    target = inside(evidence, place)
    write_atomic(target, safe)
    with writing(target):
        if mtime_ns is not None:
            os.utime(target, ns=(mtime_ns, mtime_ns))
        target.chmod(0o444)
    return Kept(
        ManifestEntry(
            path=encode_path(place),
            role=role,
            kind=EntryKind.FILE,
            size=len(safe),
            mode=stat.S_IMODE(target.stat().st_mode),
            mtime_ns=target.stat().st_mtime_ns,
            guarantee=Guarantee.COPY if origin else Guarantee.WRITTEN,
            origin=origin,
            origin_digest=hashlib.sha256(data).hexdigest() if redactions else "",
            redactions=redactions,
        )
    )


def _without_secrets(data: bytes) -> tuple[bytes | None, int]:
    """(bytes to keep, secrets taken out); None for binary data that must stay out."""
    if b"\0" in data[:_LOOK_BYTES]:
        found = count_in_binary(data)
        return (None, found) if found else (data, 0)
    text, count = redact_counted(data.decode("utf-8", "surrogateescape"))
    return (text.encode("utf-8", "surrogateescape"), count) if count else (data, 0)


def _read(handle: int, limit: int) -> bytes:
    """At most `limit` bytes: a log that grows meanwhile is kept as far as it was."""
    pieces: list[bytes] = []
    total = 0
    while total < limit and (piece := os.read(handle, min(_CHUNK_BYTES, limit - total))):
        pieces.append(piece)
        total += len(piece)
    return b"".join(pieces)
