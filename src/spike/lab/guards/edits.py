"""How do files get into the view that are not in the run? In a layer of their own, between the run and the writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_FICLONE = 0x40049409


def mirror(real: str, copy: str) -> None:
    """Give `copy` the mode, owner and times of `real`, as far as this user may."""
    facts = os.stat(real)  # noqa: PTH116 - descriptors' paths under /proc, followed on purpose
    with contextlib.suppress(OSError):
        os.chown(copy, facts.st_uid, facts.st_gid)
    with contextlib.suppress(OSError):
        Path(copy).chmod(facts.st_mode & 0o7777)
    os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _link(source: str, target: str) -> None:
    """The same bytes in a lower layer: a hard link costs nothing, and overlayfs never writes to lower layers.

    A read-only file is copied: a command may overwrite the checkpoint that it resumed from.
    """
    facts = os.lstat(source)
    is_link = stat.S_ISLNK(facts.st_mode)
    if is_link or facts.st_mode & stat.S_IWUSR:
        with contextlib.suppress(OSError):
            os.link(source, target, follow_symlinks=False)
            return
    if is_link or not _cloned(source, target):
        shutil.copy2(source, target, follow_symlinks=False)
    if not is_link:
        Path(target).chmod(facts.st_mode & 0o7777 | stat.S_IWUSR)


def _cloned(source: str, target: str) -> bool:
    """True where the file system shares the bytes of both until one is written (xfs, btrfs, bcachefs, ...)."""
    with Path(source).open("rb") as original, Path(target).open("wb") as copy:
        try:
            fcntl.ioctl(copy, _FICLONE, original.fileno())
        except OSError:
            return False
    shutil.copystat(source, target)
    return True


def put(root: str, edits: Path, source: str, destination: str) -> None:
    """`source`, file or tree, at the place of `destination` below `root`, in the layer `edits` over that root."""
    target = edits / Path(destination).relative_to(root)
    missing = [p for p in (target, *target.parents) if p != edits and edits in p.parents]
    for parent in reversed([p for p in missing if p != target]):
        if not parent.is_dir():
            parent.mkdir()
            real = Path(root) / parent.relative_to(edits)
            if real.is_dir():
                mirror(str(real), str(parent))
    if Path(source).is_dir() and not Path(source).is_symlink():
        _put_tree(Path(source), target, Path(destination))
    else:
        target.unlink(missing_ok=True)
        _link(source, str(target))


def _put_tree(source: Path, target: Path, real: Path) -> None:
    target.mkdir(exist_ok=True)
    for child in sorted(source.iterdir()):
        if child.is_dir() and not child.is_symlink():
            _put_tree(child, target / child.name, real / child.name)
        else:
            (target / child.name).unlink(missing_ok=True)
            _link(str(child), str(target / child.name))
    mirror(str(real if real.is_dir() else source), str(target))


def files_of(source: str, destination: str) -> Iterator[tuple[str, str]]:
    """Every file of a tree with its own destination: an inner overlay may own some of them."""
    for directory, folders, names in os.walk(source):
        links = [name for name in folders if Path(directory, name).is_symlink()]
        for name in (*names, *links):
            path = Path(directory) / name
            yield str(path), str(Path(destination) / path.relative_to(source))


def clear(path: Path) -> None:
    """Remove a file, link or tree, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_extras(source: Path, view: Path) -> None:
    """What a placed directory must not inherit from the real one below it."""
    if not view.is_dir() or view.is_symlink():
        return
    names = {child.name for child in source.iterdir()} if source.is_dir() else set()
    for child in sorted(view.iterdir()):
        if child.name not in names:
            clear(child)
        elif (source / child.name).is_dir():
            remove_extras(source / child.name, child)
