"""What does an MLflow file store say? One file a metric, lines of `<milliseconds> <value> <step>`."""

from __future__ import annotations

import re
from pathlib import Path

from spike.readers.metrics.contract import Parsed, Table, significant_digits
from spike.readers.metrics.numbers import as_step, parse_number
from spike.readers.metrics.text_lines import read_lines

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
        table = Table(self.format)
        at = len(path.parts) - 1 - path.parts[::-1].index("metrics")
        key = "/".join(path.parts[at + 1 :])
        for line in read_lines(path):
            cells = line.text.split()
            value = parse_number(cells[1]) if len(cells) == 3 else None
            step = as_step(cells[2]) if len(cells) == 3 else None
            if value is None or step is None:
                if line.raw.strip():
                    torn = line.is_last and not line.ended
                    table.damage(line.number, line.offset, "not `<time> <value> <step>`", benign=torn)
                continue
            table.add(step, {key: value}, digits={key: significant_digits(cells[1])})
        return table.parsed()


READER = MlflowFiles()
