"""What does a console log say? Every line shape of `lines/`, whatever is printed between the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spike.readers.metrics.columns import looks_like_metrics
from spike.readers.metrics.console_rows import ConsoleRows, Row
from spike.readers.metrics.console_text import LineShape, Match, Message, messages
from spike.readers.metrics.contract import Parsed, Session, Table
from spike.readers.metrics.line_session import LineSession
from spike.readers.metrics.numbers import HIGHEST_STEP
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.plugins import line_shapes
from spike.readers.metrics.text_lines import Line, looks_binary

SNIFF_BYTES = 4_000_000
"""A log may print its configuration for megabytes before the first row."""

_RATE = re.compile(r"\blr\b")
_PAIR = re.compile(r"\s{2,}\S[^=]*=")
_TEXT_SUFFIXES = frozenset({".log", ".txt", ".out", ".err", ".stdout", ".stderr", ""})


class Console:
    """Standard output of a training command, or its log file."""

    format = "console"
    order = 80

    def sniff(self, path: Path, head: bytes) -> bool:
        """One line within the first megabytes is a row with a known signal."""
        if looks_binary(head):
            return False
        if any(True for _ in _matches(head.decode("utf-8", errors="replace").split("\n"))):
            return True
        if path.suffix.lower() not in _TEXT_SUFFIXES:
            return False
        with path.open("rb") as stream:
            text = stream.read(SNIFF_BYTES).decode("utf-8", errors="replace")
        return any(True for _ in _matches(text.split("\n")))

    def read(self, path: Path) -> Parsed:
        """Parse every line. Lines that are no row are no damage; a block of NUL bytes is."""
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Line by line; a wrapped row waits for its rest."""
        table = Table(self.format)
        console = _Lines(table)
        return LineSession(table, console.take, settle=console.settle)


class _Lines:
    """What has to be remembered from one line to the next."""

    def __init__(self, table: Table) -> None:
        self._table, self._rows = table, ConsoleRows(table)
        self._held: tuple[LineShape, Message] | None = None
        """A row that goes on in the next line."""
        self._at = Line(0, 0, b"")

    def take(self, line: Line) -> None:
        """Match the messages of one line."""
        raw = line.raw
        if b"\0" in raw:
            self._table.damage(line.number, line.offset, "a block of NUL bytes, as a crash leaves it")
        text = line.text
        if self._held is None and not _is_worth_a_look(text):
            if raw[:1].strip():
                self._rows.leave_block()
            return
        if line.is_torn and self._is_row(text):
            reason = "the last line is not finished yet: its row is not read"
            self._table.damage(line.number, line.offset, reason, benign=True)
            self._held = None
            return
        self._at = line
        for message in messages(text):
            self._message(message)

    def settle(self, is_end: bool) -> None:
        """File what was held back; at the end of the file also a row whose rest never came."""
        if is_end and self._held is not None:
            self._finish(*self._held)
            self._held = None
        self._rows.settle(is_end)

    def _is_row(self, text: str) -> bool:
        """A number at the torn end may have lost digits: 7.3 of 7.3E-01."""
        return self._held is not None or any(_match(message) is not None for message in messages(text))

    def _message(self, message: Message) -> None:
        if self._held is not None:
            shape, first = self._held
            self._held = None
            if _match(message) is None and not message.text.lstrip().startswith("["):
                message = Message(first.text.rstrip() + " " + message.text.strip(), first.rank, first.progress)
            else:
                self._finish(shape, first)
        hit = _match(message)
        if hit is None:
            if not message.text.startswith((" ", "\t")):
                self._rows.leave_block()
            return
        shape, found = hit
        if shape.wants_more(message.text):
            self._held = shape, message
        else:
            self._take(shape, found, message)

    def _finish(self, shape: LineShape, message: Message) -> None:
        found = shape.match(message.text)
        if found is not None:
            self._take(shape, found, message)

    def _take(self, shape: LineShape, found: Match, message: Message) -> None:
        if found.step is not None and found.step > HIGHEST_STEP:
            reason = f"a row whose step is {str(found.step)[:40]}: it is not read"
            self._table.damage(self._at.number, self._at.offset, reason)
            return
        self._rows.take(Row(shape.name, found, message.rank, message.progress))


def _is_worth_a_look(text: str) -> bool:
    """Whether the line has a word of a row; most lines of a log have none. Plain searches beat one expression."""
    if "loss" in text:
        return True
    lower = text.lower()
    if "loss" in lower or "norm" in lower or "learning" in lower or "overflow" in lower or "[step=" in lower:
        return True
    return ("lr" in lower and _RATE.search(lower) is not None) or _PAIR.match(text) is not None


def _match(message: Message) -> tuple[LineShape, Match] | None:
    for shape in line_shapes():
        try:
            found = shape.match(message.text)
        except ValueError:  # a number of thousands of digits
            continue
        if found is not None:
            return shape, found
    return None


def _matches(lines: list[str]) -> Iterator[Match]:
    in_block = False
    for line in lines:
        if not _is_worth_a_look(line):
            continue
        for message in messages(line):
            hit = _match(message)
            if hit is None:
                continue
            shape, found = hit
            in_block = in_block or (shape.name == "olmo-core" and found.step is not None)
            if shape.name == "olmo-core" and not in_block:
                continue
            if shape.name == "deepspeed" or looks_like_metrics(found.values):
                yield found


READER = Console()
