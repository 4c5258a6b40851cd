"""What did the signals do around the onset, and which steps did the trials replay?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
LABEL_SHARE = 0.24
"""Width of the longest label, as a share of the plot."""
PANEL_HEIGHT = 170
ROW_HEIGHT = 22


@dataclass(frozen=True, slots=True)
class Window:
    """Logged steps that the figure shows."""

    first: int
    last: int
    labelled: bool = False
    """Whether the steps are written below; all layers of a panel must agree, or the first one's axis wins."""

    def share(self, step: int) -> float:
        """How far to the right this step lies, from 0 to 1."""
        return (step - self.first) / max(self.last - self.first, 1)


def chart(facts: PostmortemFacts) -> Any | None:
    """One panel a signal, the trials' windows below; None where nothing was logged around the onset."""
    import altair as alt

    series, incident = drawn_series(facts), facts.case.incident
    if not series or incident is None:
        return None
    window = _window(facts, incident)
    bars = _trial_windows(facts, replace(window, labelled=True))
    lowest = len(series) - 1 if bars is None else None
    panels = [
        _panel(one, incident, facts, replace(window, labelled=i == lowest), first=i == 0)
        for i, one in enumerate(series)
    ]
    rows = [*panels, bars] if bars is not None else panels
    return alt.vconcat(*rows, spacing=14).resolve_scale(x="shared")


def drawn_series(facts: PostmortemFacts) -> tuple[Series, ...]:
    """The signals that the figure shows; () where it is not drawn."""
    incident = facts.case.incident
    if facts.signals is None or incident is None:
        return ()
    window = _window(facts, incident)
    found = (facts.signals.get(name) for name in dict.fromkeys((LOSS, GRAD_NORM, incident.first_signal)))
    return tuple(s for s in found if s is not None and _inside(s, window).any())


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
    x, y = _x(window), _y(values[finite])
    layers: list[Any] = []
    if signature is not None:
        layers.append(_band(signature, window, y))
    layers += _marks(incident, facts, window, labelled=first)
    thin_steps, thin_values = _thinned(steps[finite], values[finite])
    rows: list[dict[str, Any]] = [
        {"step": int(s), "value": float(v)} for s, v in zip(thin_steps, thin_values, strict=True)
    ]
    # A gap, not a bridge, where the value was not finite.
    rows += [{"step": int(s), "value": None} for s in steps[~finite]]
    rows.sort(key=lambda row: row["step"])
    line = alt.Chart(alt.Data(values=rows)).mark_line(color=RECORD, strokeWidth=1.6, clip=True, aria=False)
    layers.append(line.encode(x=x, y=y))
    if signature is not None:
        layers += _anomalies(signature, thin_steps, thin_values, x, y)
    layers += _non_finite(steps[~finite], window)
    title = signal_words(series.name).removeprefix("the ")
    return alt.layer(*layers).properties(width=WIDTH, height=PANEL_HEIGHT, title=title)


def _x(window: Window, field: str = "step:Q") -> Any:
    """The one horizontal axis; every layer names its domain, or a layer without would pull it to zero."""
    import altair as alt

    axis = alt.Axis(
        grid=False,
        labels=window.labelled,
        ticks=window.labelled,
        title="step, as logged" if window.labelled else None,
        format=",d",
        tickMinStep=1,
        tickCount=10,
    )
    return alt.X(field, scale=alt.Scale(domain=[window.first, window.last], nice=False, zero=False), axis=axis)


def _y(values: Any) -> Any:
    import altair as alt

    axis = alt.Axis(tickCount=4, format="~g")
    scale = alt.Scale(zero=False, nice=True)
    if values.size and values.min() > 0 and values.max() / values.min() > LOG_RATIO:
        low, high = float(values.min()), float(values.max())
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        decades = range(first, last + 1, max(1, (last - first) // 5))
        axis = alt.Axis(values=[10.0**d for d in decades], format="~g")
        scale = alt.Scale(type="log", domain=[low / 1.4, high * 1.8], nice=False)
    return alt.Y("value:Q", scale=scale, title=None, axis=axis)


def _thinned(steps: Any, values: Any) -> tuple[Any, Any]:
    """At most two values a bucket: its lowest and its highest."""
    if steps.size <= 2 * MAX_POINTS:
        return steps, values
    keep: set[int] = {0, int(steps.size) - 1}
    for bucket in np.array_split(np.arange(steps.size), MAX_POINTS):
        keep |= {int(bucket[values[bucket].argmin()]), int(bucket[values[bucket].argmax()])}
    chosen = np.array(sorted(keep))
    return steps[chosen], values[chosen]


def _band(signature: Signature, window: Window, y: Any) -> Any:
    """From the usual value to the limit of the signature."""
    import altair as alt

    low, high = sorted((usual_value(signature), limit_value(signature)))
    if not (math.isfinite(low) and math.isfinite(high)):
        high = low
    row = {"step": window.first, "end": window.last, "value": low, "high": high}
    band = alt.Chart(alt.Data(values=[row])).mark_rect(color=BAND, opacity=0.5, clip=True, aria=False)
    return band.encode(x=_x(window), x2="end:Q", y=y, y2="high:Q")


def _marks(incident: Incident, facts: PostmortemFacts, window: Window, *, labelled: bool) -> list[Any]:
    """Vertical rules at the last good checkpoint and the onset; named above the topmost panel."""
    onset, good = incident.onset_step, facts.case.last_good
    side = "left" if window.share(onset) < 1 - LABEL_SHARE else "right"
    layers = _mark(window, onset, f"onset {onset:,}", ONSET, side, labelled=labelled)
    if good is not None:
        # To the left of its rule where there is room, else to the right, else there is no room for a name.
        fits_left = window.share(good.step) > LABEL_SHARE
        fits_right = window.share(onset) - window.share(good.step) > LABEL_SHARE and side == "left"
        text = f"last good checkpoint {good.step:,}" if fits_left or fits_right else f"{good.step:,}"
        layers += _mark(window, good.step, text, GOOD, "right" if fits_left else "left", labelled=labelled)
    return layers


def _mark(window: Window, step: int, label: str, colour: str, side: str, *, labelled: bool) -> list[Any]:
    import altair as alt

    data = alt.Chart(alt.Data(values=[{"step": step, "label": label}]))
    rule = data.mark_rule(color=colour, strokeWidth=1.2, strokeDash=[4, 3], clip=True, aria=False).encode(x=_x(window))
    if not labelled:
        return [rule]
    dx = 5 if side == "left" else -5
    text = data.mark_text(color=colour, align=side, baseline="bottom", dx=dx, fontSize=11.5, aria=False)
    return [rule, text.encode(x=_x(window), y=alt.value(-4), text="label:N")]


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


def _non_finite(steps: Any, window: Window) -> list[Any]:
    """NaN and infinities have no height; they stand as crosses along the top."""
    import altair as alt

    if not steps.size:
        return []
    chosen = steps[np.linspace(0, steps.size - 1, min(steps.size, MAX_POINTS)).astype(int)]
    crosses = alt.Chart(alt.Data(values=[{"step": int(s)} for s in dict.fromkeys(chosen.tolist())])).mark_point(
        color=ONSET, shape="cross", angle=45, size=42, filled=True, opacity=1, clip=True, aria=False
    )
    # Named below the first cross, where the curve has already left: beside it may be its peak.
    side = "left" if window.share(int(chosen[0])) < 1 - LABEL_SHARE else "right"
    label = alt.Chart(alt.Data(values=[{"step": int(chosen[0]), "label": "NaN or infinite"}])).mark_text(
        color=ONSET, align=side, dx=-3 if side == "left" else 3, fontSize=11, aria=False
    )
    x = _x(window)
    return [crosses.encode(x=x, y=alt.value(10)), label.encode(x=x, y=alt.value(26), text="label:N")]


def _trial_windows(facts: PostmortemFacts, window: Window) -> Any | None:
    """A bar for every distinct window, with the trials that ran over it; the axis of all panels is below."""
    import altair as alt

    offset = facts.licence.step_offset if facts.licence is not None else 0
    spans: dict[tuple[int, int], list[str]] = {}
    for result in facts.trials:
        key = (result.spec.first_step + offset, result.spec.stop_after + offset)
        if key[1] >= window.first:
            spans.setdefault(key, []).append(result.spec.id)
    if not spans:
        return None
    rows = [
        {"step": max(first, window.first), "end": last, "row": index, "label": _trials_label(ids)}
        for index, ((first, last), ids) in enumerate(spans.items())
    ]
    y = alt.Y("row:O", axis=None)
    bars = alt.Chart(alt.Data(values=rows)).mark_bar(
        color=RECORD, opacity=0.32, height=10, cornerRadius=3, clip=True, aria=False
    )
    layers = [bars.encode(x=_x(window), x2="end:Q", y=y)]
    for side in ("left", "right"):
        named = [r for r in rows if _label_side(r, window) == side]
        if named:
            at, dx = ("end:Q", 7) if side == "left" else ("step:Q", -7)
            text = alt.Chart(alt.Data(values=named)).mark_text(align=side, dx=dx, fontSize=11, color=INK, aria=False)
            layers.append(text.encode(x=_x(window, at), y=y, text="label:N"))
    title = alt.TitleParams("steps replayed by trials", color=SOFT, fontSize=12, fontWeight="normal")
    return alt.layer(*layers).properties(width=WIDTH, height=ROW_HEIGHT * len(rows), title=title)


def _label_side(row: dict[str, Any], window: Window) -> str:
    """After the bar, or before it where it ends too far to the right."""
    return "left" if window.share(row["end"]) < 1 - LABEL_SHARE else "right"


def _trials_label(ids: Sequence[str]) -> str:
    shown = name(ids[0])
    return shown if len(ids) == 1 else f"{shown} and {len(ids) - 1} more"
