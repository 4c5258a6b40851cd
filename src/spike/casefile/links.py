"""What can this filesystem do for a pin: share blocks, make hard links, or neither?"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from spike.casefile.tree import open_quietly

FICLONE = 0x40049409
"""ioctl of linux/fs.h: share the blocks of another file."""
_NO_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES)
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


def can_clone(sample: Path, parent: Path) -> bool:
    """True where a file in `parent` can share the blocks of `sample`; found out by doing it."""
    probe = parent / f".clone-probe.{os.getpid()}.pinning"
    try:
        return clone(sample, probe)
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)


def clone(source: Path, target: Path) -> bool:
    """Share the blocks of `source`; False where the filesystem cannot."""
    reader = open_quietly(os.fspath(source))
    try:
        return clone_open(reader, target)
    finally:
        os.close(reader)


def clone_open(reader: int, target: Path) -> bool:
    """Share the blocks of an open file; False where the filesystem cannot."""
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        fcntl.ioctl(writer, FICLONE, reader)
        return True
    except OSError as error:
        if error.errno in _NO_CLONE:
            return False
        raise
    finally:
        os.close(writer)


def can_link(sample: Path, parent: Path) -> bool:
    """True where `parent` can hold another name of `sample`; found out by doing it."""
    probe = parent / f".link-probe.{os.getpid()}.pinning"
    try:
        os.link(sample, probe, follow_symlinks=False)
        return True
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    finally:
        probe.unlink(missing_ok=True)
