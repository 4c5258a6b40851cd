"""What is a line of a text file? Its number, its byte offset, and whether it is torn."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """One line without its newline."""

    number: int
    """1-based."""
    offset: int
    """Byte offset of its first byte."""
    raw: bytes
    is_torn: bool = False
    """True for a last line without its newline: the writer may still be at it."""

    @property
    def text(self) -> str:
        """The line as text; bytes that are no UTF-8 are replaced."""
        return self.raw.decode("utf-8", errors="replace")


def first_line(head: bytes) -> str:
    """The first line that is not empty, cut to 200 characters, for a message."""
    if looks_binary(head):
        return ""
    for raw in head.splitlines():
        if raw.strip():
            return raw.decode("utf-8", errors="replace").strip()[:200]
    return ""


BINARY_SHARE = 0.1
"""A crash leaves a block of NULs in a text log; a binary file is full of them."""


def looks_binary(head: bytes) -> bool:
    """Whether the first kilobyte starts with NULs or holds many of them: no text log does."""
    return b"\0" in head[:4] or head[:1024].count(0) > BINARY_SHARE * len(head[:1024])
