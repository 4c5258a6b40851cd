"""How does a checkpoint get into the case file by file, so that a kill costs the file at hand and not the rest?

A draft lies beside its pin-to-be. Each file is linked, cloned or copied, hashed in the same pass and noted in the
ledger; whoever comes next, after a kill or on another host, leaves out what the ledger and the file agree about. A
file that was being read when the kill came is read again from its beginning.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from spike.casefile.atomic import fsync_directory, write_all, writing
from spike.casefile.batches import Batch, Meter, in_batches
from spike.casefile.hashing import (
    CHANGED,
    CHUNK_BYTES,
    HashedFile,
    OnBytes,
    OnChunk,
    hash_batch,
    hash_open_file,
    identity_of,
    unread,
)
from spike.casefile.holding import discard, make_frame
from spike.casefile.ledger import Ledger, Noted, stamp
from spike.casefile.links import clone_open
from spike.casefile.tree import TreeEntry, directory_beneath, open_quietly, walk
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import Algorithm, EntryKind, Guarantee, encode_path

OnFileChunk = Callable[[str, int, memoryview], None]
"""(path in the checkpoint, offset, chunk): a file in order from its beginning; several files at once, one a thread."""
TICK_S = 0.02
"""Two writes within one tick of the kernel's clock (10 ms and less) leave one mtime."""
_SKEW_S = 1.0
"""A file server's clock may be ahead by that much; an mtime further in the future was set by hand."""
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint on its way into the case."""

    source: Path
    path: Path
    tree: tuple[TreeEntry, ...]
    pin: str
    """Where it will stand below evidence/; the ledger knows its files by that."""
    guarantee: Guarantee
    algorithm: Algorithm
    ledger: Ledger
    is_directory: bool = True
    """False where the checkpoint is one file, which is then its own only entry."""

    @property
    def files(self) -> list[TreeEntry]:
        """What has bytes."""
        return [e for e in self.tree if e.kind is EntryKind.FILE]

    def prepare(self) -> None:
        """Directories, symlinks, and hard links: all of them before anything is hashed, for a link moves the ctime."""
        self._drop_what_does_not_belong()
        with writing(self.path):
            if self.is_directory:
                make_frame(self.path, self.tree)
            if self.guarantee is Guarantee.HARD_LINK:
                for entry in self.files:
                    self._link(entry)

    def fill(
        self,
        wanted: Collection[str] | None = None,
        *,
        workers: int | None = None,
        on_bytes: OnBytes | None = None,
        on_chunk: OnFileChunk | None = None,
    ) -> dict[str, HashedFile]:
        """Place and hash the files `wanted` (all by default); what is done already is not read, and not counted.

        With `on_chunk`, what is done already is read for its sake, and not hashed.
        """
        files = [e for e in self.files if wanted is None or e.path in wanted]
        done = {e.path: found for e in files if (found := self.done(e)) is not None}
        rest = [(e.path, e.size) for e in files if on_chunk is not None or e.path not in done]

        def work(batch: Batch, meter: Meter) -> list[tuple[str, HashedFile]]:
            if on_chunk is None:
                return self._fill_batch(batch, meter, None)
            known = {name for name in batch.names if batch.path(name) in done}
            for name in sorted(known):
                self._feed(batch.path(name), meter, on_chunk)
            others = tuple(name for name in batch.names if name not in known)
            return self._fill_batch(replace(batch, names=others), meter, on_chunk)

        results = in_batches(rest, work, workers=workers, on_bytes=on_bytes) if rest else []
        filled = done | {path: hashed for result in results for path, hashed in result}
        return {e.path: filled[e.path] for e in files}

    def done(self, entry: TreeEntry) -> HashedFile | None:
        """What the ledger knows of this file, where file and source are still what they were."""
        if self.ledger.noted(self.key(entry.path)) is None:
            return None
        try:
            status, source = os.lstat(self.place(entry.path)), os.lstat(self._original(entry.path))
        except OSError:
            return None
        if self._is_link and status.st_ino != source.st_ino:
            return None
        before = "" if self._is_link else stamp(source)
        digest = self.ledger.digest_of(self.key(entry.path), self.algorithm, status, before)
        return hashed_as(digest, status) if digest else None

    def has_changed_since(self, entry: TreeEntry) -> bool:
        """True where the source was written to after it was read. A run that rotates moves the ctime, and may.

        Of a link this is asked when the manifest's entry is made: there is no other file.
        """
        if self._is_link:
            return False
        noted = self.ledger.noted(self.key(entry.path))
        try:
            now = stamp(os.lstat(self._original(entry.path)))
        except OSError:
            return False  # gone from the run since; the case has it
        return noted is None or now.rpartition(":")[0] != noted.source.rpartition(":")[0]

    def close(self) -> None:
        """Make the names durable."""
        if self.is_directory:
            for entry in self.tree:
                if entry.kind is EntryKind.DIRECTORY:
                    fsync_directory(self.path / entry.path)
            fsync_directory(self.path)

    def key(self, path: str) -> str:
        """The name of one of its files in the ledger: where it will stand below evidence/."""
        return encode_path(f"{self.pin}/{path}" if self.is_directory else self.pin)

    def place(self, path: str) -> str:
        """Where one of its files lies now."""
        return f"{self.path}/{path}" if self.is_directory else os.fspath(self.path)

    def _original(self, path: str) -> str:
        return f"{self.source}/{path}" if self.is_directory else os.fspath(self.source)

    @property
    def _is_link(self) -> bool:
        return self.guarantee is Guarantee.HARD_LINK

    def _drop_what_does_not_belong(self) -> None:
        """Files that the source no longer has; all of it where a name has become another kind of thing."""
        if not self.path.exists():
            return
        belongs = {(e.path, e.kind, e.target) for e in self.tree}
        for old in walk(self.path):
            if (old.path if self.is_directory else self.tree[0].path, old.kind, old.target) in belongs:
                continue
            if old.kind is not EntryKind.FILE or not self.is_directory:
                discard(self.path)
                return
            (self.path / old.path).unlink()

    def _link(self, entry: TreeEntry) -> None:
        source, target = self._original(entry.path), self.place(entry.path)
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            if os.lstat(target).st_ino != os.lstat(source).st_ino:
                Path(target).unlink()
                os.link(source, target, follow_symlinks=False)

    def _fill_batch(
        self, batch: Batch, on_bytes: OnBytes, on_chunk: OnFileChunk | None
    ) -> list[tuple[str, HashedFile]]:
        found: list[tuple[str, HashedFile]] = []
        notes: list[Noted] = []
        linked = self._hash_links(batch, on_bytes) if self._is_link and on_chunk is None else {}
        for name in batch.names:
            path = batch.path(name)
            hashed, source = linked.get(path), ""
            if hashed is None:
                hashed, source = self._fill_one(path, on_bytes, _of_file(path, on_chunk))
            found.append((path, hashed))
            if not hashed.problem:
                known = (hashed.digest, hashed.size, hashed.mtime_ns, hashed.identity)
                notes.append(Noted(self.key(path), self.algorithm, *known, "" if self._is_link else source))
        if notes:
            self.ledger.note(notes)
        return found

    def _hash_links(self, batch: Batch, on_bytes: OnBytes) -> dict[str, HashedFile]:
        """Links of a batch, without opening each source too; what was written a moment ago is left to `_fill_one`."""
        now_ns = time.time_ns()
        root, whole = (self.path, batch) if self.is_directory else (self.path.parent, _alone(self.path, batch))
        hashed = hash_batch(root, whole, self.algorithm, on_bytes)
        rested = [h.problem or not _is_recent(now_ns, h.mtime_ns) for _, h in hashed]
        names = [batch.path(name) for name in batch.names]
        return {path: h for path, (_, h), is_good in zip(names, hashed, rested, strict=True) if is_good}

    def _fill_one(self, path: str, on_bytes: OnBytes, on_chunk: OnChunk | None) -> tuple[HashedFile, str]:
        """(the file in the case, stamp of its source). The source's troubles are in the answer, the case's raised."""
        root, relative = (self.source, path) if self.is_directory else (self.source.parent, self.source.name)
        directory, _, name = relative.rpartition("/")
        try:
            with directory_beneath(root, directory) as parent:
                reader = open_quietly(name, dir_fd=parent)
        except OSError as error:
            return unread(error), ""
        try:
            if not _is_at_rest(reader):
                return HashedFile("", 0, 0, 0, "", problem=CHANGED), ""
            before = os.fstat(reader)
            match self.guarantee:
                case Guarantee.COPY:
                    hashed = self._copy(reader, Path(self.place(path)), on_bytes, on_chunk)
                case _:
                    hashed = self._share(reader, Path(self.place(path)), before, on_bytes, on_chunk)
        except OSError as error:
            return unread(error), ""
        finally:
            os.close(reader)
        return hashed, stamp(before)

    def _copy(self, reader: int, target: Path, on_bytes: OnBytes, on_chunk: OnChunk | None) -> HashedFile:
        """Copy and hash in one pass; the copy keeps the mtime, becomes read-only and is durable."""
        with writing(target):
            target.unlink(missing_ok=True)
            writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

        def write(offset: int, chunk: memoryview) -> None:
            with writing(target):
                write_all(writer, chunk)
            if on_chunk is not None:
                on_chunk(offset, chunk)

        try:
            hashed = hash_open_file(reader, self.algorithm, on_bytes=on_bytes, on_chunk=write)
            with writing(target):
                os.utime(writer, ns=(hashed.mtime_ns, hashed.mtime_ns))
                os.fchmod(writer, 0o444)
                os.fsync(writer)
                status = os.fstat(writer)
        finally:
            os.close(writer)
        return replace(hashed_as(hashed.digest, status), problem=hashed.problem)

    def _share(
        self, reader: int, target: Path, before: os.stat_result, on_bytes: OnBytes, on_chunk: OnChunk | None
    ) -> HashedFile:
        """Hash the link, or the clone once it is made: what is in the case, not what the source holds by then."""
        if self.guarantee is Guarantee.REFLINK:
            with writing(target):
                target.unlink(missing_ok=True)
                if not clone_open(reader, target):
                    raise OSError(errno.EOPNOTSUPP, "the filesystem stopped sharing blocks", os.fspath(target))
                os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
                target.chmod(0o444)
        handle = open_quietly(os.fspath(target))
        try:
            return hash_open_file(handle, self.algorithm, on_bytes=on_bytes, on_chunk=on_chunk)
        finally:
            os.close(handle)

    def _feed(self, path: str, on_bytes: OnBytes, on_chunk: OnFileChunk) -> None:
        """Hand out the chunks of a finished file. Raises `InputUnreadable`."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        offset = 0
        try:
            handle = open_quietly(self.place(path))
            try:
                while count := os.readv(handle, [buffer]):
                    on_chunk(path, offset, buffer[:count])
                    on_bytes(count)
                    offset += count
            finally:
                os.close(handle)
        except OSError as error:
            raise InputUnreadable(f"cannot read {self.place(path)}: {error.strerror}") from error


def hashed_as(digest: str, status: os.stat_result) -> HashedFile:
    """A file whose digest is known, as it stands there now."""
    mode = stat.S_IMODE(status.st_mode)
    return HashedFile(digest, status.st_size, mode, status.st_mtime_ns, identity_of(status))


def _is_at_rest(handle: int) -> bool:
    """True where a write from now on will show in the mtime; waits for that a little."""
    for _ in range(_LOOKS):
        now_ns, mtime_ns = time.time_ns(), os.fstat(handle).st_mtime_ns
        if not _is_recent(now_ns, mtime_ns):
            return True
        time.sleep(TICK_S)
    return mtime_ns > now_ns


def _is_recent(now_ns: int, mtime_ns: int) -> bool:
    return -_SKEW_S < (now_ns - mtime_ns) / 1e9 < TICK_S


def _alone(path: Path, batch: Batch) -> Batch:
    """The batch of a checkpoint that is one file, by its name in the draft."""
    return replace(batch, directory="", names=(path.name,))


def _of_file(path: str, on_chunk: OnFileChunk | None) -> OnChunk | None:
    return None if on_chunk is None else lambda offset, chunk: on_chunk(path, offset, chunk)
