"""What is read from torchtitan's structured log of one rank?"""

from __future__ import annotations

from pathlib import Path

from tests.readers.metrics.samples import torchtitan_events, torchtitan_record

from spike.readers.metrics import read_signals


def test_scalars_and_phase_times_of_each_rank_are_signals_and_what_is_in_no_step_is_said(tmp_path: Path) -> None:
    torchtitan_events(tmp_path)
    second = tmp_path / "training.global_rank_1.20260101-000000-DEF456.jsonl"
    second.write_text(torchtitan_record("metric_value", rank=1, step=1, value=7.5, event_name="train.loss"))
    signals = read_signals([tmp_path], base=tmp_path)
    by = {(series.name, series.rank): series for series in signals.series}
    assert set(by) == {("loss", 0), ("loss", 1), ("fwd_bwd (ms)", 0)}
    assert by["loss", 1].values.tolist() == [7.5]
    assert by["fwd_bwd (ms)", 0].values.tolist() == [12.5] * 5
    assert [pattern for pattern, _ in signals.notes] == ["outside-steps"]


def test_a_record_whose_step_is_none_is_named(tmp_path: Path) -> None:
    path = torchtitan_events(tmp_path)
    with path.open("a") as stream:
        stream.write(torchtitan_record("metric_value", step=-1, value=7.5, event_name="train.loss"))
    signals = read_signals([path], base=tmp_path)
    assert [(damage.line, damage.benign) for damage in signals.damages] == [(18, False)]
