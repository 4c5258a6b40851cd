"""How do objects of a store become a pinned checkpoint, so that a kill costs the object at hand and not the rest?

Each object is written, hashed and made durable in one pass and noted in the ledger with its version, mark and size;
whoever comes next leaves out what ledger, file and store agree about. The pin appears under its name when every
object is there, and not before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spike.casefile.atomic import fsync_directory, inside, write_all, writing
from spike.casefile.hashing import HashedFile, hash_file, identity_of, new_hasher
from spike.casefile.ledger import Ledger, Noted
from spike.casefile.tree import walk
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import Algorithm, EntryKind, Guarantee, ManifestEntry, encode_path

OnFileChunk = Callable[[str, int, memoryview], None]
"""(path in the checkpoint, offset, chunk): every byte of every file, one file after the other, in order."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One object on its way into the case."""

    path: str
    """Of its file, relative to the pin; "" where the pin is this one file."""
    origin: str
    """Its address."""
    size: int
    modified_ns: int
    version: str
    etag: str
    blocks: Callable[[], Iterator[bytes]]
    """Asks for the bytes of this version, from the first one on."""

    @property
    def mark(self) -> str:
        """Equal marks mean the same bytes."""
        return f"{self.version}|{self.etag}|{self.size}|{'' if self.etag else self.modified_ns}"


@dataclass(frozen=True, slots=True)
class Reception:
    """A pin that is being filled: the draft beside it, and what is known of its files."""

    evidence: Path
    destination: Path
    draft: Path
    """Where objects lie until all of them are there; on the same filesystem."""
    algorithm: Algorithm
    ledger: Ledger

    def held_bytes(self) -> int:
        """What of it is here already."""
        if not self.draft.exists():
            return 0
        return sum(entry.size for entry in walk(self.draft) if entry.kind is EntryKind.FILE)

    def is_complete(self) -> bool:
        """True where an interrupted freeze had all of it."""
        return self.destination.exists()

    def has(self, incoming: Incoming) -> bool:
        """True where this object's bytes are here already and have not moved since."""
        return self._known(self.draft, incoming) is not None

    def take(
        self,
        incoming: Incoming,
        *,
        on_bytes: Callable[[int], None] | None = None,
        on_chunk: OnFileChunk | None = None,
    ) -> None:
        """Write, hash and note one object, or leave it as it is where it is here already.

        Raises what `blocks` raises, `InputUnreadable` for an object that ends early or late, `SpikeError` where the
        case cannot be written. What was written of it stays unnoted and is written again.
        """
        if self.has(incoming):
            return
        target = _at(self.draft, incoming.path)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            digest = self._write(writer, target, incoming, on_bytes, on_chunk)
            with writing(target):
                os.utime(writer, ns=(incoming.modified_ns, incoming.modified_ns))
                os.fchmod(writer, 0o444)
                os.fsync(writer)
                status = os.fstat(writer)
        finally:
            os.close(writer)
        self._note(incoming, digest, status)

    def close(self, incoming: Iterable[Incoming]) -> tuple[ManifestEntry, ...]:
        """Give the pin its name, and say what is in it. Files of the draft that no object stands for are dropped."""
        wanted = {found.path: found for found in incoming}
        if not self.is_complete():
            self._drop_others(frozenset(wanted))
            single = wanted.get("")
            known = self._known(self.draft, single) if single is not None else None
            self._rename()
            if single is not None and known is not None:
                # Renaming a file moves its ctime, by which it is recognised.
                status = self.destination.lstat()
                self._note(single, known.digest, status)
        return tuple(self._entries(wanted))

    def _rename(self) -> None:
        with writing(self.destination):
            for folder in (self.draft, *self.draft.rglob("*")):
                if folder.is_dir():
                    fsync_directory(folder)
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            self.draft.rename(self.destination)
            fsync_directory(self.destination.parent)

    def _note(self, incoming: Incoming, digest: str, status: os.stat_result) -> None:
        noted = (status.st_size, status.st_mtime_ns, identity_of(status), incoming.mark)
        self.ledger.note([Noted(self._key(incoming.path), self.algorithm, digest, *noted)])

    def _write(
        self,
        writer: int,
        target: Path,
        incoming: Incoming,
        on_bytes: Callable[[int], None] | None,
        on_chunk: OnFileChunk | None,
    ) -> str:
        hasher, total = new_hasher(self.algorithm), 0
        for block in incoming.blocks():
            hasher.update(block)
            with writing(target):
                write_all(writer, block)
            if on_chunk is not None:
                on_chunk(incoming.path, total, memoryview(block))
            total += len(block)
            if on_bytes is not None:
                on_bytes(len(block))
        if total != incoming.size:
            raise InputUnreadable(f"{incoming.origin}: {total} of {incoming.size} bytes came")
        return hasher.hexdigest()

    def _entries(self, wanted: dict[str, Incoming]) -> Iterator[ManifestEntry]:
        is_single = "" in wanted
        base = next(iter(wanted.values())).origin if wanted else ""
        for entry in walk(self.destination):
            place = self.destination if is_single else self.destination / entry.path
            found = wanted.get("" if is_single else entry.path)
            if entry.kind is EntryKind.FILE and found is not None:
                yield self._entry(place, found)
            elif entry.kind is EntryKind.DIRECTORY:
                yield _directory(place, self.evidence)
            else:
                raise InputUnreadable(f"{place} is in the case, and no object of {base} stands for it")
        if not is_single:
            yield _directory(self.destination, self.evidence)

    def _entry(self, place: Path, found: Incoming) -> ManifestEntry:
        known = self._known(self.destination, found) or hash_file(place, self.algorithm)
        if known.problem:
            raise InputUnreadable(f"{place}: {known.problem}")
        return ManifestEntry(
            path=encode_path(place.relative_to(self.evidence).as_posix()),
            role="checkpoint",
            kind=EntryKind.FILE,
            size=known.size,
            mode=known.mode,
            mtime_ns=known.mtime_ns,
            digest=known.digest,
            guarantee=Guarantee.COPY,
            origin=encode_path(found.origin),
            identity=known.identity,
            version=found.version,
            etag=found.etag,
        )

    def _known(self, base: Path, incoming: Incoming) -> HashedFile | None:
        try:
            status = _at(base, incoming.path).lstat()
        except OSError:
            return None
        digest = self.ledger.digest_of(self._key(incoming.path), self.algorithm, status, incoming.mark)
        if not digest or not stat.S_ISREG(status.st_mode):
            return None
        mode = stat.S_IMODE(status.st_mode)
        return HashedFile(digest, status.st_size, mode, status.st_mtime_ns, identity_of(status))

    def _drop_others(self, wanted: frozenset[str]) -> None:
        if "" in wanted:
            return
        with writing(self.draft):
            for entry in reversed(walk(self.draft)):
                if entry.kind is not EntryKind.DIRECTORY and entry.path not in wanted:
                    (self.draft / entry.path).unlink()
                elif entry.kind is EntryKind.DIRECTORY and not any(p.startswith(f"{entry.path}/") for p in wanted):
                    (self.draft / entry.path).rmdir()

    def _key(self, path: str) -> str:
        return encode_path(_at(self.destination, path).relative_to(self.evidence).as_posix())


def _at(base: Path, path: str) -> Path:
    return inside(base, path) if path else base


def _directory(place: Path, root: Path) -> ManifestEntry:
    status = os.lstat(place)
    return ManifestEntry(
        path=encode_path(place.relative_to(root).as_posix()),
        role="checkpoint",
        kind=EntryKind.DIRECTORY,
        size=0,
        mode=stat.S_IMODE(status.st_mode),
        mtime_ns=status.st_mtime_ns,
        guarantee=Guarantee.COPY,
    )
