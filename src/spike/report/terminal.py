"""What does the operator see in the terminal? Tables of trials, the verdict, the state of a case.

Everything is text: rich draws it on a terminal, and without one it is plain, unwrapped and without colour, so that
`spike status | grep` works. Names come from files; a control character in one is shown, never sent.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spike.domain.eliminate import Evidence, contradiction
from spike.domain.playbook import Expectation, Playbook
from spike.domain.runbook import Page, Stand
from spike.domain.trial import OutcomeKind, TrialResult
from spike.domain.verdict import Status, Strength, Verdict
from spike.report.phrases import change_words, effect_words, place_phrase, share_words
from spike.report.text import duration, name, sentence, visible

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_WIDTH = 100_000
"""Without a terminal nothing is wrapped: a line of a table is a line of text."""
OUTCOME_STYLE = {
    OutcomeKind.REPRODUCED: "red",
    OutcomeKind.ABSENT: "green",
    OutcomeKind.DIFFERENT: "yellow",
    OutcomeKind.UNTESTABLE: "dim",
}
STATUS_STYLE = {Status.ESTABLISHED: "bold green", Status.SUPPORTED: "bold yellow", Status.UNDETERMINED: "bold"}
_LETTERS = {Expectation.REPRODUCED: "reproduced", Expectation.ABSENT: "absent", Expectation.ANY: "any"}


def table_text(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
    title: str = "",
    on_terminal: bool | None = None,
) -> str:
    """A table as text. `styles` gives a rich style to cells by their exact text.

    `on_terminal`: None asks stdout. Cells must have been made visible by their builder; they are never markup.
    """
    from rich.text import Text

    drawn = _table(header, title, on_terminal=_is_terminal(on_terminal))
    for row in rows:
        drawn.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    return _drawn(drawn, on_terminal=_is_terminal(on_terminal))


def trials_text(results: Iterable[TrialResult], *, on_terminal: bool | None = None) -> str:
    """Every trial: what it changed, whether that acted, what became of the incident."""
    rows = [
        (
            name(r.spec.id),
            change_words(r.spec.intervention),
            r.outcome.kind.value,
            share_words(r),
            effect_words(r),
            duration(r.seconds),
        )
        for r in results
    ]
    header = ("trial", "change", "outcome", "left", "took effect", "time")
    return table_text(header, rows, styles=_outcome_styles(), title="Trials", on_terminal=on_terminal)


def explain_text(
    playbooks: Sequence[Playbook],
    evidence: Evidence,
    results: Mapping[str, TrialResult],
    *,
    on_terminal: bool | None = None,
) -> str:
    """The trials, then every hypothesis against every experiment that was run: expected and seen.

    `results` are by experiment name, as are the outcomes of `evidence`.
    """
    experiments = [e for e in evidence.outcomes if any(p.expects(e) is not Expectation.ANY for p in playbooks)]
    seen = ("seen", *(evidence.outcomes[e].value for e in experiments), "")
    rows = [_hypothesis_row(p, experiments, evidence) for p in playbooks]
    header = ("hypothesis", *experiments, "stands")
    matrix = table_text(
        header, [seen, *rows], styles=_outcome_styles(), title="What each hypothesis expects", on_terminal=on_terminal
    )
    rejected = [r for p in playbooks if (r := contradiction(p, evidence)) is not None]
    reasons = "\n".join(f"  {name(r.cause)}: {sentence(r.because)}" for r in rejected)
    listed = trials_text(results.values(), on_terminal=on_terminal)
    return "\n\n".join(part for part in (listed, matrix, f"Rejected\n{reasons}" if reasons else "") if part)


def _hypothesis_row(playbook: Playbook, experiments: Sequence[str], evidence: Evidence) -> tuple[str, ...]:
    cells = []
    for experiment in experiments:
        expected = playbook.expects(experiment)
        outcome = evidence.decided(experiment)
        clash = (expected, outcome) in (
            (Expectation.REPRODUCED, OutcomeKind.ABSENT),
            (Expectation.ABSENT, OutcomeKind.REPRODUCED),
        )
        cells.append(f"not {_LETTERS[expected]}" if clash else _LETTERS[expected])
    return name(playbook.id), *cells, "no" if contradiction(playbook, evidence) is not None else "yes"


def verdict_text(verdict: Verdict, *, full: bool = True, on_terminal: bool | None = None) -> str:
    """The verdict as labelled lines; with `full` also what was only observed, and every rejection."""
    cause = name(verdict.cause) if verdict.cause else "not determined"
    step = f" at step {verdict.step:,}" if verdict.step is not None else ""
    lines = [
        ("verdict", f"{verdict.status.value}: {cause}{step}"),
        ("class", verdict.cause_class.value),
        ("because", sentence(verdict.because)),
        ("where", place_phrase(verdict.where) or "not narrowed down"),
    ]
    shown = [f for f in verdict.findings if full or f.strength is not Strength.OBSERVED]
    lines += [("finding", f"[{f.strength.value}] {sentence(f.statement)}") for f in shown]
    lines += [("rejected", f"{name(r.cause)}: {sentence(r.because)}") for r in verdict.rejected if full]
    if not full:
        seen = len(verdict.findings) - len(shown)
        rest = f"{seen} observations and {len(verdict.rejected)} rejected causes: spike bisect --explain"
        lines.append(("also", rest))
    if verdict.inseparable:
        lines.append(("open", f"cannot be told apart from it so far: {', '.join(map(name, verdict.inseparable))}"))
    lines += [("would help", f"{name(s.trial)}: {sentence(s.because)}") for s in verdict.next]
    return labelled(lines, first_style=STATUS_STYLE[verdict.status], on_terminal=on_terminal)


def steps_text(pages: Sequence[Page], stand: Stand, *, on_terminal: bool | None = None) -> str:
    """The steps of the runbook, with their state."""
    stale = dict(stand.stale)
    rows = []
    for page in pages:
        state = "done" if page.id in stand.done else "optional" if page.optional else "to do"
        if page.id in stale:
            state = f"again, {stale[page.id]} is newer"
        if stand.next is not None and page.id == stand.next.id:
            state = "next" if page.id not in stale else f"next, {state}"
        rows.append((str(page.number), page.id, state, page.title.partition(":")[2].strip() or page.title))
    styles = {"done": "green", "next": "bold cyan", "optional": "dim", "to do": "dim"}
    return table_text(("", "step", "state", "question"), rows, styles=styles, on_terminal=on_terminal)


def labelled(lines: Iterable[tuple[str, str]], *, first_style: str = "", on_terminal: bool | None = None) -> str:
    """Lines of "label  text"; on a terminal the text is wrapped beside its label."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=8, no_wrap=True)
    grid.add_column(overflow="fold")
    for index, (label, text) in enumerate(lines):
        grid.add_row(Text(visible(label), style="dim"), Text(visible(text), style=first_style if not index else ""))
    return _drawn(grid, on_terminal=_is_terminal(on_terminal))


def _table(header: Sequence[str], title: str, *, on_terminal: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if on_terminal else None,
        pad_edge=False,
        header_style="dim" if on_terminal else "",
    )
    for position, column in enumerate(header):
        drawn.add_column(Text(column), overflow="fold", no_wrap=position == 0)
    return drawn


def _outcome_styles() -> dict[str, str]:
    clashes = {f"not {kind.value}": "red" for kind in (OutcomeKind.REPRODUCED, OutcomeKind.ABSENT)}
    return {kind.value: style for kind, style in OUTCOME_STYLE.items()} | clashes | {"no": "dim", "yes": ""}


def _is_terminal(given: bool | None) -> bool:
    return sys.stdout.isatty() if given is None else given


def _drawn(renderable: Table, *, on_terminal: bool) -> str:
    """The drawing as text without trailing blanks."""
    from rich.console import Console

    width = shutil.get_terminal_size().columns if on_terminal else PLAIN_WIDTH
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=on_terminal,
        color_system="auto" if on_terminal else None,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())
