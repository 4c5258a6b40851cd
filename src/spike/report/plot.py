"""What did the signals look like around a step? A chart of characters for a terminal, and one for a browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spike.domain.incident import Detection, Incident
from spike.domain.signals import GRAD_NORM, LOSS, Series, Signals
from spike.report.text import number

WIDTH = 68
"""Columns of the plot itself; with its scale it fits a terminal of 80."""

HEIGHT = 8

BEFORE, AFTER = 28, 20
"""Rows of the record shown before the onset, and after the last anomalous one (or the peak)."""

POINT, FAR, LOST = "·", "o", "x"


def terminal_chart(signals: Signals, incident: Incident, *, width: int = WIDTH) -> str:
    """Loss and gradient norm around the incident, logarithmic where positive; a NaN is an `x` at the top."""
    charts: list[str] = []
    for name in dict.fromkeys((LOSS, GRAD_NORM, incident.first_signal)):
        series = signals.get(name, incident.rank) or signals.get(name)
        if series is None or series.steps.size < 2:
            continue
        window = _window(series, incident, width)
        if window is not None:
            charts.append(_one_chart(series, window, incident))
    return "\n\n".join(charts)


def _window(series: Series, incident: Incident, width: int) -> slice | None:
    """Rows to show, at most one a column."""
    onset = int(np.searchsorted(series.steps, incident.onset_step))
    signature = incident.signature(series.name)
    last = signature.last_step if signature is not None else incident.peak_step
    end = int(np.searchsorted(series.steps, min(last, incident.peak_step + 4 * AFTER), side="right")) + AFTER
    first = max(0, onset - BEFORE)
    end = min(series.steps.size, max(end, onset + 1), first + width)
    return slice(first, end) if end - first >= 2 else None


def _one_chart(series: Series, window: slice, incident: Incident) -> str:
    steps, values = series.steps[window], series.values[window]
    finite = values[np.isfinite(values)]
    logarithmic = bool(finite.size) and bool(np.all(finite > 0))
    heights = [_height(v, logarithmic) for v in values.tolist()]
    known = [h for h in heights if h is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    grid = [[" "] * len(heights) for _ in range(HEIGHT)]
    for column, height in enumerate(heights):
        if height is None:
            grid[0][column] = LOST
            continue
        line = HEIGHT - 1 - round((height - low) / (high - low) * (HEIGHT - 1))
        grid[line][column] = FAR if _is_far(series.name, float(values[column]), int(steps[column]), incident) else POINT
    at = int(np.searchsorted(steps, incident.onset_step))
    return "\n".join([_title(series, logarithmic), *_rows(grid, low, high, logarithmic), *_axis(steps.tolist(), at)])


def _height(value: float, logarithmic: bool) -> float | None:
    if not math.isfinite(value):
        return None
    return math.log(value) if logarithmic else value


def _is_far(name: str, value: float, step: int, incident: Incident) -> bool:
    signature = incident.signature(name)
    if signature is None or step < signature.onset_step or step > signature.last_step:
        return False
    if signature.transform == "log":
        return value > 0 and signature.direction * (math.log(value) - signature.centre) > signature.threshold
    return signature.direction * (value - signature.centre) > signature.threshold


def _title(series: Series, logarithmic: bool) -> str:
    scale = "logarithmic" if logarithmic else "linear"
    lost = f", {LOST} = not finite" if not np.isfinite(series.values).all() else ""
    return f"{series.column or series.name} ({scale}{lost})"


def _rows(grid: list[list[str]], low: float, high: float, logarithmic: bool) -> list[str]:
    rows: list[str] = []
    for line, cells in enumerate(grid):
        value = high - (high - low) * line / (HEIGHT - 1)
        label = number(math.exp(value) if logarithmic else value) if line in (0, HEIGHT // 2, HEIGHT - 1) else ""
        rows.append(f"{label:>10} │{''.join(cells).rstrip()}")
    return rows


def _axis(steps: Sequence[int], at: int) -> list[str]:
    line = ["─"] * len(steps)
    line[min(at, len(line) - 1)] = "┴"
    first, last, onset = f"{steps[0]}", f"{steps[-1]}", f"onset {steps[min(at, len(steps) - 1)]}"
    place = max(len(first) + 1, min(at, max(len(steps) - len(onset) - len(last) - 1, len(first) + 1)))
    text = first.ljust(place) + onset
    text = text.ljust(max(len(steps) - len(last), len(text) + 1)) + last
    return [f"{'':>10} └{''.join(line)}", f"{'':>12}{text}"]


MOST_POINTS = 4000
"""Rows drawn in a figure; of a longer record each bucket keeps its lowest and highest row."""


def figure(signals: Signals, detection: Detection) -> Any:
    """An altair chart of loss and gradient norm over the whole record, with every onset marked."""
    import altair as alt

    onsets = [{"step": i.onset_step, "kind": i.kind.value} for i in detection.incidents]
    panels = []
    for name in (LOSS, GRAD_NORM):
        series = signals.get(name)
        if series is None:
            continue
        rows, lost = _points(series)
        positive = all(row["value"] > 0 for row in rows)
        scale = alt.Scale(type="log" if positive else "linear", zero=False, nice=False)
        x = alt.X("step:Q", title="step", scale=alt.Scale(zero=False, nice=False))
        line = (
            alt.Chart(alt.Data(values=rows))
            .mark_line(strokeWidth=1.2, color="#3b6ea5")
            .encode(x=x, y=alt.Y("value:Q", title=series.column or name, scale=scale), tooltip=["step:Q", "value:Q"])
        )
        layers = [line]
        if lost:
            nan = alt.Chart(alt.Data(values=lost)).mark_tick(color="#b00020", size=14, thickness=2)
            layers.append(nan.encode(x=x, y=alt.value(6), tooltip=["step:Q", "value:N"]))
        if onsets:
            rule = alt.Chart(alt.Data(values=onsets)).mark_rule(color="#b00020", strokeDash=[4, 3])
            layers.append(rule.encode(x=x, tooltip=["step:Q", "kind:N"]))
        panels.append(alt.layer(*layers).properties(width=760, height=190))
    return alt.vconcat(*panels).resolve_scale(x="shared")


def _points(series: Series) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(finite rows, rows that are not finite), thinned without losing a peak."""
    finite = np.isfinite(series.values)
    lost = [
        {"step": int(s), "value": str(v)}
        for s, v in zip(series.steps[~finite][:MOST_POINTS], series.values[~finite][:MOST_POINTS], strict=True)
    ]
    steps, values = series.steps[finite], series.values[finite]
    if steps.size > MOST_POINTS:
        kept: list[int] = []
        for bucket in np.array_split(np.arange(steps.size), MOST_POINTS // 2):
            kept += sorted({int(bucket[values[bucket].argmin()]), int(bucket[values[bucket].argmax()])})
        steps, values = steps[kept], values[kept]
    return [{"step": int(s), "value": float(v)} for s, v in zip(steps, values, strict=True)], lost
