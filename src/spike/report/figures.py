"""How do the figures of a case become SVG that is the same every time?

The drawing is Vega-Lite through altair; this module owns the look, the normalisation and what may stand in a label.
"""

from __future__ import annotations

import re
from typing import Any

from spike.domain.trial import OutcomeKind
from spike.report.facts import PostmortemFacts

INK, SOFT, GRID, RECORD = "#1c2733", "#52606d", "#e9eef3", "#334e68"
ONSET, GOOD, BAND = "#b42318", "#1f7a4d", "#cbd5e0"
OUTCOME_COLOUR = {
    OutcomeKind.REPRODUCED: "#b42318",
    OutcomeKind.ABSENT: "#1f7a4d",
    OutcomeKind.DIFFERENT: "#c58a12",
    OutcomeKind.UNTESTABLE: "#9aa5b1",
}
FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
WIDTH = 780
"""Pixels of the plotting area; the page shows a figure at about this width."""

_ID = re.compile(r'(\bid="|url\(#|href="#)([^")]+)')


def draw_figures(facts: PostmortemFacts) -> dict[str, str]:
    """SVG text by figure name ("signals", "trials"); a figure without values is left out."""
    from spike.report import signal_figure, trial_figure

    charts = {"signals": signal_figure.chart(facts), "trials": trial_figure.chart(facts)}
    return {name: to_svg(chart, name) for name, chart in charts.items() if chart is not None}


def to_svg(chart: Any, prefix: str) -> str:
    """The chart as SVG whose ids are numbered within the figure and carry its name.

    The converter counts clip paths over the life of the process; unchanged, a second figure would differ from
    the first, and two figures in one page would clip each other.
    """
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(styled(chart).to_dict())
    numbers: dict[str, str] = {}
    return _ID.sub(lambda m: m[1] + numbers.setdefault(m[2], f"{prefix}-{len(numbers) + 1}"), svg)


def to_png(chart: Any, scale: float = 2.0) -> bytes:
    """The chart as PNG, for a chat or a ticket that shows no SVG."""
    import vl_convert

    png: bytes = vl_convert.vegalite_to_png(styled(chart).to_dict(), scale=scale)
    return png


def styled(chart: Any) -> Any:
    """The one look of every figure."""
    return (
        chart.configure(font=FONT, background="white", padding={"left": 4, "right": 12, "top": 4, "bottom": 4})
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=SOFT,
            titleColor=SOFT,
            titleFontWeight="normal",
            titleFontSize=12,
            labelFontSize=11.5,
            gridColor=GRID,
            domain=False,
            tickColor=GRID,
            titlePadding=8,
        )
        .configure_title(color=INK, fontSize=13, fontWeight=600, anchor="start", frame="group", offset=8)
        .configure_legend(labelColor=SOFT, title=None, orient="top")
    )
