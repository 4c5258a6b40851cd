"""How does a file reach a case so that a crash leaves the old one or the new one, never half of either?"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from spike.domain.errors import SpikeError

_HINTS = {
    errno.ENOSPC: "free space there, or keep cases elsewhere: SPIKE_CASES=DIR; then type the same command again",
    errno.EDQUOT: "free quota there, or keep cases elsewhere: SPIKE_CASES=DIR; then type the same command again",
    errno.EROFS: "keep cases on a writable filesystem: SPIKE_CASES=DIR",
    errno.EACCES: "ask the owner for write permission, or keep cases elsewhere: SPIKE_CASES=DIR",
    errno.EPERM: "ask the owner for write permission, or keep cases elsewhere: SPIKE_CASES=DIR",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write `path` into a message for the operator.

    Raises `SpikeError`; what was written before it stays readable and the command can be typed again.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = _HINTS.get(error.errno or 0, "put that right, then type the same command again")
        raise SpikeError(f"cannot write {path}: {reason}", hint=hint) from error


def fsync_directory(directory: Path) -> None:
    """Make the names in `directory` durable, where the filesystem can."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some network filesystems refuse fsync on a directory
            os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """os.write until everything is out; a short write is how a full disk begins."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: temporary file, fsync, rename, fsync of the directory.

    Raises `SpikeError` naming the file and the reason (full disk, read-only, permission).
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            try:
                write_all(handle, data)
                os.fsync(handle)
            finally:
                os.close(handle)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        fsync_directory(path.parent)


def inside(root: Path, relative: str) -> Path:
    """The path of an artefact below `root`; `ValueError` for anything that could lead out of it."""
    pure = PurePosixPath(relative)
    if pure.is_absolute() or ".." in pure.parts or "\0" in relative or not pure.parts:
        raise ValueError(f"{relative!r} is not a path inside a case")
    return root / pure
