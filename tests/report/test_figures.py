"""Are the figures the same every time, apart from each other, and faithful to the values?"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from spike.domain.signals import Series, Signals
from spike.report import signal_figure
from spike.report.figures import draw_figures
from spike.report.signal_figure import _thinned


def test_the_figures_are_the_same_when_drawn_again(facts: Any, drawn: Any) -> None:
    assert draw_figures(facts) == drawn


def test_two_figures_in_one_page_share_no_id(drawn: Any) -> None:
    ids = {name: re.findall(r'\bid="([^"]+)"', svg) for name, svg in drawn.items()}
    assert ids["signals"]
    for name, found in ids.items():
        assert len(found) == len(set(found))
        assert all(i.startswith(f"{name}-") for i in found)
        assert set(re.findall(r"url\(#([^)]+)\)", drawn[name])) <= set(found)


def test_onset_last_good_checkpoint_and_trial_windows_are_named(drawn: Any) -> None:
    svg = drawn["signals"]
    for label in ("onset 222", "last good checkpoint 200", "T001-replay and 6 more", "T005-transplant"):
        assert label in svg


def test_every_trial_and_every_outcome_is_named(facts: Any, drawn: Any) -> None:
    svg = drawn["trials"]
    for label in (*(t.spec.id for t in facts.trials), "reproduced", "absent", "different", "untestable"):
        assert label in svg


def test_a_value_that_is_not_finite_leaves_a_gap_and_a_cross(facts: Any, drawn: Any) -> None:
    assert "NaN or infinite" in drawn["signals"]
    finite = tuple(replace(s, values=np.nan_to_num(s.values, nan=1.0)) for s in facts.signals.series)
    assert "NaN or infinite" not in draw_figures(replace(facts, signals=Signals(finite)))["signals"]


def test_a_record_of_nothing_but_nan_is_drawn_and_does_not_fail(facts: Any) -> None:
    dead = tuple(replace(s, values=np.full(s.values.size, math.nan)) for s in facts.signals.series)
    assert "NaN or infinite" in draw_figures(replace(facts, signals=Signals(dead)))["signals"]


def test_no_figure_is_drawn_without_values(facts: Any) -> None:
    assert draw_figures(replace(facts, signals=None, trials=())) == {}
    elsewhere = tuple(replace(s, steps=s.steps + 10_000_000) for s in facts.signals.series)
    assert set(draw_figures(replace(facts, signals=Signals(elsewhere)))) == {"trials"}
    assert signal_figure.drawn_series(replace(facts, signals=None)) == ()


def test_a_peak_of_one_step_survives_in_a_long_record() -> None:
    steps = np.arange(1_000_000)
    values = np.full(steps.size, 2.0)
    values[777_777], values[123_456] = 9.0, 0.5
    thin_steps, thin_values = _thinned(steps, values)
    assert thin_steps.size <= 2 * signal_figure.MAX_POINTS + 2
    assert {(777_777, 9.0), (123_456, 0.5)} <= set(zip(thin_steps.tolist(), thin_values.tolist(), strict=True))


def test_a_hostile_name_is_text_in_the_figure(facts: Any) -> None:
    attack = 'T001-"><script>alert(1)</script>\x1b[31m'
    trial = replace(facts.trials[0], spec=replace(facts.trials[0].spec, id=attack))
    for svg in draw_figures(replace(facts, trials=(trial,))).values():
        assert "<script" not in svg
        assert "\x1b" not in svg


def test_a_signal_that_moved_first_gets_a_panel_of_its_own(facts: Any) -> None:
    update = Series("update_norm", facts.signals.series[0].steps, facts.signals.series[0].values)
    incident = replace(facts.case.incident, first_signal="update_norm")
    changed = replace(
        facts,
        case=replace(facts.case, incident=incident),
        signals=Signals((*facts.signals.series, update)),
    )
    assert [s.name for s in signal_figure.drawn_series(changed)] == ["loss", "grad_norm", "update_norm"]
