"""Is a directory exactly what it was? Names, modes, sizes, times, inodes and bytes of everything in it."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def tree_state(path: Path) -> dict[str, tuple[str, ...]]:
    """(mode, size, mtime in ns, inode, content) by relative path; content is a SHA-256 or a link's target.

    Reading does not count: access times are left out. So are change times, which pinning by link moves.
    """
    found = {".": _facts(path)}
    for directory, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(directory) / name
            found[str(entry.relative_to(path))] = _facts(entry)
    return found


def _facts(path: Path) -> tuple[str, ...]:
    facts = path.lstat()
    content = ""
    if stat.S_ISREG(facts.st_mode):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(facts.st_mode):
        content = str(path.readlink())
    return (oct(facts.st_mode), str(facts.st_size), str(facts.st_mtime_ns), str(facts.st_ino), content)
