"""What is done, and what comes next? The steps of the runbook, and where a case stands among them.

Decides from the artefacts that a case holds and from the order of its journal, so that anybody can go on from
where somebody else stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spike.domain.errors import ExitCode
from spike.domain.gate import GateDecision
from spike.domain.verdict import Status, Verdict

ANSWERS = frozenset({ExitCode.PASSED, ExitCode.ANSWER_NO, ExitCode.INCONCLUSIVE})
"""Exit codes that answer the question of a step; every other one means that the step did not happen."""

ENDINGS = {
    int(ExitCode.PASSED): "Done.",
    int(ExitCode.ANSWER_NO): "The answer is no.",
    int(ExitCode.USAGE): "Not possible as typed, or something that it needs is not there yet.",
    int(ExitCode.UNREADABLE): "An input exists and cannot be read or trusted.",
    int(ExitCode.INCONCLUSIVE): "Everything ran, and the evidence does not decide.",
    int(ExitCode.BUG): "spike itself failed; the message says where the traceback is.",
}
"""What an exit code says where the page of the step has no words of its own for it."""


@dataclass(frozen=True, slots=True)
class Page:
    """One step of the runbook, as its page tells it."""

    id: str
    """Name of the step, and of its command: "freeze"."""
    number: int
    title: str
    run: str
    """Command line with {run} and {case}."""
    needs: tuple[str, ...]
    """Artefacts, relative to the case, without which the step cannot start."""
    produces: tuple[str, ...]
    """Artefacts whose presence shows that it was done; empty: done as soon as a later step is."""
    exits: tuple[tuple[int, str], ...]
    undo: str
    cost: str
    why: str
    """The four sections, as Markdown."""
    do: str
    expect: str
    if_not: str
    ends: tuple[int, ...] = ()
    """Exit codes after which nothing is left to walk through."""
    optional: bool = False
    """The next steps do without it."""
    file: str = ""

    def meaning(self, code: int) -> str:
        """What this exit code says, in the words of the page."""
        return dict(self.exits).get(code) or ENDINGS.get(code, "It was ended from outside; nothing is lost.")


@dataclass(frozen=True, slots=True)
class Ran:
    """One command of the journal, oldest first, as far as the order of steps is concerned."""

    command: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a case stands."""

    done: tuple[str, ...]
    """Ids of the steps whose artefacts are there and up to date."""
    stale: tuple[tuple[str, str], ...]
    """(step, earlier step that was run after it): done, and due again."""
    missing: tuple[str, ...]
    """Artefacts that the next step needs and that are not there."""
    next: Page | None
    """None where every step is done."""


def stand(pages: Sequence[Page], present: Collection[str], history: Sequence[Ran] = ()) -> Stand:
    """Where a case stands that holds the artefacts `present` and whose journal is `history`."""
    done = _done(pages, present)
    stale = _stale([p for p in pages if p.id in done], history)
    due = {step for step, _ in stale}
    following = next((p for p in pages if not p.optional and (p.id not in done or p.id in due)), None)
    missing = tuple(a for a in following.needs if a not in present) if following else ()
    return Stand(tuple(p.id for p in pages if p.id in done and p.id not in due), stale, missing, following)


def next_step(pages: Sequence[Page], present: Collection[str], history: Sequence[Ran] = ()) -> Page | None:
    """The step to take next, or None where all are taken."""
    return stand(pages, present, history).next


def _done(pages: Sequence[Page], present: Collection[str]) -> set[str]:
    done: set[str] = set()
    begun = False  # a later step has left something: whoever came that far has answered the ones that write nothing
    for page in reversed(pages):
        if page.produces:
            begun = begun or any(artefact in present for artefact in page.produces)
            if all(artefact in present for artefact in page.produces):
                done.add(page.id)
        elif begun and not page.optional:
            done.add(page.id)
    return done


def _stale(done: Sequence[Page], history: Sequence[Ran]) -> tuple[tuple[str, str], ...]:
    """Steps that stand on an earlier one which has been run again since, each with the newest such step."""
    last = {ran.command: position for position, ran in enumerate(history) if ran.exit_code in ANSWERS}
    stale: list[tuple[str, str]] = []
    for index, page in enumerate(done):
        newer = [p for p in done[:index] if p.produces and last.get(p.id, -1) > last.get(page.id, len(history))]
        if newer:
            stale.append((page.id, max(newer, key=lambda p: last[p.id]).id))
    return tuple(stale)


def outcome_code(verdict: Verdict | None, gate: GateDecision | None) -> ExitCode:
    """The exit code of a whole walk: that of the gate, else that of the verdict."""
    if gate is not None:
        return ExitCode.PASSED if gate.is_open else ExitCode.ANSWER_NO
    if verdict is None or verdict.status is Status.UNDETERMINED:
        return ExitCode.INCONCLUSIVE
    return ExitCode.PASSED
