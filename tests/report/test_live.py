"""Is the live view of a run narrow enough, and does it show what a number cannot hold?"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spike.domain.gauges import Gauge, gauges
from spike.domain.signals import Series, Signals
from spike.report.live import head_line, live_lines, plain_line, sparkline


def test_a_spike_stands_out_and_a_value_that_is_not_finite_is_a_mark() -> None:
    drawn = sparkline([1.0, 1.0, 1.1, 9.0, math.nan, 1.0, math.inf], 7)
    assert drawn == "▁▁▁█x▁x"
    assert sparkline([2.0, 2.0], 8) == "▄▄"
    assert sparkline([math.nan], 8) == "x"


def test_a_course_over_many_powers_of_ten_is_logarithmic() -> None:
    assert sparkline([1.0, 10.0, 100.0, 1000.0], 4) == "▁▃▆█"


@given(st.lists(st.floats(), min_size=1, max_size=80), st.integers(20, 200))
@settings(max_examples=80, deadline=None)
def test_no_line_is_wider_than_the_terminal(values: list[float], width: int) -> None:
    gauge = Gauge("grad_norm of a long name\x1b[2J", values[-1], 123.0, tuple(values))
    lines = live_lines(head_line(10**9, 3.2, 10**6, "no new incident"), [gauge], width)
    assert max(len(line) for line in lines) <= max(8, width - 1)
    assert not any("\x1b" in line for line in lines)


def test_the_last_value_stands_beside_what_was_usual() -> None:
    values = np.full(40, 2.0)
    values[-1] = 5.0
    (gauge,) = gauges(Signals((Series("loss", np.arange(40), values),)))
    assert (gauge.last, gauge.ratio) == (5.0, 2.5)
    assert plain_line([gauge]) == "loss 5 (x2.50)"
    (lost,) = gauges(Signals((Series("loss", np.arange(40), np.full(40, np.nan)),)))
    assert lost.ratio is None
    assert plain_line([lost]) == "loss NaN"
