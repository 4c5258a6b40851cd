"""What became of the incident in each trial, at a glance?"""

from __future__ import annotations

import math
from typing import Any

from spike.domain.outcome import ABSENT_SHARE, REPRODUCED_SHARE
from spike.domain.trial import OutcomeKind, TrialResult
from spike.report.facts import PostmortemFacts
from spike.report.figures import GRID, INK, OUTCOME_COLOUR, SOFT
from spike.report.phrases import share_words
from spike.report.text import name

COLUMNS = tuple(kind.value for kind in OutcomeKind)
ROW_HEIGHT = 26
MATRIX_WIDTH = 300
SHARE_WIDTH = 320
MAX_SHARE = 1.5
"""A trial can spike harder than the incident did; beyond this the bar ends and the number says it."""


def chart(facts: PostmortemFacts) -> Any | None:
    """Rows are trials: on the left the outcome, on the right how much of the incident was left."""
    import altair as alt

    if not facts.trials:
        return None
    rows = [_row(t) for t in facts.trials]
    order = [r["trial"] for r in rows]
    y = alt.Y("trial:N", sort=order, title=None, axis=alt.Axis(labelLimit=260, labelColor=INK, ticks=False, grid=False))
    height = ROW_HEIGHT * len(rows)
    matrix = _matrix(rows, y).properties(width=MATRIX_WIDTH, height=height)
    hidden = alt.Y("trial:N", sort=order, title=None, axis=None)
    shares = _shares(rows, hidden).properties(width=SHARE_WIDTH, height=height)
    return alt.hconcat(matrix, shares, spacing=26).resolve_scale(y="shared", x="independent", color="independent")


def _row(result: TrialResult) -> dict[str, Any]:
    kind, excess = result.outcome.kind, result.outcome.excess
    share = 0.0 if kind is OutcomeKind.UNTESTABLE else excess if math.isfinite(excess) else MAX_SHARE
    return {
        "trial": name(result.spec.id),
        "outcome": kind.value,
        "zero": 0,
        "share": max(0.0, min(share, MAX_SHARE)),
        "label": "untestable" if kind is OutcomeKind.UNTESTABLE else share_words(result),
    }


def _colour() -> Any:
    import altair as alt

    scale = alt.Scale(domain=[k.value for k in OUTCOME_COLOUR], range=list(OUTCOME_COLOUR.values()))
    return alt.Color("outcome:N", scale=scale, legend=None)


def _matrix(rows: list[dict[str, Any]], y: Any) -> Any:
    import altair as alt

    cells = [{"trial": r["trial"], "column": c} for r in rows for c in COLUMNS]
    header = alt.Axis(orient="top", labelAngle=0, labelColor=SOFT, ticks=False, title=None, grid=False, labelPadding=8)
    x = alt.X("column:N", sort=list(COLUMNS), axis=header)
    empty = alt.Chart(alt.Data(values=cells)).mark_point(color=GRID, filled=True, size=34, opacity=1, aria=False)
    found = [{**r, "column": r["outcome"]} for r in rows]
    full = alt.Chart(alt.Data(values=found)).mark_point(filled=True, size=150, opacity=1, aria=False)
    return alt.layer(empty.encode(x=x, y=y), full.encode(x=x, y=y, color=_colour()))


def _shares(rows: list[dict[str, Any]], y: Any) -> Any:
    import altair as alt

    axis = alt.Axis(
        orient="top",
        values=[0, 0.5, 1],
        format=".0%",
        title="left of the incident",
        titleAnchor="start",
        ticks=False,
        labelPadding=6,
    )
    right = max(1.0, *(r["share"] for r in rows)) + 0.3
    x = alt.X("share:Q", scale=alt.Scale(domain=[0, right], nice=False), axis=axis)
    base = alt.Chart(alt.Data(values=rows))
    stick = base.mark_rule(strokeWidth=2, aria=False).encode(x="zero:Q", x2="share:Q", y=y, color=_colour())
    head = base.mark_point(filled=True, size=80, opacity=1, aria=False).encode(x=x, y=y, color=_colour())
    text = base.mark_text(align="left", dx=9, fontSize=11, color=SOFT, aria=False).encode(x=x, y=y, text="label:N")
    limits = alt.Chart(alt.Data(values=[{"share": ABSENT_SHARE}, {"share": REPRODUCED_SHARE}]))
    marks = limits.mark_rule(color="#c3cdd8", strokeDash=[3, 3], aria=False).encode(x=x)
    return alt.layer(marks, stick, head, text)
