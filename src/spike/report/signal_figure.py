"""What did the signals do around the onset, and which steps did the trials replay?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spike.domain.incident import Incident, Signature
from spike.domain.signals import GRAD_NORM, LOSS, Series
from spike.report.facts import PostmortemFacts
from spike.report.figures import BAND, GOOD, INK, ONSET, RECORD, SOFT, WIDTH
from spike.report.phrases import limit_value, signal_words, usual_value
from spike.report.text import name

MAX_POINTS = 600
"""Buckets across the window; each keeps its lowest and highest value, so no peak is lost in a long record."""
LOG_RATIO = 20.0
"""A panel whose largest value exceeds the smallest by more than this is drawn on a logarithmic scale."""
PANEL_HEIGHT = 170
ROW_HEIGHT = 22


@dataclass(frozen=True, slots=True)
class Window:
    """Logged steps that the figure shows."""

    first: int
    last: int


def chart(facts: PostmortemFacts) -> Any | None:
    """One panel a signal, the trials' windows below; None where nothing was logged around the onset."""
    import altair as alt

    incident = facts.case.incident
    if facts.signals is None or incident is None:
        return None
    window = _window(facts, incident)
    wanted = dict.fromkeys((LOSS, GRAD_NORM, incident.first_signal))
    series = [s for s in (facts.signals.get(w) for w in wanted) if s is not None and _inside(s, window).any()]
    if not series:
        return None
    panels = [_panel(s, incident, facts, window, first=i == 0) for i, s in enumerate(series)]
    bars = _trial_windows(facts, window)
    rows = [*panels, bars] if bars is not None else panels
    return alt.vconcat(*rows, spacing=14).resolve_scale(x="shared")


def _inside(series: Series, window: Window) -> Any:
    return (series.steps >= window.first) & (series.steps <= window.last)


def _window(facts: PostmortemFacts, incident: Incident) -> Window:
    """From a little before the last good checkpoint until the incident has shown its shape."""
    ends = [s.last_step for s in incident.signatures] or [incident.peak_step]
    offset = facts.licence.step_offset if facts.licence is not None else 0
    tried = [t.spec.stop_after + offset for t in facts.trials]
    start = incident.onset_step - 60
    if facts.case.last_good is not None:
        start = min(start, facts.case.last_good.step)
    before = incident.onset_step - start
    # A lasting incident ends with the record; its first stretch, as long as what came before it, is enough.
    last = max(min(max(ends), incident.onset_step + 2 * before), incident.peak_step, *tried, incident.onset_step + 10)
    margin = max(3, (last - start) // 12)
    return Window(max(0, start - margin), last + margin)


def _panel(series: Series, incident: Incident, facts: PostmortemFacts, window: Window, *, first: bool) -> Any:
    import altair as alt

    shown = _inside(series, window)
    steps, values = series.steps[shown], series.values[shown]
    finite = np.isfinite(values)
    signature = incident.signature(series.name)
    scale = _scale(values[finite])
    x = alt.X("step:Q", scale=alt.Scale(domain=[window.first, window.last], nice=False), axis=_step_axis(False))
    y = alt.Y("value:Q", scale=scale, title=None, axis=alt.Axis(tickCount=4, format="~g"))
    layers: list[Any] = []
    if signature is not None:
        layers.append(_band(signature, window))
    layers += _marks(incident, facts, labelled=first)
    thin_steps, thin_values = _thinned(steps[finite], values[finite])
    rows = [{"step": int(s), "value": float(v)} for s, v in zip(thin_steps, thin_values, strict=True)]
    line = alt.Chart(alt.Data(values=rows)).mark_line(color=RECORD, strokeWidth=1.6, clip=True, aria=False)
    layers.append(line.encode(x=x, y=y))
    if signature is not None:
        layers += _anomalies(signature, thin_steps, thin_values, x, y)
    layers += _non_finite(steps[~finite], x)
    title = signal_words(series.name).removeprefix("the ")
    return alt.layer(*layers).properties(width=WIDTH, height=PANEL_HEIGHT, title=title)


def _step_axis(labelled: bool) -> Any:
    import altair as alt

    return alt.Axis(
        grid=False,
        labels=labelled,
        ticks=labelled,
        title="step, as logged" if labelled else None,
        format=",d",
        tickMinStep=1,
    )


def _scale(values: Any) -> Any:
    import altair as alt

    if values.size and values.min() > 0 and values.max() / values.min() > LOG_RATIO:
        return alt.Scale(type="log", nice=True)
    return alt.Scale(zero=False, nice=True)


def _thinned(steps: Any, values: Any) -> tuple[Any, Any]:
    """At most two values a bucket: its lowest and its highest."""
    if steps.size <= 2 * MAX_POINTS:
        return steps, values
    keep: set[int] = {0, int(steps.size) - 1}
    for bucket in np.array_split(np.arange(steps.size), MAX_POINTS):
        keep |= {int(bucket[values[bucket].argmin()]), int(bucket[values[bucket].argmax()])}
    chosen = np.array(sorted(keep))
    return steps[chosen], values[chosen]


def _band(signature: Signature, window: Window) -> Any:
    """From the usual value to the limit of the signature, up to the onset's window."""
    import altair as alt

    low, high = sorted((usual_value(signature), limit_value(signature)))
    if not (math.isfinite(low) and math.isfinite(high)):
        high = low
    row = {"step": window.first, "end": window.last, "low": low, "high": high}
    return (
        alt.Chart(alt.Data(values=[row]))
        .mark_rect(color=BAND, opacity=0.45, clip=True, aria=False)
        .encode(x="step:Q", x2="end:Q", y="low:Q", y2="high:Q")
    )


def _marks(incident: Incident, facts: PostmortemFacts, *, labelled: bool) -> list[Any]:
    """Vertical rules at the last good checkpoint and the onset; named in the topmost panel."""
    import altair as alt

    marks = [(incident.onset_step, f"onset {incident.onset_step:,}", ONSET, "left", 5)]
    if facts.case.last_good is not None:
        step = facts.case.last_good.step
        marks.append((step, f"last good checkpoint {step:,}", GOOD, "left", 5))
    layers: list[Any] = []
    for step, label, colour, align, dx in marks:
        data = alt.Chart(alt.Data(values=[{"step": step, "label": label}]))
        layers.append(data.mark_rule(color=colour, strokeWidth=1.2, strokeDash=[4, 3], aria=False).encode(x="step:Q"))
        if labelled:
            text = data.mark_text(color=colour, align=align, baseline="top", dx=dx, fontSize=11.5, aria=False)
            layers.append(text.encode(x="step:Q", y=alt.value(-12), text="label:N"))
    return layers


def _anomalies(signature: Signature, steps: Any, values: Any, x: Any, y: Any) -> list[Any]:
    """The values at which the signature holds."""
    import altair as alt

    limit = limit_value(signature)
    rows = [
        {"step": int(s), "value": float(v)}
        for s, v in zip(steps, values, strict=True)
        if s >= signature.onset_step and signature.direction * (v - limit) > 0
    ]
    if not rows or len(rows) > MAX_POINTS // 4:
        return []
    points = alt.Chart(alt.Data(values=rows)).mark_point(
        color=ONSET, filled=True, size=26, opacity=1, clip=True, aria=False
    )
    return [points.encode(x=x, y=y)]


def _non_finite(steps: Any, x: Any) -> list[Any]:
    """NaN and infinities have no height; they stand as crosses along the top."""
    import altair as alt

    if not steps.size:
        return []
    chosen = steps[np.linspace(0, steps.size - 1, min(steps.size, MAX_POINTS)).astype(int)]
    data = alt.Chart(alt.Data(values=[{"step": int(s)} for s in chosen]))
    cross = data.mark_point(
        color=ONSET, shape="cross", angle=45, size=42, filled=True, opacity=1, clip=True, aria=False
    )
    label = alt.Chart(alt.Data(values=[{"step": int(chosen[0]), "label": "NaN or infinite"}]))
    text = label.mark_text(color=ONSET, align="right", dx=-8, fontSize=11, aria=False)
    return [cross.encode(x=x, y=alt.value(10)), text.encode(x=x, y=alt.value(10), text="label:N")]


def _trial_windows(facts: PostmortemFacts, window: Window) -> Any | None:
    """A bar for every distinct window, with the trials that ran over it."""
    import altair as alt

    offset = facts.licence.step_offset if facts.licence is not None else 0
    spans: dict[tuple[int, int], list[str]] = {}
    for result in facts.trials:
        key = (result.spec.first_step + offset, result.spec.stop_after + offset)
        spans.setdefault(key, []).append(result.spec.id)
    if not spans:
        return None
    rows = [
        {"step": first, "end": last, "row": index, "label": _trials_label(ids)}
        for index, ((first, last), ids) in enumerate(spans.items())
    ]
    base = alt.Chart(alt.Data(values=rows))
    x = alt.X("step:Q", scale=alt.Scale(domain=[window.first, window.last], nice=False), axis=_step_axis(True))
    y = alt.Y("row:O", axis=None)
    bars = base.mark_bar(color=RECORD, opacity=0.28, height=14, cornerRadius=3, clip=True, aria=False)
    text = base.mark_text(align="left", dx=6, fontSize=11, color=INK, clip=True, aria=False)
    layers = [bars.encode(x=x, x2="end:Q", y=y), text.encode(x=x, y=y, text="label:N")]
    title = alt.TitleParams("trials replayed", color=SOFT, fontSize=12, fontWeight="normal")
    return alt.layer(*layers).properties(width=WIDTH, height=ROW_HEIGHT * len(rows), title=title)


def _trials_label(ids: Sequence[str]) -> str:
    shown = name(ids[0])
    return shown if len(ids) == 1 else f"{shown} and {len(ids) - 1} more"
