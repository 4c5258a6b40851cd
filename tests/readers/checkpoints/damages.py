"""Ways to damage a checkpoint as crashes, disks and people do it. Each takes the later and the earlier generation."""

import os
import shutil
import time

from spike.readers.checkpoints import inspect_checkpoint, lazy_tensors
from spike.readers.checkpoints._bytes import Boxes, FileRange, Joined
from spike.readers.checkpoints._dcp import SliceBytes

HOUR = 3600 * 10**9


def files_of(path):
    """Every file of a checkpoint."""
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def settle(path, beside=()):
    """Make a copy look like a save that has just ended here: no file is older than its own birth."""
    now = time.time_ns()
    for file in (*files_of(path), *beside):
        os.utime(file, ns=(now, now))


def cut(file):
    """The second half never reached the disk."""
    data = file.read_bytes()
    times = file.stat()
    file.write_bytes(data[: len(data) // 2])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def flip(path):
    """One exponent bit of the largest weight changes on the disk, and nothing else: no time, no size."""
    weights = [t for t in lazy_tensors(inspect_checkpoint(path)) if t.role == "parameter"]
    place = _place(max(weights, key=lambda t: t.data.nbytes).data)
    times = place.path.stat()
    with place.path.open("r+b") as file:
        file.seek(place.offset + 7)
        byte = file.read(1)[0]
        file.seek(place.offset + 7)
        file.write(bytes([byte ^ 0x40]))
    os.utime(place.path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _place(data):
    if isinstance(data, FileRange):
        return data
    if isinstance(data, SliceBytes):
        return _place(data.resolve())
    if isinstance(data, Joined):
        return _place(data.parts[0])
    assert isinstance(data, Boxes)
    return _place(data.boxes[0][2])


def swap(file, other):
    """The bytes of another generation under this name; not even the times show it."""
    times = file.stat()
    shutil.copyfile(other, file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def begin_again(pairs):
    """A save of `other` begins in place an hour later, and ends after these files."""
    for file, other in pairs:
        later = file.stat().st_mtime_ns + HOUR
        shutil.copyfile(other, file)
        os.utime(file, ns=(later, later))
