"""Can the incident be seen on a terminal, NaN included?"""

from __future__ import annotations

import numpy as np

from spike.domain.detect import detect
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
    assert loss.splitlines()[0] == "train_loss (logarithmic, x = not finite)"
    assert norm.splitlines()[0] == "gnorm (logarithmic)"
    body = loss.splitlines()[1 : 1 + HEIGHT]
    assert body[0].split("│")[1].count(LOST) == 3
    assert sum(row.count(FAR) for row in body) == 2
    assert all(f"onset {incident.onset_step}" in part for part in (loss, norm))
    assert all(len(line) <= 80 for line in chart.splitlines())


def test_the_figure_marks_every_onset_and_keeps_the_nan_apart() -> None:
    signals = record()
    spec = figure(signals, detect(signals)).to_dict()
    layers = spec["vconcat"][0]["layer"]
    assert [layer["mark"]["type"] for layer in layers] == ["line", "tick", "rule"]
    assert len(layers[1]["data"]["values"]) == 3
    assert layers[2]["data"]["values"][0]["step"] == 220
