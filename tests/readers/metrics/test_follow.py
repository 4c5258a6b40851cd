"""Does a follower tell every row once, whatever is done to the file between two looks?"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.readers.metrics.samples import FORMATS

from spike.readers.metrics import Follower, open_follower
from spike.readers.metrics.contract import Followable, Parsed
from spike.readers.metrics.find import recognise
from spike.readers.metrics.follow import RESTARTED


def line(step: int, loss: float) -> bytes:
    return json.dumps({"step": step, "loss": loss}).encode() + b"\n"


def told(parsed: Parsed) -> list[tuple[int, float]]:
    return [
        pair for column in parsed.columns for pair in zip(column.steps.tolist(), column.values.tolist(), strict=True)
    ]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def restarts(parsed: Parsed) -> list[str]:
    return [sentence for pattern, sentence in parsed.notes if pattern == RESTARTED]


def started(path: Path) -> Follower:
    path.write_bytes(line(1, 3.0) + line(2, 2.5))
    follower = open_follower(path)
    assert told(follower.poll()) == [(1, 3.0), (2, 2.5)]
    return follower


def test_only_new_rows_are_told_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = started(path)
    assert told(follower.poll()) == []
    row = line(3, 2.25)
    append(path, row[:9])
    torn = follower.poll()
    assert (told(torn), torn.damages) == ([], ())
    append(path, row[9:] + line(4, float("nan")))
    rows = told(follower.poll())
    assert rows[0] == (3, 2.25)
    assert rows[1][0] == 4
    assert np.isnan(rows[1][1])


def test_a_file_that_appears_late_is_waited_for(tmp_path: Path) -> None:
    follower = open_follower(tmp_path / "a.jsonl")
    assert follower.poll().num_rows == 0
    (tmp_path / "a.jsonl").touch()
    assert follower.poll().num_rows == 0
    append(tmp_path / "a.jsonl", line(1, 3.0))
    assert told(follower.poll()) == [(1, 3.0)]


def test_a_damaged_middle_line_is_told_once_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = started(path)
    at = path.stat().st_size
    append(path, b'{"step": 3, "lo\n' + line(4, 2.0))
    parsed = follower.poll()
    assert [(d.line, d.byte_offset, d.benign) for d in parsed.damages] == [(3, at, False)]
    append(path, line(5, 2.0))
    assert follower.poll().damages == ()


def test_a_truncated_file_is_read_again_from_its_start_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = started(path)
    path.write_bytes(line(9, 1.0))
    parsed = follower.poll()
    assert told(parsed) == [(9, 1.0)]
    assert "truncated (25 bytes where 50 had been read)" in restarts(parsed)[0]


def test_a_truncated_file_that_has_outgrown_the_old_place_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = started(path)
    path.write_bytes(b"".join(line(step, 1.0) for step in range(7, 12)))
    parsed = follower.poll()
    assert [step for step, _ in told(parsed)] == [7, 8, 9, 10, 11]
    assert "was written anew" in restarts(parsed)[0]


def test_a_rotated_log_is_finished_before_the_new_one_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = started(path)
    append(path, line(3, 2.0))
    path.rename(tmp_path / "a.jsonl.1")
    path.write_bytes(line(4, 1.5))
    parsed = follower.poll()
    assert told(parsed) == [(3, 2.0), (4, 1.5)]
    assert "replaced" in restarts(parsed)[0]


def test_a_file_that_vanishes_for_a_while_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = started(path)
    path.rename(tmp_path / "away")
    assert follower.poll().num_rows == 0
    (tmp_path / "away").rename(path)
    append(path, line(3, 2.0))
    parsed = follower.poll()
    assert told(parsed) == [(3, 2.0)]
    assert parsed.notes == ()


def test_a_file_that_cannot_be_read_just_now_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = started(path)
    path.rename(tmp_path / "away")
    path.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        follower.poll()
    path.rmdir()
    os.rename(tmp_path / "away", path)
    append(path, line(3, 2.0))
    assert told(follower.poll()) == [(3, 2.0)]


def test_the_names_of_columns_are_those_of_a_whole_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1, "train_loss": 3.0}\n')
    follower = open_follower(path)
    follower.poll()
    assert follower.names()["train_loss"] == "loss"
    append(path, b'{"step": 2, "train_loss": 3.0, "loss": 2.0}\n')
    follower.poll()
    assert follower.names() == {"train_loss": "train_loss", "loss": "loss"}


@pytest.mark.parametrize("name", sorted(FORMATS))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_following_a_file_cut_anywhere_tells_what_one_read_tells(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = FORMATS[name](tmp_path_factory.mktemp("run"))
    raw, reader = path.read_bytes(), recognise(path)
    assert reader is not None
    if not isinstance(reader, Followable):
        return  # rewritten whole, never longer by a piece
    whole = {c.name: list(zip(c.steps.tolist(), c.values.tolist(), strict=True)) for c in reader.read(path).columns}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    path.write_bytes(b"")
    follower, found = open_follower(path), dict[str, list[tuple[int, float]]]()
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        append(path, raw[start:end])
        for column in follower.poll().columns:
            found.setdefault(column.name, []).extend(told(Parsed("", (column,), 0)))
    assert str(found) == str(whole)
