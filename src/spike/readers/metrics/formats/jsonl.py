"""What does a JSON-lines metric file say? One object a line, steps and numbers under whatever keys."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from spike.readers.metrics.columns import RANK_NAMES, looks_like_metrics
from spike.readers.metrics.contract import Parsed, Session, Table
from spike.readers.metrics.fast_jsonl import read_fast, why_no_object
from spike.readers.metrics.json_rows import add_row, flatten, parse_object
from spike.readers.metrics.line_session import LineSession
from spike.readers.metrics.numbers import as_number
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.text_lines import Line, looks_binary

FAST_PATH_BYTES = 8_000_000
"""Above this the column store reads the file first; below, starting it costs more than it saves."""


class JsonLines:
    """JSON lines with numbers."""

    format = "jsonl"
    order = 50

    def sniff(self, path: Path, head: bytes) -> bool:
        """The first whole object has a known signal, or a step and a loss-like number."""
        if looks_binary(head):
            return False
        lines = [line for line in head.splitlines() if line.strip()][:20]
        if not lines or not lines[0].lstrip().startswith(b"{"):
            return False
        objects = [row for line in lines if (row := parse_object(line)) is not None]
        return any(looks_like_metrics(_numeric_keys(row)) for row in objects)

    def read(self, path: Path) -> Parsed:
        """Parse every line; a torn last line is benign, one in the middle is damage."""
        if path.stat().st_size > FAST_PATH_BYTES:
            fast = read_fast(path)
            if fast is not None:
                return fast
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Line by line."""
        table = Table(self.format)
        return LineSession(table, partial(self._line, table))

    def _line(self, table: Table, line: Line) -> None:
        if not line.raw.strip():
            return
        row = parse_object(line.raw)
        if row is not None:
            add_row(table, row, table.num_rows + 1, line=line.number, offset=line.offset)
        else:
            reason = why_no_object(line.raw, is_torn=line.is_torn)
            table.damage(line.number, line.offset, reason, benign=line.is_torn)


def _numeric_keys(row: dict[str, Any]) -> list[str]:
    return [
        key
        for key, value in flatten(row).items()
        if key not in RANK_NAMES and as_number(value) is not None and not _is_text_number(value)
    ]


def _is_text_number(value: Any) -> bool:
    number = as_number(value)
    return isinstance(value, str) and number is not None and math.isfinite(number) and len(value) > 30


READER = JsonLines()
