"""Can the incident be seen on a terminal, NaN included?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spike.domain.detect import detect
from spike.domain.incident import Detection
from spike.domain.signals import Series, Signals
from spike.report.plot import FAR, HEIGHT, LOST, figure, terminal_chart


def record() -> Signals:
    rng = np.random.default_rng(0)
    steps = np.arange(1, 301)
    loss = (2.0 + 4.0 * (1.0 + steps / 20.0) ** -0.5) * np.exp(0.02 * rng.standard_normal(300))
    norm = np.exp(0.15 * rng.standard_normal(300))
    norm[219:223] *= [5.0, 20.0, 90.0, 40.0]
    loss[221:223] *= 2.0
    loss[223:226] = np.nan
    return Signals((Series("loss", steps, loss, column="train_loss"), Series("grad_norm", steps, norm, column="gnorm")))


def test_the_chart_shows_both_signals_the_onset_and_every_nan() -> None:
    signals = record()
    (incident,) = detect(signals).incidents
    chart = terminal_chart(signals, incident)
    loss, norm = chart.split("\n\n")
    assert loss.splitlines()[0] == "train_loss (logarithmic, o = outside its usual noise, x = not finite)"
    assert norm.splitlines()[0] == "gnorm (logarithmic, o = outside its usual noise)"
    body = loss.splitlines()[1 : 1 + HEIGHT]
    assert body[0].split("│")[1].count(LOST) == 3
    assert sum(row.count(FAR) for row in body) == 2
    assert all(f"onset {incident.onset_step}" in part for part in (loss, norm))
    assert all(len(line) <= 80 for line in chart.splitlines())


def test_the_figure_marks_every_onset_and_keeps_the_nan_apart() -> None:
    signals = record()
    spec = figure(signals, detect(signals)).to_dict()
    layers = spec["vconcat"][0]["layer"]
    assert [layer["mark"]["type"] for layer in layers] == ["rule", "line", "point", "point"]
    rule, line, far, lost = (layer["data"]["values"] for layer in layers)
    assert [row["step"] for row in rule] == [220]
    assert [row["step"] for row in line if row["value"] is None] == [224, 225, 226]
    assert [row["step"] for row in far] == [222, 223]
    assert [row["step"] for row in lost] == [224, 225, 226]


def test_hundreds_of_onsets_are_marks_at_the_foot_and_the_worst_are_lines() -> None:
    signals = record()
    (incident,) = detect(signals).incidents
    many = tuple(replace(incident, onset_step=step) for step in range(1, 300))
    spec = figure(signals, Detection(many), many[5:8]).to_dict()
    rule, foot, *_ = (layer["data"]["values"] for layer in spec["vconcat"][0]["layer"])
    assert [row["step"] for row in rule] == [6, 7, 8]
    assert len(foot) == 299


def test_a_record_without_loss_and_norm_has_no_figure() -> None:
    assert figure(Signals((Series("lr", np.arange(3), np.ones(3)),)), Detection()) is None
