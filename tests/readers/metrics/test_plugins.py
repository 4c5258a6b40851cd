"""Does every metric format and line shape that there is read its own sample, and nobody else's?"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.readers.metrics.samples import FORMATS, LOSSES, SHAPES

from spike.readers.metrics import find_metric_files, read_signals
from spike.readers.metrics.find import head_of, recognise
from spike.readers.metrics.plugins import line_shapes, metric_readers


def test_every_format_and_every_line_shape_has_a_sample() -> None:
    assert {reader.format for reader in metric_readers()} == set(FORMATS)
    assert {shape.name for shape in line_shapes()} == set(SHAPES)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_is_recognised_by_its_content_and_keeps_its_nan(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path)
    reader = recognise(path)
    assert reader is not None
    assert reader.format == name
    loss = read_signals([path], base=tmp_path).get("loss")
    assert loss is not None
    assert loss.steps.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(loss.values, np.asarray(LOSSES))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_first_reader_that_knows_a_sample_is_its_own(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path)
    knows = [reader.format for reader in metric_readers() if reader.sniff(path, head_of(path))]
    assert knows[0] == name


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("share", [0.35, 0.6, 0.85, 0.97])
def test_a_file_cut_anywhere_is_read_up_to_the_cut_and_never_raises(name: str, share: float, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path)
    whole = read_signals([path], base=tmp_path).get("loss")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    reader = recognise(path)
    if reader is None:
        return
    parsed = reader.read(path)
    for column in parsed.columns:
        if column.name.endswith("loss") and whole is not None:
            assert set(column.steps.tolist()) <= set(whole.steps.tolist())


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_line_shape_gives_its_signals_under_the_one_name(name: str, tmp_path: Path) -> None:
    text, expected, step = SHAPES[name]
    (tmp_path / "train.log").write_text(text)
    signals = read_signals([tmp_path / "train.log"], base=tmp_path)
    for signal, values in expected.items():
        series = signals.get(signal)
        assert series is not None, signal
        assert series.values.tolist() == values
        assert series.steps.tolist() == [step]


def test_all_formats_in_one_directory_are_found_and_nothing_else(tmp_path: Path) -> None:
    made = {FORMATS[name](tmp_path) for name in FORMATS}
    (tmp_path / "corpus.jsonl").write_text('{"text": "a loss of words", "id": 1}\n' * 50)
    (tmp_path / "notes.txt").write_text("the loss went up\n")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    assert set(find_metric_files(tmp_path)) == made


def test_digits_are_those_that_the_log_printed(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1 loss 2.5000\nstep 2 loss 2.4000\n")
    loss = read_signals([tmp_path / "a.log"], base=tmp_path).get("loss")
    assert loss is not None
    assert loss.digits == 5
    assert math.isclose(loss.values[0], 2.5)
