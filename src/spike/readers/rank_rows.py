"""What did each of many ranks log? Millions of rows gathered by a column store, in memory bounded by ranks and steps.

For JSON lines (one file with a rank column, or a file a rank), for the probe's traces, and for the signals of a case.
Lines that cannot be read are left out and counted; `spike detect` says where they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spike.domain.errors import InputUnreadable
from spike.domain.rank_sync import (
    FINGERPRINT,
    GENERATION,
    LOGGED,
    LOGGED_WORDS,
    SPARSE_NOTE,
    Extent,
    Gathered,
    expected_ranks,
    is_sparse,
    shown,
)
from spike.readers.rank_layout import RANK_IN_FILE, Layout, case_layout, files_layout, named, quoted, table

if TYPE_CHECKING:
    import duckdb

MEMORY = "1GB"
"""What the column store may use; it spills to disk beyond."""


def gather_files(files: Sequence[Path]) -> Gathered | None:
    """The facts of per-rank JSON lines or traces; None where these files say nothing about ranks.

    Raises `InputUnreadable` where the column store cannot read them.
    """
    layout = files_layout(files)
    return _gather(layout) if layout is not None else None


def gather_case(signals: Path) -> Gathered:
    """The facts of a case's evidence/signals.parquet. Raises `InputUnreadable`."""
    return _gather(case_layout(signals))


def _gather(layout: Layout) -> Gathered:
    import duckdb

    try:
        with duckdb.connect() as db:
            db.execute(f"SET memory_limit = {quoted(MEMORY)}")
            db.execute("SET enable_progress_bar = false")
            by_step, by_rank = _grouped(db, layout)
            return _facts(db, layout, by_step, by_rank)
    except duckdb.Error as error:
        raise InputUnreadable(f"the ranks' logs cannot be read: {error}", hint="spike detect says which") from error


def _grouped(db: duckdb.DuckDBPyConnection, layout: Layout) -> tuple[dict[str, Any], dict[str, Any]]:
    """(per step, per rank), as numpy columns."""
    sides = [
        f"min({sql}) AS low{i}, max({sql}) AS high{i}, count({sql}) AS num{i}"
        for i, sql in enumerate(layout.quantities.values())
    ]
    rows = f"FILTER (WHERE {layout.is_row})" if layout.is_row != "TRUE" else ""
    several = [f"count(*) {rows} AS num", f"bit_xor(hash(rank)) {rows} AS ranks", *sides]
    extent = [
        f"min(step) {rows} AS first",
        f"max(step) {rows} AS last",
        f"count(step) {rows} AS num_rows",
        "any_value(hash(rank)) AS mark",
        f"any_value({layout.host}) AS host",
        f"max({layout.world}) AS world",
        f"max({layout.generation}) AS generation",
        f"count(*) FILTER (WHERE {layout.lost}) AS lost",
    ]
    if layout.is_quick:
        steps = db.execute(f"SELECT step, {', '.join(several)} FROM {layout.source} GROUP BY step").fetchnumpy()
        ranks = db.execute(f"SELECT rank, {', '.join(extent)} FROM {layout.source} GROUP BY rank").fetchnumpy()
        return steps, ranks
    both = db.execute(
        f"SELECT grouping(step) AS is_rank, step, rank, {', '.join([*several, *extent])} FROM {layout.source}"
        " GROUP BY GROUPING SETS ((step), (rank))"
    ).fetchnumpy()
    is_rank = both["is_rank"].astype(bool)
    return (
        {key: column[~is_rank] for key, column in both.items()},
        {key: column[is_rank] for key, column in both.items()},
    )


def _facts(db: duckdb.DuckDBPyConnection, layout: Layout, by_step: dict[str, Any], by_rank: dict[str, Any]) -> Gathered:
    import numpy as np

    known = ~np.ma.getmaskarray(by_rank["rank"]) & (np.ma.getdata(by_rank["num_rows"]) > 0)
    ranks = np.ma.getdata(by_rank["rank"])[known].astype(int).tolist()
    columns = [np.ma.getdata(by_rank[key])[known].tolist() for key in ("first", "last", "num_rows")]
    extents = {r: Extent(int(a), int(b), int(n)) for r, a, b, n in zip(ranks, *columns, strict=True)}
    marks = dict(zip(ranks, np.ma.getdata(by_rank["mark"])[known].tolist(), strict=True))
    there = ~np.ma.getmaskarray(by_step["step"])
    steps = np.ma.getdata(by_step["step"])[there].astype(np.int64)
    order = np.argsort(steps)
    by_step = {key: np.ma.asarray(column)[there][order] for key, column in by_step.items()}
    parted, compared = _partings(db, layout, steps[order], by_step)
    notes: list[str] = []
    if len(extents) > 1:
        gap = _gap(db, layout, steps[order], by_step, extents, marks, notes)
        if not any(note == SPARSE_NOTE for note in notes):
            compared.append(LOGGED)
        if gap is not None:
            parted[LOGGED] = gap
    _add_generation(by_rank, known, ranks, parted, compared)
    if layout.traces:
        _add_fingerprints(db, layout, len(extents), parted, compared, notes)
    hosts = {
        rank: str(host)
        for rank, host, lost in zip(
            ranks, by_rank["host"][known].tolist(), np.ma.getmaskarray(by_rank["host"])[known].tolist(), strict=True
        )
        if not lost and host is not None
    }
    worlds = np.ma.asarray(by_rank["world"]).compressed()
    return Gathered(
        extents,
        tuple(compared),
        parted,
        hosts,
        int(worlds.max()) if worlds.size and worlds.dtype != object else 0,
        sum(e.num_steps for e in extents.values()),
        int(np.ma.getdata(by_rank["lost"]).sum()),
        tuple(notes),
    )


def _partings(
    db: duckdb.DuckDBPyConnection, layout: Layout, steps: Any, by_step: dict[str, Any]
) -> tuple[dict[str, tuple[int, int, Mapping[int, str]]], list[str]]:
    """(first parting of each quantity, quantities that more than one rank logged)."""
    import numpy as np

    first: dict[str, tuple[int, int]] = {}
    compared: list[str] = []
    for index, quantity in enumerate(layout.quantities):
        low, high = (np.ma.asarray(by_step[f"{side}{index}"]) for side in ("low", "high"))
        there = ~np.ma.getmaskarray(low)
        if (np.ma.getdata(by_step[f"num{index}"]) > 1).any():
            compared.append(quantity)
        a, b = np.ma.getdata(low), np.ma.getdata(high)
        same = a == b
        if a.dtype.kind == "f":
            same |= np.isnan(a) & np.isnan(b)
        differs = np.flatnonzero(there & ~np.asarray(same, dtype=bool))
        if differs.size:
            first[quantity] = (int(steps[differs[0]]), int(differs.size))
    if not first:
        return {}, compared
    wanted = sorted({step for step, _ in first.values()})
    cells = ", ".join(f"{layout.quantities[q]} AS {named(q)}" for q in first)
    rows = db.execute(
        f"SELECT step, rank, {cells} FROM {layout.source} WHERE step IN ({', '.join(map(str, wanted))})"
    ).fetchall()
    return {
        quantity: (
            step,
            count,
            {int(row[1]): _text(quantity, row[2 + i]) for row in rows if row[0] == step and row[2 + i] is not None},
        )
        for i, (quantity, (step, count)) in enumerate(first.items())
    }, compared


def _text(quantity: str, value: Any) -> str:
    """As the pure way shows it; a trace's list of one rate is that rate."""
    if quantity == "learning rate" and isinstance(value, str) and value.startswith("["):
        rates = json.loads(value)
        return ", ".join(shown(quantity, float(rate)) for rate in rates)
    return shown(quantity, value)


def _gap(
    db: duckdb.DuckDBPyConnection,
    layout: Layout,
    steps: Any,
    by_step: dict[str, Any],
    extents: dict[int, Extent],
    marks: dict[int, int],
    notes: list[str],
) -> tuple[int, int, Mapping[int, str]] | None:
    """The first step that some ranks logged and others, which go on after it, did not.

    A step is whole where as many rows as expected came from exactly the expected ranks; the exclusive or of the ranks'
    hashes tells that without keeping them.
    """
    import numpy as np

    first, last = int(steps[0]), int(steps[-1])
    expected = expected_ranks(extents, first, last)[steps - first]
    begins: dict[int, int] = {}
    for rank, extent in extents.items():
        for at in (extent.first, extent.last + 1):
            begins[at] = begins.get(at, 0) ^ marks[rank]
    wanted, running = {}, 0
    for at in sorted(begins):
        running ^= begins[at]
        wanted[at] = running
    edges = np.asarray(sorted(wanted))
    place = np.searchsorted(edges, steps, side="right") - 1
    masks = np.asarray([wanted[int(edge)] for edge in edges], dtype=np.uint64)[place]
    odd = (np.ma.getdata(by_step["num"]) != expected) | (np.ma.getdata(by_step["ranks"]).astype(np.uint64) != masks)
    odd &= np.ma.getdata(by_step["num"]) > 0
    if not odd.any():
        return None
    listed = ", ".join(str(int(step)) for step in steps[odd][:10_000])
    counts = db.execute(
        f"SELECT step, count(DISTINCT rank), count(*) FROM {layout.source}"
        f" WHERE {layout.is_row} AND step IN ({listed}) GROUP BY step"
    ).fetchall()
    twice = sum(rows - there for _, there, rows in counts)
    if twice:
        notes.append(f"{twice:,} rows are there twice, as after a restart; each of them was compared")
    need = dict(zip(steps.tolist(), expected.tolist(), strict=True))
    if is_sparse(extents):
        notes.append(SPARSE_NOTE)
        return None
    gaps = sorted(step for step, there, _ in counts if there < need[step])
    if not gaps:
        return None
    rows = db.execute(
        f"SELECT DISTINCT rank FROM {layout.source} WHERE {layout.is_row} AND step = {gaps[0]}"
    ).fetchall()
    present = {int(row[0]) for row in rows}
    inside = (rank for rank, e in extents.items() if e.first <= gaps[0] <= e.last)
    return gaps[0], len(gaps), {rank: LOGGED_WORDS[rank in present] for rank in inside}


def _add_generation(
    by_rank: dict[str, Any],
    known: Any,
    ranks: list[int],
    parted: dict[str, tuple[int, int, Mapping[int, str]]],
    compared: list[str],
) -> None:
    """The checkpoint that each rank says it started from."""
    import numpy as np

    told = np.ma.asarray(by_rank["generation"])[known]
    values = {
        r: int(v)
        for r, v, lost in zip(ranks, told.tolist(), np.ma.getmaskarray(told), strict=True)
        if not lost and v is not None
    }
    if len(values) < 2:
        return
    compared.append(GENERATION)
    if len(set(values.values())) > 1:
        parted[GENERATION] = (min(values.values()) + 1, 1, {r: f"step {v}" for r, v in values.items()})


def _add_fingerprints(
    db: duckdb.DuckDBPyConnection,
    layout: Layout,
    num_ranks: int,
    parted: dict[str, tuple[int, int, Mapping[int, str]]],
    compared: list[str],
    notes: list[str],
) -> None:
    """Parameters that every rank fingerprinted in one shape, tensor by tensor."""
    scan = table(layout.traces, {"t": "VARCHAR", "step": "BIGINT", "tensors": "VARCHAR"}, with_name=True)
    shape = '[{"role":"VARCHAR","name":"VARCHAR","digest":"VARCHAR","shape":"JSON"}]'
    db.execute(
        "CREATE TEMP TABLE prints AS SELECT step, rank, p.name AS name, p.digest AS digest, p.shape::VARCHAR AS shape"
        f" FROM (SELECT step, regexp_extract(filename, {quoted(RANK_IN_FILE)}, 1)::BIGINT AS rank,"
        f" unnest(from_json(tensors, {quoted(shape)})) AS p FROM {scan} WHERE t = 'fingerprint')"
        " WHERE p.role = 'parameter'"
    )
    rows = db.execute(
        "SELECT step, name, min(digest) <> max(digest) FROM prints GROUP BY step, name"
        " HAVING count(DISTINCT rank) = ? AND min(shape) = max(shape) ORDER BY step, name",
        [num_ranks],
    ).fetchall()
    if not rows:
        return
    differing = [(step, name) for step, name, differs in rows if differs]
    if differing and len({n for _, n in differing}) == len({n for _, n, _ in rows}) > 1:
        notes.append("every parameter differs between ranks: they are sharded, or have drifted everywhere")
        return
    compared.append(FINGERPRINT)
    if differing:
        step, name = differing[0]
        values = db.execute("SELECT rank, digest FROM prints WHERE step = ? AND name = ?", [step, name]).fetchall()
        num_steps = len({s for s, _ in differing})
        parted[FINGERPRINT] = (step, num_steps, {int(rank): f"{name} {digest[:12]}" for rank, digest in values})
