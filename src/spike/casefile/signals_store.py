"""How are the run's signals kept in a case? One Parquet file: a row a value, everything else in its metadata.

Values are stored as doubles, so NaN and infinities stay what they were.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spike.casefile.atomic import fsync_directory, writing
from spike.casefile.codec import canonical, from_payload, to_payload
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.redaction import redact
from spike.domain.signals import Damage, Rewind, Series, Signals, Source

if TYPE_CHECKING:
    import duckdb

SIGNALS_NAME = "evidence/signals.parquet"
SIGNALS_SCHEMA = "spike.signals/1"

MAX_QUERY_ROWS = 10_000
"""An answer is read by a person or a script; what is longer says so, and is cut."""

QUERY_MEMORY = "2GB"

_QUERY_HINT = "SELECT name, rank, step, value, superseded, source FROM signals WHERE name = 'loss' LIMIT 10"

Cell = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_cut: bool
    """There were more rows than asked for."""


@dataclass(frozen=True, slots=True)
class _Head:
    """A series without its rows."""

    name: str
    rank: int | None
    source: str
    column: str
    digits: int
    num_rows: int
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class _About:
    """Everything but the rows."""

    series: tuple[_Head, ...]
    sources: tuple[Source, ...]
    rewinds: tuple[Rewind, ...]
    damages: tuple[Damage, ...]
    notes: tuple[tuple[str, str], ...]


def write_signals(case: Path, signals: Signals) -> None:
    """Write evidence/signals.parquet of a case directory, whole or not at all.

    Columns: series, name, rank, step, value; in record order, the rows that a restart replaced after all others.

    Raises `SpikeError` where the case cannot be written.
    """
    import duckdb

    path = case / SIGNALS_NAME
    every = (*signals.series, *signals.superseded)
    heads = tuple(
        _Head(s.name, s.rank, s.source, s.column, s.digits, int(s.steps.size), i >= len(signals.series))
        for i, s in enumerate(every)
    )
    about = _About(heads, signals.sources, signals.rewinds, signals.damages, signals.notes)
    text = redact(canonical(to_payload(about, schema=SIGNALS_SCHEMA)).decode())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _connected() as db:
                # The names of these variables are the tables of the query.
                rows = _rows(every)
                heads_table = _heads_table(heads)
                db.register("rows_in", rows)
                db.register("heads_in", heads_table)
                db.execute(
                    "COPY (SELECT r.series, h.name, CASE WHEN h.rank < 0 THEN NULL ELSE h.rank END AS rank, r.step,"
                    # duckdb takes a NaN that comes from numpy for a missing value
                    " CASE WHEN r.is_nan THEN 'NaN'::DOUBLE ELSE r.value END AS value"
                    " FROM rows_in r JOIN heads_in h USING (series) ORDER BY r.row)"
                    f" TO {_quoted(str(temporary))} (FORMAT parquet, COMPRESSION zstd,"
                    f" KV_METADATA {{spike: {_quoted(text)}}})"
                )
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except duckdb.Error as error:
            raise OSError(None, str(error)) from error
        finally:
            temporary.unlink(missing_ok=True)
        fsync_directory(path.parent)


def read_signals(case: Path) -> Signals:
    """The signals of a case directory, as they were written. Raises `InputUnreadable`."""
    import duckdb

    path = case / SIGNALS_NAME
    about = _read_about(path)
    try:
        with _connected() as db:
            columns = db.execute("SELECT step, value FROM read_parquet(?)", [str(path)]).fetchnumpy()
    except duckdb.Error as error:
        raise InputUnreadable(f"cannot read {path}: {error}", hint="spike freeze") from error
    steps = np.asarray(columns["step"], dtype=np.int64)
    values = np.asarray(columns["value"], dtype=np.float64)
    if np.ma.is_masked(columns["value"]) or np.ma.is_masked(columns["step"]):
        raise InputUnreadable(f"{path} has rows without a value; spike writes none")
    series: list[Series] = []
    superseded: list[Series] = []
    start = 0
    for head in about.series:
        end = start + head.num_rows
        rows = steps[start:end], values[start:end]
        one = Series(head.name, *rows, head.rank, head.source, head.column, head.digits)
        (superseded if head.superseded else series).append(one)
        start = end
    if start != steps.size:
        raise InputUnreadable(f"{path} has {steps.size} rows, its metadata says {start}")
    return Signals(tuple(series), about.sources, about.rewinds, about.damages, about.notes, tuple(superseded))


def _connected() -> duckdb.DuckDBPyConnection:
    """A database in memory that draws no progress bar over the answer."""
    import duckdb

    db = duckdb.connect()
    db.execute("SET enable_progress_bar = false")
    return db


def _read_about(path: Path) -> _About:
    import duckdb

    try:
        with _connected() as db:
            text = db.execute(
                "SELECT decode(value) FROM parquet_kv_metadata(?) WHERE decode(key) = 'spike'", [str(path)]
            ).fetchone()
    except duckdb.Error as error:
        raise InputUnreadable(f"cannot read {path}: {error}", hint="spike freeze") from error
    if text is None:
        raise InputUnreadable(f"{path} was not written by spike", hint="spike freeze")
    return from_payload(_About, json.loads(text[0]), schema=SIGNALS_SCHEMA, source=str(path))


def query_signals(case: Path, sql: str, *, max_rows: int = MAX_QUERY_ROWS) -> Answer:
    """Answer one SELECT over the table `signals` (name, rank, step, value, superseded, source) of a case.

    The query sees a private copy of evidence/signals.parquet and nothing else: no other file, no network, no settings,
    no writing; a query that needs more than `QUERY_MEMORY` is refused.

    Raises `InputUnreadable` where the case has no signals, `SpikeError` where the query fails.
    """
    import duckdb

    heads = _read_about(case / SIGNALS_NAME).series
    with tempfile.TemporaryDirectory(prefix="spike-query-") as directory:
        copy = Path(directory) / "signals.parquet"
        shutil.copyfile(case / SIGNALS_NAME, copy)
        try:
            with _connected() as db:
                _lock_down(db, copy, heads)
                statements = db.extract_statements(sql)
                if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                    raise SpikeError("spike answers one SELECT, nothing else", hint=_QUERY_HINT)
                found = db.execute(statements[0])
                columns = tuple(str(column[0]) for column in found.description or ())
                rows = found.fetchmany(max_rows + 1)
        except duckdb.Error as error:
            raise SpikeError(f"the query failed: {error}", hint=_QUERY_HINT) from error
    shown = tuple(tuple(_plain(cell) for cell in row) for row in rows[:max_rows])
    return Answer(columns, shown, len(rows) > max_rows)


def _lock_down(db: Any, copy: Path, heads: tuple[_Head, ...]) -> None:
    """Make `signals` of the copy, then take away everything else."""
    db.execute("CREATE TABLE heads (series BIGINT, source VARCHAR, superseded BOOLEAN)")
    if heads:
        db.executemany("INSERT INTO heads VALUES (?, ?, ?)", [(i, h.source, h.superseded) for i, h in enumerate(heads)])
    db.execute(
        "CREATE VIEW signals AS SELECT r.name, r.rank, r.step, r.value, h.superseded, h.source"
        f" FROM read_parquet({_quoted(str(copy))}) r JOIN heads h USING (series)"
    )
    db.execute("SET python_enable_replacements = false")
    db.execute(f"SET memory_limit = {_quoted(QUERY_MEMORY)}")
    db.execute("SET temp_directory = ''")
    db.execute(f"SET allowed_paths = [{_quoted(str(copy))}]")
    db.execute("SET enable_external_access = false")
    db.execute("SET lock_configuration = true")


def _plain(cell: Any) -> Cell:
    """What JSON and a terminal can show; a NaN stays one."""
    if isinstance(cell, Decimal):
        return float(cell)
    return cell if cell is None or isinstance(cell, bool | int | float | str) else str(cell)


def _rows(every: tuple[Series, ...]) -> dict[str, Any]:
    counts = [int(s.steps.size) for s in every]
    total = sum(counts)
    values = np.concatenate([s.values for s in every] or [np.empty(0, np.float64)])
    return {
        "row": np.arange(total, dtype=np.int64),
        "series": np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        "step": np.concatenate([s.steps for s in every] or [np.empty(0, np.int64)]),
        "value": np.where(np.isnan(values), 0.0, values),
        "is_nan": np.isnan(values),
    }


def _heads_table(heads: tuple[_Head, ...]) -> dict[str, Any]:
    return {
        "series": np.arange(len(heads), dtype=np.int64),
        "name": np.array([redact(h.name) for h in heads], dtype=object),
        "rank": np.array([-1 if h.rank is None else h.rank for h in heads], dtype=np.int64),
    }


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
