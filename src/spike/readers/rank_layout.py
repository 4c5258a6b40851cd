"""How are the facts of many ranks written in these files? As tables, in the words of the column store.

For JSON lines (one file with a rank column, or a file a rank), for the probe's traces, and for the signals of a case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.domain.rank_sync import (
    FINGERPRINT,
    FINGERPRINT_NAMES,
    GENERATION,
    GENERATION_NAMES,
    NON_FINITE,
    NON_FINITE_NORM,
    OF_SIGNAL,
    WHETHER,
)
from spike.readers.metrics.columns import assign, rank_name, step_name
from spike.readers.metrics.find import head_of

HOST_NAMES = ("host", "hostname", "host_name", "node", "nodename")
SAMPLED_FILES = 16
RANK_IN_FILE = r"rank[_.\-]?(\d+)[^/]*$"
"""As `rank_in_name` of the metric readers has it."""
TRACE_COLUMNS = {
    "t": "VARCHAR",
    "step": "BIGINT",
    "world": "BIGINT",
    "host": "VARCHAR",
    "first_step": "BIGINT",
    "lr": "VARCHAR",
    "applied": "BOOLEAN",
    "loss_scale": "DOUBLE",
    "loss": "DOUBLE",
    "grad_norm": "DOUBLE",
    "nonfinite_grads": "BIGINT",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How the facts of a row are written in these files, as SQL."""

    source: str
    quantities: Mapping[str, str]
    """Quantity -> expression; NULL where the row does not say."""
    host: str = "NULL"
    world: str = "NULL"
    generation: str = "NULL"
    """A generation that a rank tells once, at its start."""
    is_row: str = "TRUE"
    """Which rows stand for a step that a rank logged, where one step has several."""
    lost: str = "FALSE"
    """Whether the row is a line that could not be read."""
    is_quick: bool = False
    """A scan costs little: two simple ones beat one with both groupings."""
    traces: tuple[Path, ...] = ()


def files_layout(files: Sequence[Path]) -> Layout | None:
    """The rows of these files; None where they say nothing about ranks."""
    texts = [path for path in files if path.suffix in (".jsonl", ".json", ".ndjson", ".log", "")]
    spread = texts[:: max(1, len(texts) // SAMPLED_FILES)][:SAMPLED_FILES]
    samples = [row for path in spread for row in _objects(head_of(path))]
    if not samples:
        return None
    if samples[0].get("t") == "start":
        return _trace_layout(texts)
    kinds = _kinds(samples)
    at, by = step_name(kinds), rank_name(kinds)
    if at is None or (by is None and not all(_has_rank(path) for path in spread)):
        return None
    return _line_layout(texts, kinds, at, by)


def _objects(head: bytes) -> Iterator[dict[str, Any]]:
    for line in head.split(b"\n")[:50]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _has_rank(path: Path) -> bool:
    from spike.readers.metrics.read import rank_in_name

    return rank_in_name(path) is not None


def _kinds(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for row in samples:
        for key, value in row.items():
            if isinstance(value, dict | list):
                continue
            text = isinstance(value, str) and value not in ("NaN", "nan", "Infinity", "-Infinity", "inf", "-inf")
            kinds[key] = "VARCHAR" if text or kinds.get(key) == "VARCHAR" else "DOUBLE"
    return kinds


def _line_layout(files: Sequence[Path], kinds: dict[str, str], at: str, by: str | None) -> Layout:
    names = assign(kinds, {})
    columns: dict[str, str] = {at: "BIGINT"}
    rank = f"regexp_extract(filename, {quoted(RANK_IN_FILE)}, 1)::BIGINT"
    if by is not None:
        columns[by], rank = "BIGINT", named(by)
    quantities: dict[str, str] = {}
    for column, name in names.items():
        quantity = OF_SIGNAL.get(name)
        if column.lower() in GENERATION_NAMES or column.lower() in FINGERPRINT_NAMES:
            quantity = GENERATION if column.lower() in GENERATION_NAMES else FINGERPRINT
        if quantity is not None:
            columns[column] = "DOUBLE" if quantity in WHETHER else kinds[column]
            quantities[quantity] = _fact(quantity, named(column))
    host = next((column for column in kinds if column.lower() in HOST_NAMES), None)
    world = next((column for column in kinds if column.lower() in ("world", "world_size")), None)
    if host is not None:
        columns[host] = "VARCHAR"
    if world is not None:
        columns[world] = "BIGINT"
    scan = table(files, columns, with_name=by is None)
    source = f"(SELECT *, {rank} AS spike_rank, {named(at)} AS spike_step FROM {scan})"
    return Layout(
        f"(SELECT spike_rank AS rank, spike_step AS step, * FROM {source})",
        quantities,
        host=named(host) if host is not None else "NULL",
        world=named(world) if world is not None else "NULL",
        lost="spike_step IS NULL",
    )


def _trace_layout(files: Sequence[Path]) -> Layout:
    scan = table(files, TRACE_COLUMNS, with_name=True)
    source = (
        "(SELECT * EXCLUDE (step), CASE WHEN t = 'step' THEN step END AS step,"
        f" regexp_extract(filename, {quoted(RANK_IN_FILE)}, 1)::BIGINT AS rank FROM {scan})"
    )
    quantities = {
        "learning rate": "lr",
        "loss scale": "loss_scale",
        "skip decision": "NOT applied",
        NON_FINITE: "NOT isfinite(loss)",
        NON_FINITE_NORM: "NOT isfinite(grad_norm)",
    }
    return Layout(
        source,
        quantities,
        host="host",
        world="world",
        generation="CASE WHEN t = 'start' THEN first_step END",
        lost="t IS NULL",
        traces=tuple(files),
    )


def _fact(quantity: str, column: str) -> str:
    """What a logged number says of the quantity, as the pure way has it."""
    if quantity not in WHETHER:
        return column
    return f"{column} > 0" if quantity == "skip decision" else f"NOT isfinite({column})"


def table(files: Sequence[Path], columns: Mapping[str, str], *, with_name: bool) -> str:
    """The files as a table of these columns; lines that cannot be read give rows of NULL."""
    listed = "[" + ", ".join(quoted(str(path)) for path in files) + "]"
    spec = "{" + ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in columns.items()) + "}"
    named = ", filename=true" if with_name else ""
    return f"read_json({listed}, format='newline_delimited', columns={spec}, ignore_errors=true{named})"


def case_layout(signals: Path) -> Layout:
    """The rows of a case's evidence/signals.parquet."""
    names = {
        **OF_SIGNAL,
        **dict.fromkeys(GENERATION_NAMES, GENERATION),
        **dict.fromkeys(FINGERPRINT_NAMES, FINGERPRINT),
    }
    quantities = {
        quantity: f"CASE WHEN name IN ({quoted_list([n for n, q in names.items() if q == quantity])})"
        f" THEN {_fact(quantity, 'value')} END"
        for quantity in dict.fromkeys(names.values())
    }
    source = f"(SELECT name, rank, step, value FROM read_parquet({quoted(str(signals))}) WHERE rank IS NOT NULL)"
    lead = f"name = (SELECT name FROM {source} GROUP BY name ORDER BY count(*) DESC, name LIMIT 1)"
    return Layout(source, quantities, is_row=lead, is_quick=True)


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def named(text: str) -> str:
    """A column's name in SQL."""
    return '"' + text.replace('"', '""') + '"'


def quoted_list(names: Sequence[str]) -> str:
    """Texts in SQL, behind one another."""
    return ", ".join(quoted(name) for name in names)
