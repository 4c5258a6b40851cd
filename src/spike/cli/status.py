"""spike status: where does the case stand, and what is there to type next?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spike.actions.status import CaseStatus
    from spike.domain.runbook import Page


def status(run: RunOption = Path(), case: CaseOption = None, as_json: JsonOption = False) -> None:
    """Say which steps are done, what they found, who was there last, and what to type next."""
    from spike.actions.status import run_and_case, shipped_pages
    from spike.actions.status import status as act

    described, opened = run_and_case(run, case)
    pages = shipped_pages()
    found = act(described, opened, pages)
    if as_json:
        emit_json(status_payload(found))
    else:
        _show(found, pages)


def _show(found: CaseStatus, pages: Sequence[Page]) -> None:
    from spike.report.terminal import labelled, steps_text

    answer(labelled(_facts(found)))
    answer("")
    answer(steps_text(pages, found.stand))
    answer("")
    answer(labelled([("next", found.command or "every step is taken; spike verify proves that nothing was altered")]))


def _facts(found: CaseStatus) -> Iterator[tuple[str, str]]:
    from spike.report.phrases import KIND_WORDS, licence_words
    from spike.report.text import when

    if found.case is None:
        yield "run", found.run.directory
        yield "case", "none yet"
        return
    facts = found.case.facts
    yield "case", str(found.case.path)
    yield "run", facts.run.directory
    if facts.incident is not None:
        recovered = "recovered" if facts.incident.recovered else "not recovered"
        yield "incident", f"{KIND_WORDS[facts.incident.kind]} at step {facts.incident.onset_step:,}, {recovered}"
    if found.licence is not None:
        yield "licence", licence_words(found.licence)
    if found.verdict is not None:
        yield "verdict", f"{found.verdict.status.value}: {found.verdict.cause or 'no cause named'}"
    if found.gate is not None:
        yield "gate", f"{'open' if found.gate.is_open else 'closed'}: {found.gate.remedy or 'no remedy'}"
    if found.last is not None:
        who = f"{found.last.operator} on {found.last.host}"
        yield "last", f"{found.last.command} by {who} at {when(found.last.time)} UTC: {found.last.summary}"
    if found.holder:
        holder = dict(found.holder)
        who = f"{holder.get('command')} by {holder.get('operator')} (pid {holder.get('pid')} on {holder.get('host')})"
        yield "at work", f"{who}: interrupted, type it again" if found.was_interrupted else who


def status_payload(found: CaseStatus) -> dict[str, Any]:
    """The answer as JSON, schema spike.status/1."""
    from spike.casefile.codec import to_payload

    case, following = found.case, found.stand.next
    return {
        "schema": "spike.status/1",
        "case": str(case.path) if case is not None else None,
        "run": found.run.directory,
        "incident": to_payload(case.facts.incident) if case is not None and case.facts.incident else None,
        "done": list(found.stand.done),
        "again": [{"step": step, "newer": newer} for step, newer in found.stand.stale],
        "licence": found.licence.grade.value if found.licence is not None else None,
        "verdict": {"status": found.verdict.status.value, "cause": found.verdict.cause} if found.verdict else None,
        "gate": ("open" if found.gate.is_open else "closed") if found.gate is not None else None,
        "last": to_payload(found.last) if found.last is not None else None,
        "at_work": dict(found.holder) or None,
        "interrupted": found.was_interrupted,
        "next": {"step": following.id, "command": found.command, "missing": list(found.stand.missing)}
        if following is not None
        else None,
    }
