"""What does a JSON-lines metric file say? One object a line, steps and numbers under whatever keys."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from spike.readers.metrics.columns import RANK_NAMES, looks_like_metrics, rank_name, step_name
from spike.readers.metrics.contract import Parsed, Session, Table
from spike.readers.metrics.fast_jsonl import read_fast
from spike.readers.metrics.line_session import LineSession
from spike.readers.metrics.numbers import as_number, as_step
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.text_lines import Line, looks_binary

FAST_PATH_BYTES = 8_000_000
"""Above this the column store reads the file first; below, starting it costs more than it saves."""

_SUMMARY_KEYS = frozenset({"train_runtime", "total_flos", "train_samples_per_second"})
"""A row with these is the trainer's closing summary: its train_loss is a mean over the whole run."""


def flatten(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects to slash-joined keys; lists are left out (they are no scalar)."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}/"))
        elif not isinstance(value, list):
            flat[f"{prefix}{key}"] = value
    return flat


def add_row(table: Table, row: dict[str, Any], row_number: int) -> None:
    """Add one parsed object to the table; a row without a step gets its row number (1-based)."""
    flat = flatten(row)
    if _SUMMARY_KEYS & flat.keys():
        return
    at, by = step_name(flat), rank_name(flat)
    step = as_step(flat[at]) if at is not None else None
    rank = as_step(flat[by]) if by is not None else None
    held_out = str(flat.get("split", flat.get("mode", ""))).lower() in _HELD_OUT_SPLITS
    values = {
        key: number for key, value in flat.items() if key not in (at, by) and (number := as_number(value)) is not None
    }
    if values:
        table.add(row_number if step is None else step, values, rank=rank, held_out=held_out)
        if step is None:
            table.note("assumed-steps", "rows without a step were numbered in file order")


_HELD_OUT_SPLITS = frozenset({"eval", "val", "valid", "validation", "test", "dev"})


def parse_object(raw: bytes) -> dict[str, Any] | None:
    """The object on one line, or None. Accepts bare NaN, Infinity and -Infinity as json.dumps writes them."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


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
            add_row(table, row, table.num_rows + 1)
        elif b"\0" in line.raw:
            table.damage(line.number, line.offset, "a block of NUL bytes, as a crash leaves it")
        elif line.is_torn:
            table.damage(line.number, line.offset, "the last line is not finished yet", benign=True)
        else:
            table.damage(line.number, line.offset, "not a JSON object: " + line.text[:60])


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
