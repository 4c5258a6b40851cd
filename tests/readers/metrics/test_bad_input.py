"""What becomes of files that are no logs, or broken ones? Nothing crashes, and nothing is passed over in silence."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spike.domain.errors import InputUnreadable
from spike.domain.signals import Signals
from spike.readers.metrics import line_session, open_follower, read_signals


def good(path: Path, *steps: int) -> Path:
    path.write_text("".join(json.dumps({"step": step, "loss": 3.0}) + "\n" for step in steps or (1, 2, 3)))
    return path


def reasons(signals: Signals) -> dict[str, str]:
    return {damage.source: damage.reason for damage in signals.damages}


def test_an_unknown_format_says_what_was_looked_for_and_shows_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.log"
    path.write_text("\nall is well on the cluster\nnothing else\n")
    with pytest.raises(InputUnreadable) as refused:
        read_signals([path], base=tmp_path)
    assert "all is well on the cluster" in refused.value.message
    assert "tensorboard" in refused.value.message
    assert "console" in refused.value.message


def test_binary_junk_is_called_binary_and_good_files_beside_it_are_read(tmp_path: Path) -> None:
    junk = tmp_path / "junk.log"
    junk.write_bytes(random.Random(0).randbytes(200_000))
    zeros = tmp_path / "zeros.log"
    zeros.write_bytes(b"\0" * 4096)
    signals = read_signals([good(tmp_path / "a.jsonl"), junk, zeros], base=tmp_path)
    assert [series.source for series in signals.series] == ["a.jsonl"]
    assert "(binary)" in reasons(signals)["zeros.log"]
    assert "not a metric format" in reasons(signals)["junk.log"]


def test_what_cannot_be_opened_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    pipe, missing, link, folder = (tmp_path / name for name in ("pipe", "missing.log", "link.log", "folder.jsonl"))
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "nowhere")
    folder.mkdir()
    signals = read_signals([good(tmp_path / "a.jsonl"), pipe, missing, link], base=tmp_path)
    told = reasons(signals)
    assert told["pipe"] == "not a regular file"
    assert told["missing.log"] == "there is no such file"
    assert told["link.log"] == "a link to a file that does not exist"
    assert len(told) == 3
    assert [s.source for s in read_signals([tmp_path], base=tmp_path).series] == ["a.jsonl"]


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = good(tmp_path / "secret.jsonl")
    opened = Path.open

    def refuse(self: Path, *arguments: object, **options: object) -> object:
        if self == secret:  # root may read everything, so that the mode of the file would prove nothing
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    signals = read_signals([good(tmp_path / "a.jsonl"), secret], base=tmp_path)
    assert reasons(signals) == {"secret.jsonl": "cannot be read: Permission denied"}


@pytest.mark.parametrize(
    "step", ["-1", "-9223372036854775808", "9223372036854775808", "1e300", "2.5", '"seven"', "NaN", "true"]
)
def test_a_row_whose_step_is_no_step_is_passed_over_and_named(step: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = ['{"step": 1, "loss": 3.0}', f'{{"step": {step}, "loss": 9.0}}', '{"step": 3, "loss": 2.0}']
    path.write_text("\n".join(rows) + "\n")
    signals = read_signals([path], base=tmp_path)
    loss = signals.get("loss")
    assert loss is not None
    if step == "true":
        assert loss.values.tolist() == [9.0, 2.0]  # JSON of a language without booleans: it counts as 1, logged twice
        return
    assert loss.steps.tolist() == [1, 3]
    assert [(d.line, d.byte_offset, d.benign) for d in signals.damages] == [(2, len(rows[0]) + 1, False)]
    assert "whose step is" in signals.damages[0].reason


@pytest.mark.parametrize("step", ["-1", "9223372036854775808", "1e300", "2.5"])
def test_a_csv_row_whose_step_is_no_step_is_passed_over_and_named(step: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"step,loss\n1,3.0\n{step},9.0\n3,2.0\n")
    signals = read_signals([path], base=tmp_path)
    loss = signals.get("loss")
    assert loss is not None
    assert loss.steps.tolist() == [1, 3]
    assert [(d.line, d.byte_offset) for d in signals.damages] == [(3, 16)]


def test_a_huge_step_in_a_console_log_does_not_stop_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"step 1 loss 3.0\nstep {2**63} loss 9.0\nstep {10**40} loss 9.0\nstep 3 loss 2.0\n")
    signals = read_signals([path], base=tmp_path)
    loss = signals.get("loss")
    assert loss is not None
    assert loss.steps.tolist() == [1, 3]
    assert [d.line for d in signals.damages] == [2, 3]


def test_a_column_that_becomes_text_midway_keeps_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    values = ["3.0", '"diverged"', "null", '"2.5"', "[1]", '{"mean": 2.0}', "NaN"]
    path.write_text("".join(f'{{"step": {s}, "loss": {v}, "lr": 0.1}}\n' for s, v in enumerate(values)))
    signals = read_signals([path], base=tmp_path)
    loss, rate = signals.get("loss"), signals.get("lr")
    assert loss is not None
    assert rate is not None
    np.testing.assert_array_equal(loss.values, [3.0, 2.5, np.nan])
    assert loss.steps.tolist() == [0, 3, 6]
    assert rate.steps.size == 7


def test_a_clock_that_jumps_back_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    times = ["2026-03-29 02:59:59", "2026-03-29 02:00:00", "1970-01-01 00:00:00", "2100-01-01 00:00:00"]
    path.write_text("".join(f"{at} INFO step: {s} loss: {3.0 - s / 10}\n" for s, at in enumerate(times, 1)))
    signals = read_signals([path], base=tmp_path)
    loss = signals.get("loss")
    assert loss is not None
    assert loss.steps.tolist() == [1, 2, 3, 4]
    assert signals.rewinds == ()
    assert signals.damages == ()


def test_a_line_over_the_limit_is_passed_over_and_named_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_session, "MAX_LINE_BYTES", 1 << 20)
    first, last = b'{"step": 1, "loss": 3.0}\n', b'{"step": 2, "loss": 2.0}\n'
    path = tmp_path / "a.jsonl"
    path.write_bytes(first + b"x" * (6 << 20) + b"\n" + last)
    signals = read_signals([path], base=tmp_path)
    loss = signals.get("loss")
    assert loss is not None
    assert loss.steps.tolist() == [1, 2]
    assert [(d.line, d.byte_offset, d.benign) for d in signals.damages] == [(2, len(first), False)]
    assert f"a line of {6 << 20} bytes" in signals.damages[0].reason
    follower = open_follower(path)
    assert [d.byte_offset for d in follower.poll().damages] == [len(first)]


_MEASURED = """
import resource, sys
from pathlib import Path
import duckdb
from spike.readers.metrics import read_signals
from spike.readers.metrics.plugins import line_shapes, metric_readers
metric_readers(), line_shapes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
signals = read_signals([Path(sys.argv[1])], base=Path("/"))
print(signals.get("loss").steps.tolist(), [(d.line, d.byte_offset) for d in signals.damages])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("name", "row"), [("a.jsonl", b'{"step": %d, "loss": 3.0}\n'), ("a.log", b"step %d loss 3.0\n")]
)
def test_a_line_of_three_hundred_megabytes_is_passed_over_in_two_hundred_of_memory(
    name: str, row: bytes, tmp_path: Path
) -> None:
    path = tmp_path / name
    with path.open("wb") as stream:
        stream.write(row % 0 * 99 + row % 1)
        stream.seek(300 << 20, os.SEEK_CUR)  # a hole: it takes no room on the disk
        stream.write(b"\n" + row % 2)
    told = subprocess.run([sys.executable, "-c", _MEASURED, path], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr[-2000:]
    answer, memory_mb = told.stdout.splitlines()
    assert answer == f"[0, 1, 2] [(101, {100 * len(row % 1)})]"
    assert int(memory_mb) < 200


def test_a_pointer_and_an_unlisted_folder_inside_a_run_directory_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    told = reasons(read_signals([tmp_path], base=tmp_path))
    assert "git lfs pull" in told["b.jsonl"]
    assert told["closed"] == "cannot be read: Permission denied"
