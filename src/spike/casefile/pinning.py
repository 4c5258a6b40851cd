"""How does a case hold on to a checkpoint that the run may rotate away or overwrite a minute from now?

Reflink where the filesystem can (own inode, no bytes moved); else a copy, for small checkpoints and for those
that the run will write again under the same name; else a hard link, which survives deletion and rename and does
NOT survive overwriting in place. The guarantee that was got is named in the manifest, never assumed. In the run
nothing changes but the link count of hard-linked files.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spike.casefile.atomic import fsync_directory, writing
from spike.casefile.hashing import HashedFile, hash_open_file, hash_tree
from spike.casefile.links import can_clone, can_link, clone
from spike.casefile.tree import TreeEntry, directory_beneath, escapes, open_quietly, walk
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.manifest import Algorithm, EntryKind, Exclusion, Guarantee, ManifestEntry, encode_path

COPY_BELOW_BYTES = 2 << 30
"""A checkpoint smaller than this is copied in seconds; above it a link is made and its weakness named."""
SPARE_BYTES = 64 << 20
"""A copy leaves this much, and room for one more checkpoint of the same size: the run is about to write it."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned checkpoint."""

    guarantee: Guarantee
    entries: tuple[ManifestEntry, ...]
    """Paths relative to the directory that the manifest is about."""
    exclusions: tuple[Exclusion, ...] = ()


def hold(source: Path, place: Path) -> Path:
    """Keep the files of `source` from disappearing until they are pinned; a matter of milliseconds.

    Returns the place to pin from: hard links at `place`, or `source` itself where the filesystem allows none.
    What an earlier, interrupted freeze held there is kept: it is the older evidence.
    """
    if place.exists():
        return place
    source = source.resolve()
    draft = place.with_name(f"{place.name}.tmp")
    _discard(draft)
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        tree = _walk_source(source)
        if source.is_dir():
            _make_frame(draft, tree)
        for entry in tree:
            if entry.kind is EntryKind.FILE:
                target = draft / entry.path if source.is_dir() else draft
                os.link(_at(source, entry), target, follow_symlinks=False)
        draft.rename(place)
    except OSError:
        _discard(draft)
        return source
    return place


def pin_checkpoint(
    source: Path,
    destination: Path,
    *,
    root: Path,
    origin: Path | None = None,
    algorithm: Algorithm = Algorithm.SHA256,
    written_again: bool = False,
    copy_below_bytes: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Pin:
    """Hold `source` (file or directory) at `destination` below `root`, with the digest of every byte held.

    `origin` is what the manifest names as the original, `source` by default. `written_again` says that the run
    reuses the name, so that a hard link would not keep these bytes; `copy_below_bytes` is COPY_BELOW_BYTES by
    default. The pin appears under its name complete and durable, or not at all.
    Raises `InputUnreadable` for a checkpoint that cannot be held as it is (changing, unreadable, pointing
    outside of itself), `SpikeError` where the case cannot be written.
    """
    source = source.resolve()
    origin = origin or source
    tree = _walk_source(source)
    draft = destination.with_name(f".{destination.name}.pinning")
    _discard(draft)
    with writing(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        copy_below = COPY_BELOW_BYTES if copy_below_bytes is None else copy_below_bytes
        guarantee = _choose(source, tree, destination.parent, written_again, copy_below)
        hashed = _fill(source, draft, tree, guarantee, algorithm, on_bytes)
        with writing(destination):
            draft.rename(destination)
            fsync_directory(destination.parent)
    except BaseException:
        _discard(draft)
        raise
    entries = _entries(source.is_dir(), origin, destination, root, tree, hashed, guarantee)
    others = tuple(
        Exclusion(encode_path(os.fspath(origin / e.path)), "neither file, directory nor symlink")
        for e in tree
        if e.kind is EntryKind.OTHER
    )
    return Pin(guarantee, entries, others)


def release(path: Path) -> int:
    """Let go of one pin; returns the number of files removed. The run's own files stay as they are."""
    num_files = sum(e.kind is EntryKind.FILE for e in walk(path)) if path.exists() else 0
    with writing(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if path.parent.is_dir():
            with suppress(OSError):  # another pin lies beside it
                path.parent.rmdir()
                path = path.parent
            fsync_directory(path.parent)
    return num_files


def _walk_source(source: Path) -> tuple[TreeEntry, ...]:
    try:
        tree = walk(source)
    except OSError as error:
        raise InputUnreadable(f"cannot read checkpoint {source}: {error.strerror}") from error
    for entry in tree:
        if entry.problem:
            raise InputUnreadable(f"cannot read {source / entry.path}: {entry.problem}")
        if entry.kind is EntryKind.SYMLINK and (not source.is_dir() or escapes(entry.path, entry.target)):
            raise InputUnreadable(f"{source / entry.path} is a symlink to {entry.target}, outside the checkpoint")
    return tree


def _choose(source: Path, tree: tuple[TreeEntry, ...], parent: Path, written_again: bool, copy_below: int) -> Guarantee:
    """The strongest guarantee that this filesystem and the free space allow."""
    files = [e for e in tree if e.kind is EntryKind.FILE]
    if not files:
        raise InputUnreadable(f"checkpoint {source} has no files")
    num_bytes = sum(e.size for e in files)
    if can_clone(_at(source, files[0]), parent):
        return Guarantee.REFLINK
    usage = os.statvfs(parent)
    fits = 2 * num_bytes + SPARE_BYTES <= usage.f_bavail * usage.f_frsize
    is_linkable = can_link(_at(source, files[0]), parent)
    if fits and (written_again or num_bytes <= copy_below or not is_linkable):
        return Guarantee.COPY
    if is_linkable:
        return Guarantee.HARD_LINK
    raise SpikeError(
        f"{parent} has no room for a copy of {source} ({num_bytes / 1e6:.0f} MB, and as much is left for the run)",
        hint="free space there, or keep cases on another filesystem: SPIKE_CASES=DIR spike freeze",
    )


def _fill(
    source: Path,
    draft: Path,
    tree: tuple[TreeEntry, ...],
    guarantee: Guarantee,
    algorithm: Algorithm,
    on_bytes: Callable[[int], None] | None,
) -> dict[str, HashedFile]:
    """Make the draft and return the digests of what it holds, not of what the source held."""
    is_directory = source.is_dir()
    with writing(draft):
        if is_directory:
            _make_frame(draft, tree)
    files = [e for e in tree if e.kind is EntryKind.FILE]
    if guarantee is Guarantee.COPY:
        hashed = {e.path: _copy(source, draft, e.path, algorithm, on_bytes) for e in files}
    else:
        for entry in files:
            _link_or_clone(_at(source, entry), draft / entry.path if is_directory else draft, guarantee)
        hashed = _hash_draft(draft, files, algorithm, on_bytes)
    for path, result in hashed.items():
        if result.problem:
            shown = source / path if is_directory else source
            raise InputUnreadable(f"{shown}: {result.problem}", hint="wait until the save is over: spike freeze")
    if is_directory:
        for entry in tree:
            if entry.kind is EntryKind.DIRECTORY:
                fsync_directory(draft / entry.path)
        fsync_directory(draft)
    return hashed


def _make_frame(draft: Path, tree: tuple[TreeEntry, ...]) -> None:
    """Directories and symlinks of the source; a walk lists every directory before what is in it."""
    draft.mkdir()
    for entry in tree:
        if entry.kind is EntryKind.DIRECTORY:
            (draft / entry.path).mkdir()
        elif entry.kind is EntryKind.SYMLINK:
            (draft / entry.path).symlink_to(entry.target)


def _hash_draft(
    draft: Path, files: list[TreeEntry], algorithm: Algorithm, on_bytes: Callable[[int], None] | None
) -> dict[str, HashedFile]:
    if draft.is_dir():
        return hash_tree(draft, [(e.path, e.size) for e in files], algorithm, on_bytes=on_bytes)
    found = hash_tree(draft.parent, [(draft.name, files[0].size)], algorithm, on_bytes=on_bytes)
    return {files[0].path: found[draft.name]}


def _link_or_clone(source: Path, target: Path, guarantee: Guarantee) -> None:
    with writing(target):
        if guarantee is Guarantee.HARD_LINK:
            os.link(source, target, follow_symlinks=False)
            return
        if not clone(source, target):
            raise OSError(errno.EOPNOTSUPP, "the filesystem stopped sharing blocks", os.fspath(target))
        status = os.lstat(source)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        target.chmod(0o444)


def _copy(
    source: Path, draft: Path, path: str, algorithm: Algorithm, on_bytes: Callable[[int], None] | None
) -> HashedFile:
    """Copy and hash in one pass; the copy keeps the mtime and becomes read-only."""
    is_directory = source.is_dir()
    target = draft / path if is_directory else draft
    root, relative = (source, path) if is_directory else (source.parent, source.name)
    directory, _, name = relative.rpartition("/")
    try:
        with directory_beneath(root, directory) as parent:
            reader = open_quietly(name, dir_fd=parent)
    except OSError as error:
        raise InputUnreadable(f"cannot read {root / relative}: {error.strerror}") from error
    try:
        with writing(target):
            writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                hashed = hash_open_file(reader, algorithm, into=writer, on_bytes=on_bytes)
                os.utime(writer, ns=(hashed.mtime_ns, hashed.mtime_ns))
                os.fchmod(writer, 0o444)
                os.fsync(writer)
            finally:
                os.close(writer)
    finally:
        os.close(reader)
    return hashed


def _entries(
    is_directory: bool,
    origin: Path,
    destination: Path,
    root: Path,
    tree: tuple[TreeEntry, ...],
    hashed: dict[str, HashedFile],
    guarantee: Guarantee,
) -> tuple[ManifestEntry, ...]:
    entries: list[ManifestEntry] = []
    if is_directory:
        entries.append(_entry_of(destination, root, EntryKind.DIRECTORY, None, guarantee, origin))
    for entry in tree:
        if entry.kind is EntryKind.OTHER:
            continue
        place, original = (destination / entry.path, origin / entry.path) if is_directory else (destination, origin)
        entries.append(_entry_of(place, root, entry.kind, hashed.get(entry.path), guarantee, original))
    return tuple(entries)


def _entry_of(
    place: Path, root: Path, kind: EntryKind, hashed: HashedFile | None, guarantee: Guarantee, origin: Path
) -> ManifestEntry:
    status = os.lstat(place)
    return ManifestEntry(
        path=encode_path(place.relative_to(root).as_posix()),
        role="checkpoint",
        kind=kind,
        size=status.st_size if kind is not EntryKind.DIRECTORY else 0,
        mode=status.st_mode & 0o7777,
        mtime_ns=status.st_mtime_ns,
        digest=hashed.digest if hashed else "",
        target=encode_path(str(place.readlink())) if kind is EntryKind.SYMLINK else "",
        guarantee=guarantee,
        origin=encode_path(os.fspath(origin)),
        identity=f"{status.st_ino}:{status.st_ctime_ns}" if kind is EntryKind.FILE else "",
    )


def _at(source: Path, entry: TreeEntry) -> Path:
    return source / entry.path if source.is_dir() else source


def _discard(draft: Path) -> None:
    if draft.is_dir() and not draft.is_symlink():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            draft.unlink()
