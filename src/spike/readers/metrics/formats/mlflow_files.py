"""What does an MLflow file store say? One file a metric, lines of `<milliseconds> <value> <step>`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from spike.readers.metrics.contract import Parsed, Session, Table, significant_digits
from spike.readers.metrics.line_session import LineSession
from spike.readers.metrics.numbers import as_step, parse_number
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.text_lines import Line

_LINE = re.compile(rb"^\d{12,14} \S+ -?\d+\s*$")


class MlflowFiles:
    """mlruns/<experiment>/<run>/metrics/<key>; a slash in the key is a directory."""

    format = "mlflow-files"
    order = 16

    def sniff(self, path: Path, head: bytes) -> bool:
        """Lies below `metrics` and starts with a line of the store."""
        return "metrics" in path.parts[:-1] and _LINE.match(head.split(b"\n", 1)[0]) is not None

    def read(self, path: Path) -> Parsed:
        """The one metric of this file, under its key."""
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Line by line, under the key that the path names."""
        table = Table(self.format)
        at = len(path.parts) - 1 - path.parts[::-1].index("metrics")
        return LineSession(table, partial(_take, table, "/".join(path.parts[at + 1 :])))


def _take(table: Table, key: str, line: Line) -> None:
    if not line.raw.strip():
        return
    cells = line.text.split()
    value = parse_number(cells[1]) if len(cells) == 3 else None
    step = as_step(cells[2]) if len(cells) == 3 else None
    if line.is_torn:
        table.damage(line.number, line.offset, "the last line is not finished yet", benign=True)
    elif value is None or step is None:
        table.damage(line.number, line.offset, "not `<time> <value> <step>` with a step from 0 on")
    else:
        table.add(step, {key: value}, digits={key: significant_digits(cells[1])})


READER = MlflowFiles()
