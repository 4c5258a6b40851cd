"""Where does a trial find its checkpoint? At its original path wherever possible: scripts read steps from names."""

from __future__ import annotations

import stat
from pathlib import Path

from spike.lab.guards.choice import Guard
from spike.lab.logged import begins_with


def placement(original: str, pinned: str, scratch: Path, guard: Guard) -> tuple[tuple[str, str], ...]:
    """(pinned, original) where the view has to show the pinned bytes at the original path, else nothing.

    Below an overlay hard links make that free on one file system, so it is always done there. Where it would cost
    a copy (another file system, or a read-only pin that the command may want to overwrite), it is done only if the
    original is gone or differs. Nothing can be shown where not even the first directory of the original path exists.
    """
    if not original or not pinned or original == pinned or not Path(*Path(original).parts[:2]).is_dir():
        return ()
    devices = {_device(path) for path in (Path(pinned), scratch, Path(original).parent)}
    if guard is Guard.OVERLAY and _is_writable(Path(pinned)) and len(devices) == 1:
        return ((pinned, original),)
    return () if is_same(Path(original), Path(pinned)) else ((pinned, original),)


def _is_writable(pinned: Path) -> bool:
    files = [pinned] if not pinned.is_dir() else [path for path in pinned.rglob("*") if path.is_file()]
    return all(path.stat().st_mode & stat.S_IWUSR for path in files)


def _device(path: Path) -> int | str:
    try:
        return path.stat().st_dev
    except OSError:
        return str(path)


def is_same(one: Path, other: Path) -> bool:
    """True where two files or trees have the same names and the same bytes.

    Equal size and time count as equal bytes; a different time makes the bytes be compared.
    """
    if one.is_dir() != other.is_dir() or not one.exists():
        return False
    if not one.is_dir():
        return _same_file(one, other)
    names = [{p.relative_to(root) for p in root.rglob("*") if p.is_file()} for root in (one, other)]
    return names[0] == names[1] and all(_same_file(one / name, other / name) for name in names[0])


def _same_file(one: Path, other: Path) -> bool:
    left, right = one.stat(), other.stat()
    if left.st_size != right.st_size:
        return False
    if (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino) or left.st_mtime_ns == right.st_mtime_ns:
        return True
    return begins_with(one, other)
