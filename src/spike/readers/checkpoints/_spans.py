"""What is added up over which stretch of a file while its bytes pass? Statistics of elements, CRCs of members."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from spike.readers.checkpoints._numbers import width
from spike.readers.checkpoints._scan import CHUNK_BYTES
from spike.readers.checkpoints._statistics import Scratch, Statistics, counter


@dataclass(slots=True, eq=False)
class Elements:
    """Statistics of the elements of one stretch; a piece may end inside an element."""

    dtype: str
    start: int
    end: int
    totals: Statistics = field(default_factory=Statistics)
    num_taken: int = 0
    rest: bytes = b""

    @property
    def is_whole(self) -> bool:
        """True where every byte has passed."""
        return self.num_taken == self.end - self.start

    def take(self, piece: memoryview, scratch: Scratch) -> None:
        """Add the next bytes."""
        self.num_taken += len(piece)
        item = width(self.dtype)
        if self.rest:
            needed = item - len(self.rest)
            self.rest, piece = self.rest + bytes(piece[:needed]), piece[needed:]
            if len(self.rest) < item:
                return
            self._count(memoryview(self.rest), scratch)
        whole = len(piece) - len(piece) % item
        self.rest = bytes(piece[whole:])
        for at in range(0, whole, CHUNK_BYTES):
            self._count(piece[at : min(at + CHUNK_BYTES, whole)], scratch)

    def _count(self, piece: memoryview, scratch: Scratch) -> None:
        raw = np.frombuffer(piece, dtype=np.uint8)
        if not raw[: len(raw) & ~7].view(np.uint64).flags.aligned:
            raw = raw.copy()  # elements across word borders are slower to count than to move
        counter(self.dtype, scratch)(raw, self.totals)


@dataclass(slots=True, eq=False)
class Checksum:
    """The CRC-32 of one archive member."""

    start: int
    end: int
    num_taken: int = 0
    crc: int = 0

    @property
    def is_whole(self) -> bool:
        """True where every byte has passed."""
        return self.num_taken == self.end - self.start

    def take(self, piece: memoryview, _scratch: Scratch) -> None:
        """Add the next bytes."""
        self.num_taken += len(piece)
        self.crc = zlib.crc32(piece, self.crc)


class PassingFile:
    """The spans of one file, and how much of it has passed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = _stamp(path)
        self._waiting: list[Elements | Checksum] = []
        self._open: list[Elements | Checksum] = []
        self._at = 0

    def expect(self, span: Elements | Checksum) -> None:
        """Add a span; `begin` follows the last one."""
        self._waiting.append(span)

    def begin(self) -> None:
        """Put the spans into the order in which they pass."""
        self._waiting.sort(key=lambda span: span.start, reverse=True)

    def feed(self, offset: int, chunk: memoryview, scratch: Scratch) -> None:
        """The next bytes. Out of order nothing is counted: spans that miss something stay incomplete."""
        if offset != self._at:
            return
        self._at = end = offset + len(chunk)
        while self._waiting and self._waiting[-1].start < end:
            self._open.append(self._waiting.pop())
        for span in self._open:
            first, last = max(span.start, offset), min(span.end, end)
            span.take(chunk[first - offset : last - offset], scratch)
        self._open = [span for span in self._open if span.end > end]

    def has_changed(self) -> bool:
        """True where the file is another one than when this was made, or gone."""
        return self._stamp is None or self._stamp != _stamp(self.path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    # Not the change time: linking a file to keep it changes that.
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None
