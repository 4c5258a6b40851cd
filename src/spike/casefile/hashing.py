"""Which bytes are in these files, exactly, and did they hold still while they were read?

One pass, 1 MiB at a time; whoever else needs the bytes (a copy, a scan) gets the same chunks, and the digest is then
taken in a second thread. A file whose size, mtime, ctime or inode differs after reading from before is never called
good. A name that was removed or added meanwhile (a run that rotates) moves the ctime too, and is no change.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spike.casefile.batches import Batch, Meter, in_batches
from spike.casefile.tree import directory_beneath, open_quietly
from spike.domain.manifest import Algorithm

CHUNK_BYTES = 1 << 20
RING = 4
"""Buffers between the reading and the hashing thread."""
SMALL_BYTES = 64 << 10
"""Such files are read in one call."""
THREAD_WORTHWHILE = 4 << 20
"""For a smaller file a thread costs more than it saves."""
CHANGED = "changed while it was read"

OnBytes = Callable[[int], None]
"""Told how many more bytes were read."""
OnChunk = Callable[[int, memoryview], None]
"""(offset, chunk), in file order; the chunk is valid until the call returns."""
OnHashed = Callable[[list[tuple[str, "HashedFile"]]], None]
"""Told, by any worker, which files are done."""


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
    handle: int, algorithm: Algorithm, *, on_bytes: OnBytes | None = None, on_chunk: OnChunk | None = None
) -> HashedFile:
    """Digest of an open file from its beginning; `on_chunk` gets every chunk of the same pass."""
    before = os.fstat(handle)
    hasher = new_hasher(algorithm)
    if on_chunk is None and before.st_size < SMALL_BYTES:
        total = _hash_small(handle, before.st_size, hasher, on_bytes)
    else:
        total = _hash_chunks(handle, before.st_size, hasher, on_bytes, on_chunk)
    after = os.fstat(handle)
    moved = has_moved(before, after) or total != after.st_size
    return HashedFile(
        digest="" if moved else hasher.hexdigest(),
        size=after.st_size,
        mode=stat.S_IMODE(after.st_mode),
        mtime_ns=after.st_mtime_ns,
        identity=identity_of(after),
        problem=CHANGED if moved else "",
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
    on_bytes: OnBytes | None = None,
    on_hashed: OnHashed | None = None,
) -> dict[str, HashedFile]:
    """Digests of the regular files `(relative path, expected size)` below `root`, by path.

    A file that cannot be read is in the answer with its problem; nothing is raised for it. `on_hashed` is told after
    each batch.
    """

    def work(batch: Batch, meter: Meter) -> list[tuple[str, HashedFile]]:
        found = hash_batch(root, batch, algorithm, meter)
        if on_hashed is not None:
            on_hashed(found)
        return found

    results = in_batches(files, work, workers=workers, on_bytes=on_bytes)
    return {path: hashed for result in results for path, hashed in result}


def identity_of(status: os.stat_result) -> str:
    """Inode and ctime as text: the same again means that nobody wrote to the file since."""
    return f"{status.st_ino}:{status.st_ctime_ns}"


def has_moved(before: os.stat_result, after: os.stat_result) -> bool:
    """True where the file may hold other bytes than before; a changed number of names alone is no reason."""
    if (before.st_ino, before.st_size, before.st_mtime_ns) != (after.st_ino, after.st_size, after.st_mtime_ns):
        return True
    return before.st_ctime_ns != after.st_ctime_ns and before.st_nlink == after.st_nlink


def unread(error: OSError) -> HashedFile:
    """What is known of a file that could not be read."""
    return HashedFile("", 0, 0, 0, "", problem=error.strerror or str(error))


def _hash_small(handle: int, size: int, hasher: Hasher, on_bytes: OnBytes | None) -> int:
    """Read a file in one call, as long as the system gives all of it; returns the bytes read."""
    total = 0
    while data := os.read(handle, size + 1 - total):
        hasher.update(data)
        total += len(data)
        if on_bytes is not None:
            on_bytes(len(data))
        if total >= size:
            break
    return total


def _hash_chunks(handle: int, size: int, hasher: Hasher, on_bytes: OnBytes | None, on_chunk: OnChunk | None) -> int:
    # One byte more than the size, so that a file that grew shows without another read.
    length = min(max(size + 1, 4096), CHUNK_BYTES)
    is_shared = on_chunk is not None and size >= THREAD_WORTHWHILE
    total = 0
    with _beside(hasher, length) if is_shared else _in_turn(hasher, length) as (lend, hand_in):
        while count := os.readv(handle, [buffer := lend()]):
            chunk = buffer[:count]
            hand_in(chunk)
            if on_chunk is not None:
                on_chunk(total, chunk)
            total += count
            if on_bytes is not None:
                on_bytes(count)
            if count < length and total >= size:
                break  # a short read at the known end is the end of a regular file
    return total


_Ring = tuple[Callable[[], memoryview], Callable[[memoryview], object]]
"""(lends the next buffer, takes it back with bytes in it)."""


@contextmanager
def _in_turn(hasher: Hasher, length: int) -> Iterator[_Ring]:
    """One buffer, hashed before it is used again."""
    buffer = memoryview(bytearray(length))
    yield lambda: buffer, hasher.update


@contextmanager
def _beside(hasher: Hasher, length: int) -> Iterator[_Ring]:
    """A ring of buffers, hashed by a second thread in the order in which they come."""
    ring = [memoryview(bytearray(length)) for _ in range(RING)]
    busy: list[Future[object] | None] = [None] * RING
    turn = 0

    def lend() -> memoryview:
        nonlocal turn
        turn = (turn + 1) % RING
        pending = busy[turn]
        if pending is not None:
            pending.result()
        return ring[turn]

    with ThreadPoolExecutor(1, thread_name_prefix="spike-hash") as pool:

        def hand_in(chunk: memoryview) -> None:
            busy[turn] = pool.submit(hasher.update, chunk)

        yield lend, hand_in
    for pending in busy:
        if pending is not None:
            pending.result()


def hash_batch(root: Path, batch: Batch, algorithm: Algorithm, on_bytes: OnBytes) -> list[tuple[str, HashedFile]]:
    """(path, digest) of each file of a batch, in its order; nothing is raised for one that cannot be read."""
    try:
        with directory_beneath(root, batch.directory) as handle:
            return [(batch.path(name), _hash_named(name, handle, algorithm, on_bytes)) for name in batch.names]
    except OSError as error:
        return [(batch.path(name), unread(error)) for name in batch.names]


def _hash_named(name: str, directory: int, algorithm: Algorithm, on_bytes: OnBytes) -> HashedFile:
    try:
        handle = open_quietly(name, dir_fd=directory)
    except OSError as error:
        return unread(error)
    try:
        return hash_open_file(handle, algorithm, on_bytes=on_bytes)
    except OSError as error:
        return unread(error)
    finally:
        os.close(handle)
