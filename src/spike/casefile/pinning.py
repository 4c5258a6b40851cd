"""How does a case hold on to a checkpoint that the run may rotate away or overwrite a minute from now?

Reflink where the filesystem can (own inode, no bytes moved); else a copy, for small checkpoints and for those
that the run will write again under the same name; else a hard link, which survives deletion and rename and does
NOT survive overwriting in place. The guarantee that was got is named in the manifest, never assumed. In the run
nothing changes but the link count of hard-linked files.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spike.casefile.atomic import fsync_directory, writing
from spike.casefile.draft import Draft, OnFileChunk, hashed_as
from spike.casefile.hashing import CHANGED, HashedFile, OnBytes, hash_tree
from spike.casefile.holding import at, discard, walk_checkpoint
from spike.casefile.ledger import Ledger, Noted
from spike.casefile.links import can_clone, can_link
from spike.casefile.pin_entries import Pin, describe_pin
from spike.casefile.tree import TreeEntry, walk
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.manifest import Algorithm, EntryKind, Guarantee, encode_path

__all__ = ["COPY_BELOW_BYTES", "SPARE_BYTES", "Pin", "draft_pin", "pin_checkpoint", "release"]

COPY_BELOW_BYTES = 2 << 30
"""A checkpoint smaller than this is copied in seconds; above it a link is made and its weakness named."""
SPARE_BYTES = 64 << 20
"""A copy leaves this much, and room for one more checkpoint of the same size: the run is about to write it."""


def draft_pin(
    source: Path,
    destination: Path,
    *,
    root: Path,
    algorithm: Algorithm = Algorithm.SHA256,
    written_again: bool = False,
    copy_below_bytes: int | None = None,
    ledger: Ledger | None = None,
) -> Draft:
    """Begin, or go on with, the pin of `source` at `destination` below `root`: everything but the bytes.

    What a ledger knows of an earlier attempt is taken up, its guarantee too. Raises as `pin_checkpoint` does.
    """
    source = source.resolve()
    tree = walk_checkpoint(source)
    pin = destination.relative_to(root).as_posix()
    path = destination.with_name(f".{destination.name}.pinning")
    with writing(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
    notes = ledger if ledger is not None else Ledger()
    guarantee = notes.guarantee_of(pin) if path.exists() else None
    if guarantee is None:
        discard(path)
        copy_below = COPY_BELOW_BYTES if copy_below_bytes is None else copy_below_bytes
        guarantee = _choose(source, tree, destination.parent, written_again, copy_below)
        notes.note_guarantee(pin, guarantee)
    draft = Draft(source, path, tree, pin, guarantee, algorithm, notes, source.is_dir())
    draft.prepare()
    return draft


def pin_checkpoint(
    source: Path,
    destination: Path,
    *,
    root: Path,
    origin: Path | None = None,
    algorithm: Algorithm = Algorithm.SHA256,
    written_again: bool = False,
    copy_below_bytes: int | None = None,
    on_bytes: OnBytes | None = None,
    on_chunk: OnFileChunk | None = None,
    ledger: Ledger | None = None,
) -> Pin:
    """Hold `source` (file or directory) at `destination` below `root`, with the digest of every byte held.

    `origin` is what the manifest names as the original, `source` by default. `written_again` says that the run
    reuses the name, so that a hard link would not keep these bytes; `copy_below_bytes` is COPY_BELOW_BYTES by
    default. `on_chunk` gets every byte of the checkpoint in the pass that hashes it, unless `destination` is there
    already. The pin appears under its name
    complete and durable, or not at all; with a `ledger` an interrupted one is gone on with.
    Raises `InputUnreadable` for a checkpoint that cannot be held as it is (changing, unreadable, pointing
    outside of itself), `SpikeError` where the case cannot be written.
    """
    known = origin or source.resolve()
    if ledger is not None and destination.exists():
        return _take_up(destination, root, known, algorithm, ledger, on_bytes)
    draft = draft_pin(
        source,
        destination,
        root=root,
        algorithm=algorithm,
        written_again=written_again,
        copy_below_bytes=copy_below_bytes,
        ledger=ledger,
    )
    try:
        hashed = draft.fill(on_bytes=on_bytes, on_chunk=on_chunk)
        _refuse_changes(draft, hashed)
        draft.close()
        with writing(destination):
            draft.path.rename(destination)
            fsync_directory(destination.parent)
        pin = describe_pin(destination, root, known, draft.tree, hashed, draft.guarantee)
    except BaseException as error:
        if ledger is None or isinstance(error, InputUnreadable):
            discard(draft.path)
            discard(destination)
        raise
    _note_renamed(pin, draft)
    return pin


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


def _choose(source: Path, tree: tuple[TreeEntry, ...], parent: Path, written_again: bool, copy_below: int) -> Guarantee:
    """The strongest guarantee that this filesystem and the free space allow."""
    files = [e for e in tree if e.kind is EntryKind.FILE]
    if not files:
        raise InputUnreadable(f"checkpoint {source} has no files")
    num_bytes = sum(e.size for e in files)
    if can_clone(at(source, files[0]), parent):
        return Guarantee.REFLINK
    usage = os.statvfs(parent)
    fits = 2 * num_bytes + SPARE_BYTES <= usage.f_bavail * usage.f_frsize
    is_linkable = can_link(at(source, files[0]), parent)
    if fits and (written_again or num_bytes <= copy_below or not is_linkable):
        return Guarantee.COPY
    if is_linkable:
        return Guarantee.HARD_LINK
    raise SpikeError(
        f"{parent} has no room for a copy of {source} ({num_bytes / 1e6:.0f} MB, and as much is left for the run)",
        hint="free space there, or keep cases on another filesystem: SPIKE_CASES=DIR spike freeze",
    )


def _refuse_changes(draft: Draft, hashed: dict[str, HashedFile]) -> None:
    """A checkpoint is of one moment: what was read first must still be there when the last file has been read."""
    problems = {path: found.problem for path, found in hashed.items() if found.problem}
    problems = problems or {e.path: CHANGED for e in draft.files if draft.has_changed_since(e)}
    for path, problem in problems.items():
        shown = draft.source / path if draft.is_directory else draft.source
        raise InputUnreadable(f"{shown}: {problem}", hint="wait until the save is over: spike freeze")


def _note_renamed(pin: Pin, draft: Draft) -> None:
    """Renaming a single file moves its ctime: the ledger learns of it."""
    for entry in pin.entries:
        noted = draft.ledger.noted(entry.path)
        if noted is not None and noted.identity != entry.identity:
            draft.ledger.note([replace(noted, identity=entry.identity)])


def _take_up(
    destination: Path,
    root: Path,
    origin: Path,
    algorithm: Algorithm,
    ledger: Ledger,
    on_bytes: OnBytes | None,
) -> Pin:
    """A pin that an interrupted freeze had completed: the oldest evidence there is. Only what was touched is read."""
    tree = walk_checkpoint(destination)
    pin = destination.relative_to(root).as_posix()
    is_directory = destination.is_dir()
    files = [e for e in tree if e.kind is EntryKind.FILE]
    noted = {e.path: ledger.noted(encode_path(f"{pin}/{e.path}" if is_directory else pin)) for e in files}
    hashed = {e.path: found for e in files if (found := _known(at(destination, e), noted[e.path], algorithm, ledger))}
    rest = [(e.path, e.size) for e in files if e.path not in hashed]
    if rest:
        hashed |= hash_tree(destination if is_directory else destination.parent, rest, algorithm, on_bytes=on_bytes)
    for entry in files:
        place, before = at(destination, entry), noted[entry.path]
        if problem := hashed[entry.path].problem:
            raise InputUnreadable(f"{place}: {problem}")
        if before is not None and before.algorithm == algorithm and before.digest != hashed[entry.path].digest:
            raise InputUnreadable(f"{place} was overwritten after an interrupted freeze had pinned it")
    guarantee = ledger.guarantee_of(pin) or _seen(destination, files)
    return describe_pin(destination, root, origin, tree, hashed, guarantee)


def _known(place: Path, noted: Noted | None, algorithm: Algorithm, ledger: Ledger) -> HashedFile | None:
    if noted is None:
        return None
    status = place.lstat()
    digest = ledger.digest_of(noted.path, algorithm, status, noted.source)
    return hashed_as(digest, status) if digest else None


def _seen(destination: Path, files: list[TreeEntry]) -> Guarantee:
    """The guarantee of a pin whose note was lost, as far as its inodes tell; the weaker one where they do not."""
    shared = any(at(destination, e).lstat().st_nlink > 1 for e in files)
    return Guarantee.HARD_LINK if shared else Guarantee.COPY
