"""What lies below a directory, without ever leaving it?

Every directory is opened relative to its parent with O_NOFOLLOW, so that a symlink swapped in during the walk
cannot lead the reader elsewhere. Symlinks are listed, never followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spike.domain.manifest import EntryKind

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One name below the root, as the walk found it."""

    path: str
    """Relative POSIX path, undecodable bytes as surrogates."""
    kind: EntryKind
    size: int
    mode: int
    mtime_ns: int
    target: str = ""
    """Of a symlink."""
    problem: str = ""
    """Why a directory could not be listed; its content is then unknown."""


def walk(root: Path) -> tuple[TreeEntry, ...]:
    """Everything below `root`, hidden names included, ordered by path. A file as root is one entry, path its name.

    Raises `OSError` where the root itself cannot be opened.
    """
    status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode):
        return (_entry(root.name, status, os.fspath(root), None),)
    handle = os.open(root, _DIRECTORY_FLAGS)
    try:
        return tuple(sorted(_walk(handle, ""), key=lambda e: e.path))
    finally:
        os.close(handle)


def _walk(handle: int, prefix: str) -> Iterator[TreeEntry]:
    for name in os.listdir(handle):
        try:
            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:  # a live run may rotate files away under us
            continue
        entry = _entry(prefix + name, status, name, handle)
        if entry.kind is not EntryKind.DIRECTORY:
            yield entry
            continue
        try:
            below = os.open(name, _DIRECTORY_FLAGS, dir_fd=handle)
        except OSError as error:
            yield _with_problem(entry, error)
            continue
        try:
            yield entry
            yield from _walk(below, f"{prefix}{name}/")
        finally:
            os.close(below)


def _entry(path: str, status: os.stat_result, name: str, handle: int | None) -> TreeEntry:
    kind = _kind(status.st_mode)
    target = os.readlink(name, dir_fd=handle) if kind is EntryKind.SYMLINK else ""
    size = 0 if kind is EntryKind.DIRECTORY else status.st_size
    return TreeEntry(path, kind, size, stat.S_IMODE(status.st_mode), status.st_mtime_ns, target)


def _with_problem(entry: TreeEntry, error: OSError) -> TreeEntry:
    reason = error.strerror or str(error)
    return TreeEntry(entry.path, entry.kind, 0, entry.mode, entry.mtime_ns, problem=reason)


def _kind(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return EntryKind.FILE
    if stat.S_ISDIR(mode):
        return EntryKind.DIRECTORY
    return EntryKind.SYMLINK if stat.S_ISLNK(mode) else EntryKind.OTHER


@contextmanager
def directory_beneath(root: Path, relative: str) -> Iterator[int]:
    """A handle of the directory `relative` ("" is the root) below `root`; no component may be a symlink."""
    handle = os.open(root, _DIRECTORY_FLAGS)
    try:
        for part in relative.split("/") if relative else ():
            below = os.open(part, _DIRECTORY_FLAGS, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def open_quietly(name: str, *, dir_fd: int | None = None) -> int:
    """Open a regular file for reading, without following a symlink and, where allowed, without touching its atime."""
    try:
        handle = os.open(name, _FILE_FLAGS | os.O_NOATIME, dir_fd=dir_fd)
    except PermissionError:  # only the owner may ask for that
        handle = os.open(name, _FILE_FLAGS, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return handle


def escapes(link: str, target: str) -> bool:
    """True where the symlink at the relative path `link` points out of the tree (or absolutely)."""
    if target.startswith("/"):
        return True
    depth = link.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return True
    return False
