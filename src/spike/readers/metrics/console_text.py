"""What is the message inside a console line? ANSI codes, progress bars and rank prefixes taken off.

A line shape is one module in `lines/` that exports SHAPE; console.py asks them in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
_RANK = re.compile(r"^\s*(?:\[(?:default|rank|Rank )(\d+)\]\s*:?|(?:rank|Rank)[ =]?(\d+)\s*[:|]|(\d+):)\s?(?=\S|\s)")
_PROGRESS = re.compile(r"(\d+)/(\d+) \[\d+:\d")


class Anchor(StrEnum):
    """Which step a match belongs to."""

    OWN = "its own"
    """The match carries its step."""
    CURRENT = "current"
    """A continuation of the row whose step was named last."""
    NEXT = "next"
    """Printed before the row of the step that it is about."""
    ROW = "row"
    """The stack prints no step: rows are counted."""


class Match(NamedTuple):
    """One line understood. Values are still text, so that their digits can be counted."""

    values: Mapping[str, str]
    step: int | None = None
    anchor: Anchor = Anchor.OWN
    held_out: bool = False
    total_steps: int | None = None


@runtime_checkable
class LineShape(Protocol):
    """How one stack prints a row."""

    name: str
    order: int
    """Shapes are asked from low to high: the specific ones first."""

    def match(self, text: str) -> Match | None:
        """The row in this message, if it is this shape."""
        ...

    def wants_more(self, text: str) -> bool:
        """True where the row was wrapped and goes on in the next line."""
        ...


class Message(NamedTuple):
    """One message of a console line."""

    text: str
    rank: int | None
    """From the launcher's prefix."""
    progress: int | None
    """Count shown by a progress bar glued to the message."""


def messages(line: str) -> list[Message]:
    """The messages of one line: split at carriage returns, cleaned, with the launcher's rank prefix taken off."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    found: list[Message] = []
    progress: int | None = None
    for piece in line.split("\r") if "\r" in line else (line,):
        text, rank = _without_rank(piece)
        if "/s" in text or "s/" in text:  # the rate that every progress bar ends with
            bar = _PROGRESS.search(text)
            progress = progress if bar is None else int(bar[1])
        if text.strip():
            found.append(Message(text, rank, progress))
    return found


def _without_rank(text: str) -> tuple[str, int | None]:
    match = _RANK.match(text)
    if match is None:
        return text, None
    return text[match.end() :], int(next(group for group in match.groups() if group is not None))
