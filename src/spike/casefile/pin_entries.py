"""What does the manifest say of a pinned checkpoint: each file's digest, guarantee, and where it came from?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spike.casefile.hashing import CHANGED, HashedFile, identity_of
from spike.casefile.tree import TreeEntry
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import EntryKind, Exclusion, Guarantee, ManifestEntry, encode_path


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned checkpoint."""

    guarantee: Guarantee
    entries: tuple[ManifestEntry, ...]
    """Paths relative to the directory that the manifest is about."""
    exclusions: tuple[Exclusion, ...] = ()


def describe_pin(
    place: Path,
    root: Path,
    origin: Path,
    tree: tuple[TreeEntry, ...],
    hashed: Mapping[str, HashedFile],
    guarantee: Guarantee,
) -> Pin:
    """The entries of a pin at `place`. Raises `InputUnreadable` for a file that is not the one that was hashed."""
    entries: list[ManifestEntry] = []
    is_directory = place.is_dir()
    at, name, original = os.fspath(place), place.relative_to(root).as_posix(), os.fspath(origin)
    if is_directory:
        entries.append(_entry(at, name, EntryKind.DIRECTORY, None, guarantee, original))
    for item in tree:
        if item.kind is not EntryKind.OTHER:
            below = f"/{item.path}" if is_directory else ""
            hashed_now = hashed.get(item.path)
            entries.append(_entry(at + below, name + below, item.kind, hashed_now, guarantee, original + below))
    others = tuple(
        Exclusion(encode_path(os.fspath(origin / item.path)), "neither file, directory nor symlink")
        for item in tree
        if item.kind is EntryKind.OTHER
    )
    return Pin(guarantee, tuple(entries), others)


def _entry(
    place: str, name: str, kind: EntryKind, hashed: HashedFile | None, guarantee: Guarantee, origin: str
) -> ManifestEntry:
    status = os.lstat(place)
    if hashed is not None and not _is_that(status, hashed):
        raise InputUnreadable(f"{origin}: {CHANGED}", hint="wait until the save is over: spike freeze")
    return ManifestEntry(
        path=encode_path(name),
        role="checkpoint",
        kind=kind,
        size=status.st_size if kind is not EntryKind.DIRECTORY else 0,
        mode=status.st_mode & 0o7777,
        mtime_ns=status.st_mtime_ns,
        digest=hashed.digest if hashed else "",
        target=encode_path(os.fspath(Path(place).readlink())) if kind is EntryKind.SYMLINK else "",
        guarantee=guarantee,
        origin=encode_path(origin),
        identity=identity_of(status) if kind is EntryKind.FILE else "",
    )


def _is_that(status: os.stat_result, hashed: HashedFile) -> bool:
    """True for the file that was hashed; renaming it, or taking another of its names away, moves only the ctime."""
    now = (str(status.st_ino), status.st_size, status.st_mtime_ns)
    return now == (hashed.identity.partition(":")[0], hashed.size, hashed.mtime_ns)
