"""Does the column store say what the line-exact reader says, about any file, or leave the file to it?"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spike.domain.errors import InputUnreadable
from spike.readers.metrics import fast_jsonl, json_layout, read_signals
from spike.readers.metrics.contract import Parsed
from spike.readers.metrics.fast_jsonl import read_fast
from spike.readers.metrics.formats import jsonl
from spike.readers.metrics.formats.jsonl import READER
from spike.readers.metrics.pieces import read_through

NUMBERS = st.one_of(st.floats(), st.integers(-5, 10**20), st.booleans())


@pytest.fixture(autouse=True)
def _every_range_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """These files are so small that one range is all of them."""
    monkeypatch.setattr(fast_jsonl, "MOST_SUSPICIOUS_SHARE", 1.0)


def said(parsed: Parsed) -> tuple[object, ...]:
    columns = {
        (c.name, c.rank, c.held_out): list(zip(c.steps.tolist(), map(str, c.values.tolist()), strict=True))
        for c in parsed.columns
    }
    return columns, parsed.damages, parsed.notes


def good(step: int, loss: float, rank: int = 0) -> bytes:
    return json.dumps({"step": step, "rank": rank, "loss": loss}).encode()


ROWS = st.builds(good, st.integers(0, 50), st.floats(), st.integers(0, 3))
ODD_LINES = (
    b'{"step": 2, "lo',
    b'\0\0\0\0{"step": 3, "loss": 2.0}',
    b'{"step": 4, "loss": "27,483"}',
    b'{"step": 4, "loss": "NaN", "rank": 1}',
    b'{"step": 5, "loss": {"a": 1}}',
    b'{"step": 5, "rank": 0, "loss": 1e400, "loss": 2}',
    b'{"step": -3, "loss": 2.0}',
    b'{"step": 1e300, "loss": 2.0}',
    b'{"step": 9223372036854775808, "loss": 2.0}',
    b'{"step": 2.5, "loss": 2.0}',
    b'{"step": 6, "loss": null}',
    b'{"step": 6, "loss": null, "note": "a: null, b"}',
    b'{"step": 6, "rank": null, "loss": 3}',
    b'{"loss": 2.0}',
    b'{"step": 7, "loss": 1.0, "surprise": 4}',
    b'{"step": 7, "split": "eval", "loss": 1.0}',
    b'{"step": 7, "loss": "diverged"}',
    b'{"step": 8, "train_loss": 3.0, "train_runtime": 1.0}',
    b'{"step": 8, "time": "10:20:30", "loss": 3.0}',
    b'{"step": 8, "epoch": 1, "loss": 3.0}',
    b'{"step": 1, "epoch": 2, "loss": 3.0}',
    b"[1, 2]",
    b"12:34",
    b"",
    b"nonsense",
    b'{"step": 6, "loss": 1}{"step": 7, "loss": 2}',
)
ODD = st.one_of(
    st.sampled_from(ODD_LINES),
    st.builds(
        lambda row: json.dumps(row).encode(),
        st.dictionaries(
            st.sampled_from(["step", "rank", "loss", "lr", "note"]), st.one_of(NUMBERS, st.text(max_size=5))
        ),
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROWS, min_size=6, max_size=40),
    odd=st.lists(st.tuples(st.integers(0, 40), ODD), max_size=3),
    tail=st.sampled_from([b"\n", b"", b'\n{"step": 99, "lo', b"\n\0\0\0\0"]),
)
def test_a_file_with_odd_lines_anywhere_is_read_as_line_by_line(
    rows: list[bytes], odd: list[tuple[int, bytes]], tail: bytes, tmp_path: Path
) -> None:
    lines = list(rows)
    for place, line in odd:
        lines.insert(min(place, len(lines)), line)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines) + tail)
    fast = read_fast(path)
    if fast is not None:
        assert said(fast) == said(read_through(READER.session(path), path))


def test_most_odd_lines_do_not_send_the_whole_file_to_the_line_exact_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    left = []
    for line in ODD_LINES:
        path.write_bytes(b"\n".join([*(good(step, 3.0) for step in range(300)), line] * 2) + b"\n")
        fast = read_fast(path)
        if fast is None:
            left.append(line)
        else:
            assert said(fast) == said(read_through(READER.session(path), path))
    assert len(ODD_LINES) == 26
    assert len(left) <= 5, left


def test_odd_lines_of_a_long_file_are_read_alone_and_named_with_line_and_byte(tmp_path: Path) -> None:
    lines = [good(step, 3.0 + step, rank) for step in range(24_000) for rank in range(4)]
    odd = {
        10: b'{"step": 2, "lo',
        36_000: b"\0" * 100,
        60_000: b'{"step": 15000, "rank": 0, "loss": "27,483"}',
        80_000: b'{"step": 20000, "rank": 0, "loss": NaN, "extra": 5}',
        95_999: b'{"step": 23999, "rank": 3, "loss": 1',
    }
    for row, line in odd.items():
        lines[row] = line
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    parsed = read_fast(path)
    assert parsed is not None
    assert [(d.line - 1, d.benign) for d in parsed.damages] == [(10, False), (36_000, False), (95_999, True)]
    raw = path.read_bytes()
    for damage in parsed.damages:
        assert raw[damage.byte_offset :].startswith(odd[damage.line - 1][:20])
    by = {(c.name, c.rank): c for c in parsed.columns}
    values = dict(zip(by["loss", 0].steps.tolist(), by["loss", 0].values.tolist(), strict=True))
    assert (values[14_999], values[15_000]) == (15_002.0, 27_483.0)
    assert math.isnan(values[20_000])
    assert by["extra", 0].steps.tolist() == [20_000]
    assert by["loss", 2].steps.size == 24_000 - 1
    assert parsed.num_rows == 96_000 - 3


def test_series_of_a_rank_are_views_into_one_array(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(good(step, 3.0, rank) + b"\n" for step in range(50) for rank in range(4)))
    parsed = read_fast(path)
    assert parsed is not None
    bases = {id(column.values.base) for column in parsed.columns if column.name == "loss"}
    assert len(parsed.columns) == 4
    assert len(bases) == 1
    np.testing.assert_array_equal(parsed.columns[3].steps, np.arange(50))


def test_a_file_with_more_values_than_memory_should_hold_is_refused_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_layout, "MOST_VALUES", 10_000)
    monkeypatch.setattr(jsonl, "FAST_PATH_BYTES", 0)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(good(step, 3.0) + b"\n" for step in range(30_000)))
    with pytest.raises(InputUnreadable, match=r"holds about [67].* values.*tail -n"):
        read_signals([path], base=tmp_path)
