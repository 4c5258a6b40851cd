"""Does a query over a case's signals answer, and can it reach or change anything else?"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path

import numpy as np
import pytest

from spike.casefile.signals_store import SIGNALS_NAME, query_signals, write_signals
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.signals import Series, Signals


@pytest.fixture
def case(tmp_path: Path) -> Path:
    steps = np.arange(1, 6, dtype=np.int64)
    values = np.array([3.0, 2.5, np.nan, np.inf, 2.0])
    loss = Series("loss", steps, values, 0, "a.jsonl", "loss", 6)
    old = Series("loss", steps[:2], values[:2], 0, "old.jsonl", "loss", 6)
    case = tmp_path / "case"
    write_signals(case, Signals((loss,), superseded=(old,)))
    return case


def test_a_select_sees_every_value_with_its_rank_source_and_whether_a_restart_replaced_it(case: Path) -> None:
    answer = query_signals(case, "SELECT step, value, rank, source FROM signals WHERE NOT superseded ORDER BY step")
    assert answer.columns == ("step", "value", "rank", "source")
    assert [row[0] for row in answer.rows] == [1, 2, 3, 4, 5]
    assert math.isnan(float(str(answer.rows[2][1])))
    assert answer.rows[3][1:] == (math.inf, 0, "a.jsonl")
    assert query_signals(case, "SELECT count(*) FROM signals WHERE superseded").rows == ((2,),)


def test_an_answer_longer_than_the_limit_is_cut_and_says_so(case: Path) -> None:
    answer = query_signals(case, "SELECT step FROM signals", max_rows=3)
    assert (len(answer.rows), answer.is_cut) == (3, True)
    assert not query_signals(case, "SELECT step FROM signals", max_rows=7).is_cut


HOSTILE = (
    "COPY signals TO '{out}'",
    "COPY (SELECT 1) TO '{parquet}'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('{parquet}')",
    "SELECT * FROM '{parquet}'",
    "SELECT * FROM glob('/etc/*')",
    "ATTACH '{out}' AS other",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW signals AS SELECT 1",
    "DROP VIEW signals",
    "SET enable_external_access = true",
    "PRAGMA database_list",
    "INSTALL httpfs",
    "LOAD httpfs",
    "EXPORT DATABASE '{out}'",
    "EXPLAIN ANALYZE COPY signals TO '{out}'",
    "SELECT 1; COPY signals TO '{out}'",
    "SELECT getenv('HOME')",
    "SELECT * FROM values_of_python",
    "",
    "this is no SQL",
)


def test_nothing_but_the_signals_can_be_read_and_nothing_can_be_written(case: Path, tmp_path: Path) -> None:
    values_of_python = {"a": np.arange(3)}  # replacement scans of duckdb would find it by name
    parquet, out = case / SIGNALS_NAME, tmp_path / "out"
    before = hashlib.sha256(parquet.read_bytes()).hexdigest()
    refused = 0
    for sql in HOSTILE:
        with pytest.raises(SpikeError):
            query_signals(case, sql.format(out=out, parquet=parquet))
        refused += 1
    assert refused == len(HOSTILE) == 21
    assert values_of_python
    assert not out.exists()
    assert hashlib.sha256(parquet.read_bytes()).hexdigest() == before
    assert os.listdir(case / "evidence") == ["signals.parquet"]


def test_a_case_without_signals_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match=r"signals\.parquet"):
        query_signals(tmp_path, "SELECT 1")
