"""What does a rank of torchtitan say in its structured log? Its scalars, and how long each phase of a step took.

<source>.global_rank_<N>.<time>-<id>.jsonl, one record a line. `log_type_name` is "metric_value" for a scalar (its name
is in `event_name`) and "<phase>_end" for a phase (milliseconds in `value`); `step` is absent before the first one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spike.readers.metrics.contract import Parsed, Session, Table
from spike.readers.metrics.json_rows import parse_object
from spike.readers.metrics.line_session import LineSession
from spike.readers.metrics.numbers import as_number, as_step
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.text_lines import Line

_KEYS = {"log_type", "log_type_name", "rank", "time_us"}
_PHASE_END = "_end"


class TorchtitanEvents:
    """The per-rank log of torchtitan 0.3 and later."""

    format = "torchtitan-events"
    order = 32

    def sniff(self, path: Path, head: bytes) -> bool:
        """The first line is a record with the keys of every record."""
        first = parse_object(head.split(b"\n", 1)[0])
        return first is not None and first.keys() >= _KEYS

    def read(self, path: Path) -> Parsed:
        """Every scalar and phase that belongs to a step."""
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Line by line."""
        table = Table(self.format)
        return LineSession(table, lambda line: _take(table, line))


def _take(table: Table, line: Line) -> None:
    row = parse_object(line.raw)
    if row is None:
        if line.raw.strip():
            reason = "the last line is not finished yet" if line.is_torn else "not a JSON object"
            table.damage(line.number, line.offset, reason, benign=line.is_torn)
        return
    name, value = _name(row), as_number(row.get("value"))
    if not name or value is None:
        return
    step = as_step(row.get("step"))
    if step is not None:
        table.add(step, {name: value}, rank=as_step(row.get("rank")))
    elif row.get("step") is not None:
        table.damage(line.number, line.offset, f"a record whose step is {row['step']!r:.40}: it is not read")
    else:
        table.note("outside-steps", "records from before the first step or after the last one belong to no step")


def _name(row: dict[str, Any]) -> str:
    """Column of a record; "" for a marker or the start of a phase."""
    kind = str(row.get("log_type_name"))
    if kind == "metric_value":
        return str(row.get("event_name") or "").replace(".", "/")
    return f"{kind.removesuffix(_PHASE_END)} (ms)" if kind.endswith(_PHASE_END) else ""


READER = TorchtitanEvents()
