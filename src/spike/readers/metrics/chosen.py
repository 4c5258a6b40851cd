"""What did the operator say about the columns? The step that a column of theirs counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from spike.readers.metrics.contract import Parsed


def counted_by(parsed: Parsed, chosen: Mapping[str, str]) -> Parsed:
    """The same rows with the step that the operator's own column holds, where `chosen` names one."""
    name = chosen.get("step")
    steps = {
        (column.rank, row): int(value)
        for column in parsed.columns
        if column.name == name
        for row, value in zip(column.steps.tolist(), column.values.tolist(), strict=True)
        if math.isfinite(value)
    }
    if not steps:
        return parsed
    columns = [
        replace(column, steps=np.asarray([steps.get((column.rank, row), row) for row in column.steps.tolist()]))
        for column in parsed.columns
        if column.name != name
    ]
    notes = tuple(note for note in parsed.notes if note[0] != "assumed-steps")
    return replace(parsed, columns=tuple(columns), notes=notes)
