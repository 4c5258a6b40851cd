"""Which bytes are in these files, exactly, and did they hold still while they were read?

One pass, 1 MiB at a time into one buffer; small files are read whole and grouped by bytes, because one task a
file is four times slower than a plain loop. A file whose size, mtime, ctime or inode differs after reading from
before is never called good.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spike.casefile.atomic import write_all
from spike.casefile.tree import directory_beneath, open_quietly
from spike.domain.manifest import Algorithm

CHUNK_BYTES = 1 << 20
BATCH_BYTES = 32 << 20
BATCH_FILES = 512
MAX_WORKERS = 8
"""Storage, not cores, is the limit beyond that."""


class Hasher(Protocol):
    """The part of hashlib's interface that is needed."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Add bytes."""

    def hexdigest(self) -> str:
        """The digest of everything added."""


@dataclass(frozen=True, slots=True)
class HashedFile:
    """What one pass over a file found."""

    digest: str
    """"" where there is a problem."""
    size: int
    mode: int
    mtime_ns: int
    identity: str
    """Inode and ctime_ns."""
    problem: str = ""
    """Why the digest cannot be trusted: "changed while it was read", or the system's reason."""


def new_hasher(algorithm: Algorithm) -> Hasher:
    """A fresh digest. BLAKE3 stays single-threaded: files are the unit of parallel work here."""
    match algorithm:
        case Algorithm.SHA256:
            return hashlib.sha256()
        case Algorithm.BLAKE3:
            from blake3 import blake3

            hasher: Hasher = blake3()
            return hasher


def hash_open_file(
    handle: int, algorithm: Algorithm, *, into: int | None = None, on_bytes: Callable[[int], None] | None = None
) -> HashedFile:
    """Digest of an open file from its beginning; with `into`, the bytes are written there in the same pass."""
    before = os.fstat(handle)
    hasher = new_hasher(algorithm)
    # One byte more than the size, so that a file that grew shows without another read.
    buffer = bytearray(min(max(before.st_size + 1, 4096), CHUNK_BYTES))
    view = memoryview(buffer)
    total = 0
    while count := os.readv(handle, [buffer]):
        hasher.update(view[:count])
        if into is not None:
            write_all(into, view[:count])
        total += count
        if on_bytes is not None:
            on_bytes(count)
        if count < len(buffer) and total >= before.st_size:
            break  # a short read at the known end is the end of a regular file
    after = os.fstat(handle)
    moved = _stamp(before) != _stamp(after) or total != after.st_size
    return HashedFile(
        digest="" if moved else hasher.hexdigest(),
        size=after.st_size,
        mode=stat.S_IMODE(after.st_mode),
        mtime_ns=after.st_mtime_ns,
        identity=identity_of(after),
        problem="changed while it was read" if moved else "",
    )


def hash_file(path: Path, algorithm: Algorithm = Algorithm.SHA256) -> HashedFile:
    """Digest of one file; the last component may not be a symlink. Raises `OSError`."""
    handle = open_quietly(os.fspath(path))
    try:
        return hash_open_file(handle, algorithm)
    finally:
        os.close(handle)


def hash_tree(
    root: Path,
    files: Iterable[tuple[str, int]],
    algorithm: Algorithm = Algorithm.SHA256,
    *,
    workers: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> dict[str, HashedFile]:
    """Digests of the regular files `(relative path, expected size)` below `root`, by path.

    A file that cannot be read is in the answer with its problem; nothing is raised for it.
    """
    batches = _batches(files)
    num_workers = workers or min(MAX_WORKERS, os.cpu_count() or 1)
    if num_workers == 1 or len(batches) == 1:
        results = [_hash_batch(root, batch, algorithm, on_bytes) for batch in batches]
    else:
        with ThreadPoolExecutor(num_workers, thread_name_prefix="hash") as pool:
            jobs = [pool.submit(_hash_batch, root, batch, algorithm, on_bytes) for batch in batches]
            results = [job.result() for job in jobs]
    return {path: hashed for result in results for path, hashed in result}


def identity_of(status: os.stat_result) -> str:
    """Inode and ctime as text: the same again means that nobody wrote to the file since."""
    return f"{status.st_ino}:{status.st_ctime_ns}"


def _batches(files: Iterable[tuple[str, int]]) -> list[tuple[str, list[str]]]:
    """(directory, names) groups of at most BATCH_FILES files and, beyond one file, BATCH_BYTES."""
    by_directory: dict[str, list[tuple[str, int]]] = {}
    for path, size in files:
        directory, _, name = path.rpartition("/")
        by_directory.setdefault(directory, []).append((name, size))
    batches: list[tuple[str, list[str]]] = []
    for directory, members in by_directory.items():
        names: list[str] = []
        num_bytes = 0
        for name, size in members:
            if names and (len(names) >= BATCH_FILES or num_bytes + size > BATCH_BYTES):
                batches.append((directory, names))
                names, num_bytes = [], 0
            names.append(name)
            num_bytes += size
        batches.append((directory, names))
    return batches


def _hash_batch(
    root: Path,
    batch: tuple[str, Sequence[str]],
    algorithm: Algorithm,
    on_bytes: Callable[[int], None] | None,
) -> list[tuple[str, HashedFile]]:
    directory, names = batch
    prefix = f"{directory}/" if directory else ""
    try:
        with directory_beneath(root, directory) as handle:
            return [(prefix + name, _hash_named(name, handle, algorithm, on_bytes)) for name in names]
    except OSError as error:
        return [(prefix + name, _unread(error)) for name in names]


def _hash_named(name: str, directory: int, algorithm: Algorithm, on_bytes: Callable[[int], None] | None) -> HashedFile:
    try:
        handle = open_quietly(name, dir_fd=directory)
    except OSError as error:
        return _unread(error)
    try:
        return hash_open_file(handle, algorithm, on_bytes=on_bytes)
    except OSError as error:
        return _unread(error)
    finally:
        os.close(handle)


def _unread(error: OSError) -> HashedFile:
    return HashedFile("", 0, 0, 0, "", problem=error.strerror or str(error))


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
