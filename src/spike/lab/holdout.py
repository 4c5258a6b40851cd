"""What is the held-out number before and after? The operator's own evaluation, run inside the trial's view."""

from __future__ import annotations

import json
import re
from pathlib import Path

from spike.domain.measured import NotMeasured

FILE_NAME = "holdout.json"
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf", re.IGNORECASE)


def last_number(text: str) -> float | NotMeasured:
    """The last number that an evaluation printed."""
    found = _NUMBER.findall(text)
    return float(found[-1]) if found else NotMeasured("the holdout command printed no number")


def read_holdout(directory: Path) -> tuple[float | NotMeasured, float | NotMeasured]:
    """(at the trial's checkpoint, after its window), as `write_holdout` stored them."""
    try:
        payload = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing = NotMeasured("spike.yaml has no holdout command")
        return missing, missing
    before, after = (_value(payload.get(key)) for key in ("before", "after"))
    return before, after


def write_holdout(directory: Path, before: float | NotMeasured, after: float | NotMeasured) -> None:
    """Store the two numbers beside the trial."""
    payload = {"schema": "spike.holdout/1", "before": _json(before), "after": _json(after)}
    (directory / FILE_NAME).write_text(json.dumps(payload) + "\n", encoding="utf-8")


def _json(value: float | NotMeasured) -> object:
    return {"not_measured": value.not_measured} if isinstance(value, NotMeasured) else str(value)


def _value(stored: object) -> float | NotMeasured:
    if isinstance(stored, str):
        return float(stored)
    reason = stored.get("not_measured", "") if isinstance(stored, dict) else ""
    return NotMeasured(str(reason) or "the holdout command was not run")
