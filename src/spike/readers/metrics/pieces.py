"""How does a file of any size pass through a session? In pieces, so that memory stays bounded."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from spike.readers.metrics.contract import Parsed, Session

PIECE_BYTES = 4 << 20
"""Long enough that the work in a piece outweighs the call, short enough to stay in cache and memory."""


def read_through(session: Session, path: Path) -> Parsed:
    """The whole file, as it is now. Raises OSError."""
    with path.open("rb") as stream:
        feed(session, stream, 0, is_end=True)
    return session.drain()


def feed(session: Session, stream: BinaryIO, at: int, *, is_end: bool) -> int:
    """Give the session everything from byte `at` on; returns the byte at which it wants to go on."""
    size = PIECE_BYTES
    while True:
        stream.seek(at)
        piece = stream.read(size)
        is_last = len(piece) < size
        used = session.take(piece, at, is_end=is_end and is_last)
        at += used
        if is_last:
            return at
        size = PIECE_BYTES if used else size * 2
