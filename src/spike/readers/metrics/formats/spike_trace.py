"""What does the probe's own trace say as signals? Loss, gradient norm and the rest of docs/FORMATS.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spike.readers.metrics.contract import Parsed, Session, Table
from spike.readers.metrics.json_rows import parse_object
from spike.readers.metrics.line_session import LineSession
from spike.readers.metrics.numbers import as_number, as_step
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.text_lines import Line

SCHEMA = "spike.trace/1"
_NUMBERS = ("loss", "grad_norm", "update_norm", "param_norm", "loss_scale", "nonfinite_grads", "seconds")


class SpikeTrace:
    """rankNNNNN.jsonl as the probe writes it."""

    format = "spike-trace"
    order = 30

    def sniff(self, path: Path, head: bytes) -> bool:
        """The first line is a start line of this schema."""
        first = parse_object(head.split(b"\n", 1)[0])
        return first is not None and first.get("t") == "start" and first.get("schema") == SCHEMA

    def read(self, path: Path) -> Parsed:
        """Every step line; the rank is left out where the job has only one."""
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Line by line; the rank is remembered."""
        table = Table(self.format)
        return LineSession(table, _Lines(table).take)


class _Lines:
    """Lines behind a start line."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rank: int | None = None

    def take(self, line: Line) -> None:
        """Add one line."""
        row = parse_object(line.raw)
        if row is None:
            if line.raw.strip():
                reason = "the last line is not finished yet" if line.is_torn else "not a JSON object"
                self._table.damage(line.number, line.offset, reason, benign=line.is_torn)
        elif row.get("t") == "start":
            self._rank = as_step(row.get("rank")) if row.get("world") != 1 else None
        elif row.get("t") == "step":
            step = as_step(row.get("step"))
            if step is None:
                self._table.damage(line.number, line.offset, f"a step line whose step is {row.get('step')!r:.40}")
            else:
                self._table.add(step, _values(row), rank=self._rank)


def _values(row: dict[str, Any]) -> dict[str, float]:
    values = {name: number for name in _NUMBERS if (number := as_number(row.get(name))) is not None}
    groups = row.get("lr")
    if isinstance(groups, list) and groups and (lr := as_number(groups[0])) is not None:
        values["lr"] = lr
    if isinstance(row.get("applied"), bool):
        values["skipped"] = 0.0 if row["applied"] else 1.0
    return values


READER = SpikeTrace()
