"""Does the column store say about a table what the line-exact reader says, or leave the table to it?"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spike.readers.metrics.contract import Parsed
from spike.readers.metrics.fast_csv import read_fast
from spike.readers.metrics.formats import delimited
from spike.readers.metrics.pieces import read_through

HEADER = ["step", "rank", "loss", "grad_norm"]


def said(parsed: Parsed) -> tuple[object, ...]:
    columns = {
        (c.name, c.rank): (list(zip(c.steps.tolist(), map(str, c.values.tolist()), strict=True)))
        for c in parsed.columns
    }
    return columns, parsed.damages


def read(path: Path, text: str) -> tuple[Parsed | None, Parsed]:
    path.write_text(text)
    return read_fast(path, ",", HEADER), read_through(delimited.READER.session(path), path)


ROW = st.builds(
    lambda step, rank, loss, norm: f"{step},{rank},{loss!r},{norm!r}",
    st.integers(0, 99),
    st.integers(0, 2),
    st.floats(),
    st.floats(),
)
ODD = st.sampled_from(
    [
        *(
            "7,1,,3.5",
            "7,1,NaN,inf",
            "7,1,3.5",
            "7,1,3.5,2,9",
            "7,1,oops,2",
            "step,rank,loss,grad_norm",
            "-4,0,1,1",
            "",
        ),
        *(
            '7,0,"1,234",2',
            "7,0,1_0,2",
            "1e300,0,1,1",
            "7,,2,2",
            "7,x,2,2",
            "\0\0\0",
            "7,0, 2.5 ,1e400",
            "2.5,0,1,1",
            "",
        ),
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=3, max_size=20), odd=st.lists(ODD, max_size=1), tail=st.sampled_from(["\n", ""]))
def test_a_table_with_any_row_is_read_as_line_by_line(
    rows: list[str], odd: list[str], tail: str, tmp_path: Path
) -> None:
    middle = len(rows) // 2
    lines = [",".join(HEADER), *rows[:middle], *odd, *rows[middle:]]
    fast, exact = read(tmp_path / "a.csv", "\n".join(lines) + tail)
    if fast is not None:
        assert said(fast) == said(exact)


def test_a_whole_table_is_read_fast_with_the_digits_it_prints_and_a_torn_one_is_not(tmp_path: Path) -> None:
    rows = "".join(f"{step},{rank},{3 + step}.2500,nan\n" for step in range(50) for rank in range(4))
    fast, exact = read(tmp_path / "a.csv", ",".join(HEADER) + "\n" + rows)
    assert fast is not None
    assert said(fast) == said(exact)
    assert [c.digits for c in fast.columns if c.name == "loss"] == [6] * 4
    torn, _ = read(tmp_path / "a.csv", ",".join(HEADER) + "\n" + rows[:-2])
    assert torn is None


def test_the_reader_of_tables_uses_it_for_big_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "FAST_PATH_BYTES", 10)
    used: list[Parsed | None] = []
    monkeypatch.setattr(delimited, "read_fast", lambda *a: used.append(read_fast(*a)) or used[-1])
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n" + "".join(f"{step},3.5\n" for step in range(9)))
    assert delimited.READER.read(path).columns[0].steps.tolist() == list(range(9))
    assert used[0] is not None
