"""spike check: what can be known without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish, progress, talk

if TYPE_CHECKING:
    from spike.casefile.case import Case
    from spike.domain.facts import CheckReport, Fact
    from spike.domain.run import Run

QUESTIONS: dict[str, str] = {
    "signal.non-finite": "is a signal non-finite at the onset",
    "signal.persists": "is it still off at the end",
    "lr.discontinuity": "does the learning rate jump",
    "resume.at-onset": "was the job restarted there",
    "checkpoint.integrity": "is the last good checkpoint whole",
    "checkpoint.finite": "is it finite",
    "checkpoint.training": "do the weights move",
    "checkpoint.bit-flip": "did single elements jump",
    "checkpoint.generation": "is it of one generation",
    "checkpoint.tensors": "are its tensors ordinary",
    "ranks.agree": "do the ranks agree",
    "hardware.events": "did the hardware fail",
    "code.changed": "was the code changed",
    "config.changed": "was the configuration changed",
    "environment.changed": "was the environment changed",
}
MAX_ROWS = 24
"""Rows of a table shown on the terminal; --json has all of them."""


def check(
    run: RunOption = Path(),
    case: CaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every byte of the checkpoints around the onset, compare ranks, and list what changed. Needs no GPU.

    Without a case it checks the run directory (or any directory of checkpoints) as it lies there, and writes nothing.
    Exit code 1 where something is wrong: ranks disagree, a checkpoint is damaged or not finite, hardware failed.
    """
    from spike.actions.checks.check import check_case, check_run, exit_code

    described, found = _what(run, case)
    with progress("reading", total=_total(described, found)) as advance:
        if found is not None:
            report = check_case(found, described, on_bytes=advance)
        else:
            talk("no case: checking the run as it lies there (spike freeze keeps the evidence first)")
            report = check_run(described, on_bytes=advance)
    if as_json:
        emit_json(_payload(report, found, int(exit_code(report))))
    else:
        _show(report, found)
    finish(exit_code(report))


def _what(run: Path, case: Path | None) -> tuple[Run, Case | None]:
    """The run and its case. spike.yaml counts as it is now: a hardware log may have been added since the freeze."""
    from spike.actions.status import run_and_case
    from spike.readers.run_file import FILE_NAME, load_run

    described, found = run_and_case(run, case.resolve() if case is not None else None)
    directory = Path(described.directory)
    return (load_run(directory) if (directory / FILE_NAME).is_file() else described), found


def _total(run: Run, case: Case | None) -> float | None:
    """Bytes to read, where that is known before reading."""
    if case is None:
        return None
    from spike.readers.checkpoints import inspect_checkpoint

    pins = (case.facts.last_good, *case.facts.earlier[:1], *case.facts.suspect[:1])
    return float(sum(inspect_checkpoint(case.path / pin.pinned).num_bytes for pin in pins if pin is not None)) or None


def _show(report: CheckReport, case: Case | None) -> None:
    from spike.actions.checks.check import WRONG, wrong_facts
    from spike.domain.facts import NOT_MEASURED
    from spike.report.text import visible

    for fact in report.facts:
        mark = "WRONG" if WRONG.get(fact.name) == fact.value else "?" if fact.value == NOT_MEASURED else ""
        question = QUESTIONS.get(fact.name, fact.name)
        answer(f"{mark:<6} {question:<35} {fact.value:<13} {visible(fact.statement)}{_where(fact)}")
    width = shutil.get_terminal_size((120, 40)).columns - 2
    for title, rows in report.tables:
        answer(f"\n{title}")
        for line in _aligned(rows[: MAX_ROWS + 1], width):
            answer(f"  {line}")
        if len(rows) > MAX_ROWS + 1:
            answer(f"  and {len(rows) - MAX_ROWS - 1} more; --json lists them all")
    wrong = wrong_facts(report)
    answer("")
    answer(f"{len(wrong)} answers mean that something is wrong" if wrong else "nothing here is wrong by itself")
    answer(f"next   {_next(wrong, case)}")


def _where(fact: Fact) -> str:
    from spike.report.text import visible

    place = fact.where
    parts = [
        f"step {fact.step}" if fact.step is not None else "",
        f"rank {place.rank}" if place.rank is not None else "",
        place.tensor,
        place.file,
        f"commit {place.commit[:10]}" if place.commit else "",
        place.key,
    ]
    shown = ", ".join(visible(part) for part in parts if part)
    return f"  [{shown}]" if shown else ""


def _aligned(rows: tuple[tuple[str, ...], ...], width: int) -> list[str]:
    """The columns that fit side by side; what else a row says, named and wrapped, below it."""
    from spike.report.text import visible

    if not rows:
        return []
    columns = max(len(row) for row in rows)
    cells = [[visible(cell) for cell in row] + [""] * (columns - len(row)) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(columns)]
    beside = columns
    while beside > 2 and sum(widths[:beside]) + 2 * (beside - 1) > width:
        beside -= 1
    lines = []
    for place, row in enumerate(cells):
        pairs = zip(row[:beside], widths[:beside], strict=True)
        lines.append("  ".join(cell.ljust(column) for cell, column in pairs).rstrip())
        lines += _below(cells[0], row, beside, width) if place else []
    return lines


def _below(names: list[str], row: list[str], beside: int, width: int) -> list[str]:
    import textwrap

    said = "; ".join(f"{name}: {cell}" for name, cell in zip(names[beside:], row[beside:], strict=True) if cell)
    indent = " " * 6
    return textwrap.wrap(said, max(width, 40), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _next(wrong: tuple[Fact, ...], case: Case | None) -> str:
    if case is None:
        return "spike freeze, which keeps this evidence before anything changes"
    if any(fact.name in ("checkpoint.integrity", "checkpoint.finite") for fact in wrong):
        return f"do not load that checkpoint; spike status --case {case.path} says what can still be done"
    return f"spike replay --case {case.path}"


def _payload(report: CheckReport, case: Case | None, code: int) -> dict[str, Any]:
    from spike.casefile.codec import to_payload

    payload = to_payload(report, schema="spike.checks/1")
    return {**payload, "case": str(case.path) if case is not None else None, "exit_code": code}
