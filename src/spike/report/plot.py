"""What did the signals look like around a step? A chart of characters for a terminal, and one for a browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spike.domain.incident import Detection, Incident
from spike.domain.signals import GRAD_NORM, LOSS, Series, Signals
from spike.report.figures import ONSET, RECORD
from spike.report.text import name, number

WIDTH = 68
"""Columns of the plot itself; with its scale it fits a terminal of 80."""

HEIGHT = 8

BEFORE, AFTER = 28, 20
"""Rows of the record shown before the onset, and after the last anomalous one (or the peak)."""

POINT, FAR, LOST = "·", "o", "x"


def terminal_chart(signals: Signals, incident: Incident, *, width: int = WIDTH) -> str:
    """Loss and gradient norm around the incident, logarithmic where positive; a NaN is an `x` at the top."""
    charts: list[str] = []
    for signal in dict.fromkeys((LOSS, GRAD_NORM, incident.first_signal)):
        series = signals.get(signal, incident.rank) or signals.get(signal)
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
    has_far = any(FAR in cells for cells in grid)
    return "\n".join(
        [_title(series, logarithmic, has_far), *_rows(grid, low, high, logarithmic), *_axis(steps.tolist(), at)]
    )


def _height(value: float, logarithmic: bool) -> float | None:
    if not math.isfinite(value):
        return None
    return math.log(value) if logarithmic else value


def _is_far(signal: str, value: float, step: int, incident: Incident) -> bool:
    signature = incident.signature(signal)
    if signature is None or step < signature.onset_step or step > signature.last_step:
        return False
    if signature.transform == "log":
        return value > 0 and signature.direction * (math.log(value) - signature.centre) > signature.threshold
    return signature.direction * (value - signature.centre) > signature.threshold


def _title(series: Series, logarithmic: bool, has_far: bool) -> str:
    scale = "logarithmic" if logarithmic else "linear"
    far = f", {FAR} = outside its usual noise" if has_far else ""
    lost = f", {LOST} = not finite" if not np.isfinite(series.values).all() else ""
    return f"{name(series.column or series.name)[:24]} ({scale}{far}{lost})"


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
MOST_RULES = 12
"""Onsets with a line through the panels; all others have a mark along the foot."""
MOST_MARKS = 500
MARGIN = 0.05
"""Room above the highest and below the lowest value, as a share of the height."""


def figure(signals: Signals, detection: Detection, worst: Sequence[Incident] = ()) -> Any:
    """An altair chart of loss and gradient norm over the whole record, with every onset marked.

    `worst` are the incidents whose onset is a line; by default the first ones. None where there is nothing to draw.
    """
    import altair as alt

    ruled = list(worst or detection.incidents)[:MOST_RULES]
    names = dict.fromkeys((LOSS, GRAD_NORM, *(incident.first_signal for incident in ruled[:1])))
    drawn = [s for s in (signals.get(name) for name in names) if s is not None and s.steps.size]
    if not drawn:
        return None
    first, last = (f(int(s.steps[at]) for s in drawn) for f, at in ((min, 0), (max, -1)))
    axis = alt.Axis(format=",d", tickMinStep=1, tickCount=10, labelFlush=False, labelOverlap=True)
    panels = []
    for place, series in enumerate(drawn):
        is_lowest = place == len(drawn) - 1
        x = alt.X(
            "step:Q",
            title="step, as logged" if is_lowest else None,
            axis=axis,
            scale=alt.Scale(domain=[first, max(last, first + 1)], zero=False, nice=False),
        )
        panels.append(_panel(series, detection, ruled, x).properties(width=760, height=190, title=_heading(series)))
    return alt.vconcat(*panels, spacing=14).resolve_scale(x="shared")


def _panel(series: Series, detection: Detection, ruled: Sequence[Incident], x: Any) -> Any:
    """Onsets behind, the record before them, what is anomalous and what is not finite on top."""
    import altair as alt

    rows, lost = _points(series)
    values = [row["value"] for row in rows if row["value"] is not None]
    y = alt.Y("value:Q", title=None, scale=_value_scale(values), axis=alt.Axis(tickCount=5, format="~g"))
    layers = []
    if ruled:
        onsets = [{"step": i.onset_step, "kind": i.kind.value} for i in ruled]
        rule = alt.Chart(alt.Data(values=onsets)).mark_rule(color=ONSET, opacity=0.35, strokeDash=[4, 3])
        layers.append(rule.encode(x=x, tooltip=["step:Q", "kind:N"]))
    if len(detection.incidents) > len(ruled):
        every = [{"step": i.onset_step, "kind": i.kind.value} for i in detection.incidents[:MOST_MARKS]]
        foot = alt.Chart(alt.Data(values=every)).mark_tick(color=ONSET, size=8, thickness=1)
        layers.append(foot.encode(x=x, y=alt.value(186), tooltip=["step:Q", "kind:N"]))
    line = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1.2, color=RECORD)
    layers.append(line.encode(x=x, y=y, tooltip=["step:Q", "value:Q"]))
    far = [row for row in rows if row["value"] is not None and _any_far(series.name, row, ruled)]
    if far:
        points = alt.Chart(alt.Data(values=far)).mark_point(color=ONSET, filled=True, size=22, opacity=1)
        layers.append(points.encode(x=x, y=y, tooltip=["step:Q", "value:Q"]))
    if lost:
        cross = alt.Chart(alt.Data(values=lost)).mark_point(
            color=ONSET, shape="cross", angle=45, size=42, filled=True, opacity=1
        )
        layers.append(cross.encode(x=x, y=alt.value(7), tooltip=["step:Q", "value:N"]))
    return alt.layer(*layers)


def _heading(series: Series) -> str:
    lost = int((~np.isfinite(series.values)).sum())
    marks = f" (crosses: {lost:,} rows that are NaN or infinite)" if lost else ""
    return name(f"{series.column or series.name}{marks}")


def _value_scale(values: Sequence[float]) -> Any:
    """Logarithmic where positive throughout, with a margin so that no peak touches the border."""
    import altair as alt

    if not values:
        return alt.Scale(domain=[0, 1])
    low, high = min(values), max(values)
    if low > 0:
        room = max((high / low) ** MARGIN, 1.001)
        return alt.Scale(type="log", domain=[low / room, high * room], nice=False)
    room = max((high - low) * MARGIN, 1e-12)
    return alt.Scale(domain=[low - room, high + room], nice=False)


def _any_far(signal: str, row: dict[str, Any], incidents: Sequence[Incident]) -> bool:
    return any(_is_far(signal, row["value"], row["step"], incident) for incident in incidents)


def _points(series: Series) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(rows to draw, None where not finite; rows that are not finite), thinned without losing a peak."""
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
    rows: list[dict[str, Any]] = [{"step": int(s), "value": float(v)} for s, v in zip(steps, values, strict=True)]
    # A gap, not a bridge, where the value was not finite.
    rows += [{"step": row["step"], "value": None} for row in lost]
    return sorted(rows, key=lambda row: row["step"]), lost
