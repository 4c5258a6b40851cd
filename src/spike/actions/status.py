"""Where does a case stand, who worked on it last, and what is there to type next?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spike.actions.answers import read_gate, read_licence, read_verdict
from spike.casefile.case import Case, cases_dir, latest_case, open_case
from spike.casefile.lock import interrupted, read_holder
from spike.domain.gate import GateDecision
from spike.domain.journal import JournalEntry
from spike.domain.run import Run
from spike.domain.runbook import Page, Ran, Stand, stand
from spike.domain.timeline import READING, first_word
from spike.domain.trial import Licence
from spike.domain.verdict import Verdict
from spike.knowledge.runbook import load_runbook
from spike.knowledge.shipped import shipped_directory
from spike.readers.run_file import load_run_or_bare


@dataclass(frozen=True, slots=True)
class CaseStatus:
    """The answer of `spike status`."""

    run: Run
    case: Case | None
    """None where no case was opened yet."""
    stand: Stand
    last: JournalEntry | None
    """The last command that changed the case."""
    holder: tuple[tuple[str, str], ...]
    """Who is at work on the case now: command, operator, pid, host, since; empty where nobody is."""
    was_interrupted: bool
    """The holder's process is gone: its command was killed, and can be typed again."""
    licence: Licence | None
    verdict: Verdict | None
    gate: GateDecision | None
    command: str
    """What to type next; "" where every step is taken."""


def shipped_pages() -> tuple[Page, ...]:
    """The runbook that comes with spike."""
    return load_runbook(shipped_directory("runbook"))


def run_and_case(run: Path, given: Path | None) -> tuple[Run, Case | None]:
    """What a command is about: the named case and the run that it names, else the run here and its newest case.

    A case that was handed over alone is enough: nothing of the run is read. Raises `SpikeError`.
    """
    if given is not None:
        case = open_case(given)
        return case.facts.run, case
    described = load_run_or_bare(run)
    return described, find_case(described, None)


def find_case(run: Run, given: Path | None) -> Case | None:
    """The case that was named, else the newest of the run, else None. Raises `InputUnreadable`."""
    return open_case(given) if given is not None else latest_case(cases_dir(run))


def status(run: Run, case: Case | None, pages: Sequence[Page]) -> CaseStatus:
    """Look at the case; nothing is written. Raises `InputUnreadable` for an artefact that cannot be read."""
    where = standing(case, pages)
    if case is None:
        return CaseStatus(run, None, where, None, (), False, None, None, None, command_of(where.next, run, None))
    holder = read_holder(case.path)
    licence, _noise = read_licence(case)
    return CaseStatus(
        run=run,
        case=case,
        stand=where,
        last=last_change(case.journal()),
        holder=tuple(holder.items()),
        was_interrupted=bool(interrupted(case.path)),
        licence=licence,
        verdict=read_verdict(case),
        gate=read_gate(case),
        command=command_of(where.next, run, case),
    )


def standing(case: Case | None, pages: Sequence[Page]) -> Stand:
    """The steps done and due, from the artefacts that exist and the order of the journal."""
    if case is None:
        return stand(pages, ())
    named = {artefact for page in pages for artefact in (*page.needs, *page.produces)}
    present = {artefact for artefact in named if (case.path / artefact).exists()}
    history = [Ran(first_word(entry.command), entry.exit_code) for entry in case.journal()]
    return stand(pages, present - _left_unrecorded(pages, {ran.command for ran in history}), history)


def _left_unrecorded(pages: Sequence[Page], recorded: set[str]) -> set[str]:
    """Artefacts of a step that neither it nor any later one has recorded: it was killed before it could."""
    unfinished = [p for p in pages if not any(q.id in recorded and q.number >= p.number for q in pages)]
    return {artefact for page in unfinished for artefact in page.produces}


def command_of(page: Page | None, run: Run, case: Case | None) -> str:
    """The page's command with its places filled in and quoted for a shell."""
    return shlex.join(argv_of(page, run, case)) if page is not None else ""


def argv_of(page: Page, run: Run, case: Case | None) -> list[str]:
    """The page's command as words; without a case, the option that names it is left out."""
    words = shlex.split(page.run)
    if case is None and "{case}" in words:
        at = words.index("{case}")
        words = words[: at - 1] + words[at + 1 :]
    filled = {"{run}": run.directory, "{case}": str(case.path) if case is not None else ""}
    return [filled.get(word, word) for word in words]


def last_change(journal: Sequence[JournalEntry]) -> JournalEntry | None:
    """The newest line of a command that did more than look."""
    return next((e for e in reversed(journal) if first_word(e.command) not in READING), None)
