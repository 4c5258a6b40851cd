"""What does one JSON object of a log say? Its step, its rank, its numbers, and whether it is about held-out data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spike.readers.metrics.columns import rank_name, step_name
from spike.readers.metrics.contract import Table
from spike.readers.metrics.numbers import as_number, as_step

SUMMARY_KEYS = frozenset({"train_runtime", "total_flos", "train_samples_per_second"})
"""A row with these is the trainer's closing summary: its train_loss is a mean over the whole run."""

SPLIT_KEYS = ("split", "mode")
HELD_OUT_SPLITS = frozenset({"eval", "val", "valid", "validation", "test", "dev"})


@dataclass(frozen=True, slots=True)
class JsonRow:
    """One object understood."""

    step: int | None
    """None: it names none."""
    bad_step: str
    """What stands in place of a step and is none; "" where there is nothing wrong."""
    rank: int | None
    values: dict[str, float]
    held_out: bool


def parse_object(raw: bytes) -> dict[str, Any] | None:
    """The object on one line, or None. Accepts bare NaN, Infinity and -Infinity as json.dumps writes them."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def flatten(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects to slash-joined keys; lists are left out (they are no scalar)."""
    if not prefix and not any(isinstance(value, dict | list) for value in row.values()):
        return row
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}/"))
        elif not isinstance(value, list):
            flat[f"{prefix}{key}"] = value
    return flat


@dataclass(frozen=True, slots=True)
class _Roles:
    """What the keys of a row mean; a log has few different sets of keys."""

    step: str | None
    rank: str | None
    splits: tuple[str, ...]
    is_summary: bool


@lru_cache(maxsize=4096)
def _roles(keys: tuple[str, ...]) -> _Roles:
    splits = tuple(key for key in SPLIT_KEYS if key in keys)
    return _Roles(step_name(keys), rank_name(keys), splits, not SUMMARY_KEYS.isdisjoint(keys))


def understood(row: dict[str, Any]) -> JsonRow | None:
    """The row, or None where it holds no number or is a closing summary."""
    flat = flatten(row)
    roles = _roles(tuple(flat))
    if roles.is_summary:
        return None
    given = flat.pop(roles.step) if roles.step is not None else None
    rank = flat.pop(roles.rank) if roles.rank is not None else None
    values = {key: number for key, value in flat.items() if (number := as_number(value)) is not None}
    if not values:
        return None
    step = as_step(given)
    bad = "" if given is None or step is not None else repr(given)[:40]
    split = next((flat[key] for key in roles.splits if flat[key] is not None), "")
    held_out = bool(split) and str(split).lower() in HELD_OUT_SPLITS
    return JsonRow(step, bad, None if rank is None else as_step(rank), values, held_out)


def add_row(table: Table, row: dict[str, Any], row_number: int, *, line: int = 0, offset: int = 0) -> None:
    """Add one parsed object to the table; a row without a step gets its row number (1-based)."""
    found = understood(row)
    if found is None:
        return
    if found.bad_step:
        table.damage(line, offset, bad_step(found))
        return
    step = row_number if found.step is None else found.step
    table.add(step, found.values, rank=found.rank, held_out=found.held_out)
    if found.step is None:
        table.note("assumed-steps", "rows without a step were numbered in file order")


def bad_step(row: JsonRow) -> str:
    """The sentence about a row whose step is none."""
    return f"a row whose step is {row.bad_step}: it is not read"
