"""What does a watched run look like in a few lines? A small course of each signal, redrawn in place on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spike.domain.gauges import Gauge
from spike.report.text import duration, visible

BLOCKS = "▁▂▃▄▅▆▇█"
LOST = "x"
"""A value that is not finite."""
LOG_RATIO = 20.0
"""A course whose largest value exceeds the smallest by more than this is drawn on a logarithmic scale."""
LABEL_WIDTH, NUMBER_WIDTH, RATIO_WIDTH = 10, 11, 9


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values, a character each, lowest to highest; not finite is an x."""
    shown = list(values)[-width:]
    finite = [v for v in shown if math.isfinite(v)]
    if not finite:
        return LOST * len(shown)
    logarithmic = min(finite) > 0 and max(finite) > LOG_RATIO * min(finite)
    heights = [(math.log(v) if logarithmic else v) if math.isfinite(v) else None for v in shown]
    known = [h for h in heights if h is not None]
    low, span = min(known), max(known) - min(known)
    top = len(BLOCKS) - 1
    return "".join(
        LOST if h is None else BLOCKS[round((h - low) / span * top)] if span > 0 else BLOCKS[top // 2] for h in heights
    )


def live_lines(head: str, gauges: Sequence[Gauge], width: int) -> list[str]:
    """`head`, and a line a signal: name, last value, ratio to usual, course. None is wider than `width`."""
    room = max(8, width - LABEL_WIDTH - NUMBER_WIDTH - RATIO_WIDTH - 2)
    lines = [head]
    for gauge in gauges:
        label = visible(gauge.name)[:LABEL_WIDTH].ljust(LABEL_WIDTH)
        number = _number(gauge.last).rjust(NUMBER_WIDTH)
        lines.append(f"{label}{number} {_ratio(gauge.ratio).rjust(RATIO_WIDTH)} {sparkline(gauge.course, room)}")
    return [line[: max(8, width - 1)] for line in lines]


def plain_line(gauges: Sequence[Gauge]) -> str:
    """The same in one line, for a log."""
    return ", ".join(f"{visible(g.name)} {_number(g.last)}{_in_brackets(g.ratio)}" for g in gauges)


def head_line(step: int | None, steps_per_s: float | None, num_new: int, state: str) -> str:
    """Step, pace and state."""
    if step is None:
        return "no row yet"
    pace = (
        ""
        if not steps_per_s
        else f"  {steps_per_s:.3g}/s"
        if steps_per_s >= 0.1
        else f"  {duration(1 / steps_per_s)} a row"
    )
    return f"step {step:,}{pace}  {num_new:,} new rows  {state}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}" if math.isfinite(value) else "∞" if value > 0 else "-∞"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"x{ratio:.2f}" if math.isfinite(ratio) and abs(ratio) < 1000 else f"x{_number(ratio)}"


def _in_brackets(ratio: float | None) -> str:
    return f" ({_ratio(ratio)})" if ratio is not None else ""
