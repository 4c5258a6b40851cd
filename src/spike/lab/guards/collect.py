"""Which of the files that a trial wrote did it log to? Those of known names, and those the run's record comes from."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

LARGEST_BYTES = 256 << 20
"""A metric file larger than this is left behind; no window of a trial logs that much."""

NAMES = (
    "*.jsonl",
    "*.csv",
    "*.tsv",
    "*.log",
    "*.out",
    "*.wandb",
    "trainer_state.json",
    "*tfevents*",
)


def is_wanted(path: str, names: Sequence[str], below: Sequence[str]) -> bool:
    """True where the file name fits or the path is, or lies in, one of `below`."""
    name = path.rpartition("/")[2]
    if any(fnmatch.fnmatch(name, pattern) for pattern in names):
        return True
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in below)


def written_files(upper: Path, root: str, names: Sequence[str], below: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """(file, the path that the trial wrote it under) of each wanted regular file below `upper`."""
    for directory, folders, files in os.walk(upper):
        folders.sort()
        for name in sorted(files):
            path = Path(directory) / name
            seen_as = f"{root.rstrip('/')}/{path.relative_to(upper)}"
            if not is_wanted(seen_as, names, below):
                continue
            with contextlib.suppress(OSError):
                facts = path.lstat()
                if stat.S_ISREG(facts.st_mode) and facts.st_size <= LARGEST_BYTES:
                    yield path, seen_as


def bring_back(upper: Path, root: str, into: Path, names: Sequence[str], below: Sequence[str]) -> None:
    """Copy the wanted files below `upper`, which is about to vanish, to the same relative paths in `into`."""
    for path, _ in written_files(upper, root, names, below):
        target = into / path.relative_to(upper)
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
