"""Do signals come back bit for bit, NaN included?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spike.casefile.signals_store import SIGNALS_NAME, read_signals, write_signals
from spike.domain.errors import InputUnreadable
from spike.domain.signals import Damage, Rewind, Series, Signals, Source


def _same(a: Series, b: Series) -> bool:
    fields = ("name", "rank", "source", "column", "digits")
    return (
        all(getattr(a, f) == getattr(b, f) for f in fields)
        and np.array_equal(a.steps, b.steps)
        and np.array_equal(a.values, b.values, equal_nan=True)
        and np.array_equal(np.signbit(a.values), np.signbit(b.values))
    )


_VALUES = st.lists(st.floats(width=64).map(lambda v: float("nan") if v != v else v), max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(_VALUES, st.one_of(st.none(), st.integers(0, 5))), max_size=4))
def test_every_value_comes_back_as_it_was(tmp_path: Path, columns: list[tuple[list[float], int | None]]) -> None:
    series = tuple(
        Series(f"s{i}", np.arange(len(v), dtype=np.int64), np.array(v, dtype=np.float64), rank, "it's.log", "c", 6)
        for i, (v, rank) in enumerate(columns)
    )
    write_signals(tmp_path, Signals(series, superseded=series[:1]))
    found = read_signals(tmp_path)
    assert len(found.series) == len(series)
    assert all(_same(a, b) for a, b in zip(series, found.series, strict=True))
    assert all(_same(a, b) for a, b in zip(series[:1], found.superseded, strict=True))


def test_everything_beside_the_rows_comes_back(tmp_path: Path) -> None:
    given_signals = Signals(
        sources=(Source("a.jsonl", "jsonl", 3, 1, None),),
        rewinds=(Rewind(9, 4, "a.jsonl", True),),
        damages=(Damage("a.jsonl", 3, 99, "torn line", True),),
        notes=(("filtered-nan", "loss logged as 0.0"),),
    )
    write_signals(tmp_path, given_signals)
    found = read_signals(tmp_path)
    assert (found.sources, found.rewinds, found.damages, found.notes) == (
        given_signals.sources,
        given_signals.rewinds,
        given_signals.damages,
        given_signals.notes,
    )


def test_the_file_is_plain_parquet_for_anybody(tmp_path: Path) -> None:
    import duckdb

    rows = Series("loss", np.array([1, 2], dtype=np.int64), np.array([np.nan, 2.5]), 3, "x", "loss")
    write_signals(tmp_path, Signals((rows,)))
    with duckdb.connect() as db:
        found = db.execute("SELECT name, rank, step, value FROM read_parquet(?)", [str(tmp_path / SIGNALS_NAME)])
        (first, second) = found.fetchall()
    assert first[:3] == ("loss", 3, 1)
    assert np.isnan(first[3])
    assert second == ("loss", 3, 2, 2.5)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all"])
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / SIGNALS_NAME).write_bytes(data)
    with pytest.raises(InputUnreadable, match=r"signals\.parquet"):
        read_signals(tmp_path)
    (tmp_path / SIGNALS_NAME).unlink()
    with pytest.raises(InputUnreadable, match=r"signals\.parquet"):
        read_signals(tmp_path)


def test_a_foreign_parquet_file_is_refused(tmp_path: Path) -> None:
    import duckdb

    (tmp_path / "evidence").mkdir()
    with duckdb.connect() as db:
        db.execute(f"COPY (SELECT 1 AS step, 2.0 AS value) TO '{tmp_path / SIGNALS_NAME}' (FORMAT parquet)")
    with pytest.raises(InputUnreadable, match="not written by spike"):
        read_signals(tmp_path)
