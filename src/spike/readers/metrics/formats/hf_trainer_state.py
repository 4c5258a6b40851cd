"""What does a transformers Trainer's trainer_state.json say? Its log_history, bare NaN tokens included."""

from __future__ import annotations

import json
from pathlib import Path

from spike.readers.metrics.contract import Parsed, Table
from spike.readers.metrics.json_rows import add_row


class TrainerState:
    """trainer_state.json of transformers, any version."""

    format = "hf-trainer-state"
    order = 20

    def sniff(self, path: Path, head: bytes) -> bool:
        """One JSON object that has a log_history."""
        return head.lstrip().startswith(b"{") and (
            b'"log_history"' in head or (path.name == "trainer_state.json" and b'"global_step"' in head)
        )

    def read(self, path: Path) -> Parsed:
        """Parse log_history; a file cut short is damage, because the trainer writes it whole."""
        table = Table(self.format)
        raw = path.read_bytes()
        try:
            state = json.loads(raw)
            history = state["log_history"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            line = getattr(error, "lineno", 0)
            table.damage(line, getattr(error, "pos", 0), f"not a whole trainer state: {error}")
            return table.parsed()
        for row in history if isinstance(history, list) else ():
            if isinstance(row, dict):
                add_row(table, row, table.num_rows + 1)
        return table.parsed()


READER = TrainerState()
