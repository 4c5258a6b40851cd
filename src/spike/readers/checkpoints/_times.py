"""Was a checkpoint saved over in place? What the times of its files say, and what they cannot say.

A save writes its marker last. A data file that is newer than the marker was written again afterwards, or the
directory was copied without its times. The two differ in when the file was born: torch opens an existing file for
writing and keeps the inode, so an overwritten file was born before the marker was written; a copy was born later. A
file that was born after a marker which lies where it was written, and changed before its own birth, was put there.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Integrity
from spike.readers.checkpoints.contract import Damaged

SLACK_NS = 2_000_000_000
"""Copies of small directories finish within this; two saves of one step never do."""

SLOW_SAVE_SECONDS, SLOW_SAVE_BYTES = 600, 20 << 20
"""Files of one save are written within ten minutes, or as long as their bytes take at 20 MB/s."""

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_MASK_AT, _BTIME_AT = 0, 80
"""Offsets of stx_mask and stx_btime in struct statx, linux/stat.h."""


def saved_over(marker: Path, files: Iterable[Path]) -> tuple[Damaged | None, str]:
    """(damage, note): the damage where a file was written or put there after `marker`, else a note on odd times.

    `marker` is the file that the save writes last.
    """
    written, marker_born = marker.stat().st_mtime_ns, birth_ns(marker)
    is_original = marker_born is not None and abs(marker_born - written) <= SLACK_NS
    for file in sorted(files):
        changed, born = file.stat().st_mtime_ns, birth_ns(file)
        if changed > written + SLACK_NS and (born is None or born < written):
            why = f"{file.name}: written again after {marker.name}, which a save writes last"
            return Damaged(why + ": a later save into this directory was cut off", Integrity.OVERWRITTEN), ""
        if is_original and born is not None and born > written + SLACK_NS and changed < born - SLACK_NS:
            why = f"{file.name}: an older file that was put here after {marker.name} was written"
            return Damaged(why + ", which a save writes last: it is of another save", Integrity.OVERWRITTEN), ""
        if changed > written + SLACK_NS:
            return None, (
                f"{file.name} is newer than {marker.name}, which a save writes last: it was replaced afterwards, or "
                "the directory was copied without its times"
            )
    return None, ""


def written_apart(files: Iterable[Path]) -> str:
    """A sentence where the files were written further apart than one save of their size takes, else ""."""
    stats = [(file.stat(), file) for file in files]
    if len(stats) < 2:
        return ""
    slowest = max(SLOW_SAVE_SECONDS, sum(stat.st_size for stat, _ in stats) / SLOW_SAVE_BYTES)
    (oldest, first), (newest, last) = (pick(stats, key=lambda pair: pair[0].st_mtime_ns) for pick in (min, max))
    apart = (newest.st_mtime_ns - oldest.st_mtime_ns) / 1e9
    if apart <= slowest:
        return ""
    return (
        f"{last.name}: written {apart / 60:,.0f} minutes after {first.name}: a later save into this directory may have "
        "been cut off, and no file is written last to tell"
    )


def birth_ns(path: Path) -> int | None:
    """When the file's inode was made, Unix nanoseconds; None where the system does not tell."""
    statx = _statx()
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("<I", buffer.raw, _MASK_AT)
    if not mask & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("<qI", buffer.raw, _BTIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)


@cache
def _statx() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    return function
