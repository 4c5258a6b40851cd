"""How do fairseq and metaseq print a row? A JSON object with numbers as strings, behind a log prefix."""

from __future__ import annotations

import json
import re

from spike.readers.metrics.columns import is_held_out, looks_like_metrics, step_name
from spike.readers.metrics.console_text import Match
from spike.readers.metrics.numbers import as_number, as_step

_PART = re.compile(r"\|\s*(train|train_inner|valid\w*|test\w*)\s*\|\s*$")


class EmbeddedJson:
    """`2022-01-01 | INFO | train_inner | {"loss": "3.269", "gnorm": "0.4", "num_updates": "46002"}`."""

    name = "embedded-json"
    order = 25

    def match(self, text: str) -> Match | None:
        """The object's numbers, if it has a step and a known signal."""
        start = text.find("{")
        if start < 0 or '"' not in text[start : start + 3]:
            return None
        try:
            row = json.loads(text[start : text.rindex("}") + 1])
        except (ValueError, RecursionError):
            return None
        if not isinstance(row, dict) or not looks_like_metrics(map(str, row)):
            return None
        at = step_name(row) or next((key for key in row if key.endswith("num_updates")), None)
        step = as_step(row[at]) if at is not None else None
        if step is None:
            return None
        values = {k: str(v) for k, v in row.items() if k != at and as_number(v) is not None}
        part = _PART.search(text[:start])
        return Match(values, step, held_out=part is not None and is_held_out(part[1]))

    def wants_more(self, text: str) -> bool:
        """Never."""
        return False


SHAPE = EmbeddedJson()
