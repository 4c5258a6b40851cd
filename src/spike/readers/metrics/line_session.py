"""How is a text file read piece by piece? Whole lines are handed on, the torn last one is kept for the next piece."""

from __future__ import annotations

from collections.abc import Callable

from spike.readers.metrics.contract import Parsed, Table
from spike.readers.metrics.text_lines import Line

MAX_LINE_BYTES = 16 << 20
"""A longer line is no row of metrics; it is passed over in bounded memory, and reported."""


class LineSession:
    """Feeds the lines of a file to one function, with their number and byte offset."""

    def __init__(
        self, table: Table, take_line: Callable[[Line], None], *, settle: Callable[[bool], None] | None = None
    ) -> None:
        """`settle` is called before a drain with whether the file has ended, to add rows that were held back."""
        self._table, self._take_line, self._settle = table, take_line, settle
        self._number = 0
        self._ended = False
        self._long_from: int | None = None

    def take(self, data: bytes, offset: int, *, is_end: bool) -> int:
        """Hand on every whole line, and at the end of the file the last one as it is."""
        self._ended = is_end
        at = self._behind_long_line(data, offset, is_end) if self._long_from is not None else 0
        while (end := data.find(b"\n", at)) >= 0:
            self._number += 1
            self._take_line(Line(self._number, offset + at, data[at:end].rstrip(b"\r")))
            at = end + 1
        if len(data) - at > MAX_LINE_BYTES:
            self._long_from, self._number = offset + at, self._number + 1
            at = self._behind_long_line(data, offset, is_end)
        if is_end and at < len(data):
            self._number += 1
            self._take_line(Line(self._number, offset + at, data[at:].rstrip(b"\r"), is_torn=True))
            at = len(data)
        return at

    def drain(self) -> Parsed:
        """The rows since the last call."""
        if self._settle is not None:
            self._settle(self._ended)
        return self._table.drain()

    def _behind_long_line(self, data: bytes, offset: int, is_end: bool) -> int:
        """Where the over-long line ends in this piece."""
        assert self._long_from is not None
        end = data.find(b"\n", max(0, self._long_from - offset))
        if end < 0 and not is_end:
            return len(data)
        size = offset + (len(data) if end < 0 else end) - self._long_from
        self._table.damage(
            self._number, self._long_from, f"a line of {size} bytes, over the limit of {MAX_LINE_BYTES}: passed over"
        )
        self._long_from = None
        return len(data) if end < 0 else end + 1
