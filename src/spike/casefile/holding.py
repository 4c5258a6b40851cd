"""How is a checkpoint kept from disappearing in the moments before it is pinned, and what is in it?"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from spike.casefile.tree import TreeEntry, escapes, walk
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import EntryKind


def hold(source: Path, place: Path) -> Path:
    """Keep the files of `source` from disappearing until they are pinned; a matter of milliseconds.

    Returns the place to pin from: hard links at `place`, or `source` itself where the filesystem allows none.
    What an earlier, interrupted freeze held there is kept: it is the older evidence.
    """
    if place.exists():
        return place
    source = source.resolve()
    draft = place.with_name(f"{place.name}.tmp")
    discard(draft)
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        tree = walk_checkpoint(source)
        if source.is_dir():
            make_frame(draft, tree)
        for entry in tree:
            if entry.kind is EntryKind.FILE:
                target = draft / entry.path if source.is_dir() else draft
                os.link(at(source, entry), target, follow_symlinks=False)
        draft.rename(place)
    except OSError:
        discard(draft)
        return source
    return place


def walk_checkpoint(source: Path) -> tuple[TreeEntry, ...]:
    """What a checkpoint consists of. Raises `InputUnreadable` where that cannot be said, or points out of it."""
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


def make_frame(place: Path, tree: tuple[TreeEntry, ...]) -> None:
    """Directories and symlinks of the source; a walk lists every directory before what is in it."""
    place.mkdir(exist_ok=True)
    for entry in tree:
        target = place / entry.path
        if entry.kind is EntryKind.DIRECTORY:
            target.mkdir(exist_ok=True)
        elif entry.kind is EntryKind.SYMLINK and not target.is_symlink():
            target.symlink_to(entry.target)


def at(source: Path, entry: TreeEntry) -> Path:
    """Where an entry of the walk of `source` lies; a file is its own only entry."""
    return source / entry.path if source.is_dir() else source


def discard(place: Path) -> None:
    """Remove what spike itself had begun."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            place.unlink()
