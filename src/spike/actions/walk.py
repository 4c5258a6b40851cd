"""How does one go through the whole runbook, and come back to it later, perhaps as somebody else?

Each step is the command that an operator would type, run as a process of its own. Where to go on is decided from
the artefacts of the case, so a walk has no state that could be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spike.actions.answers import read_gate, read_verdict
from spike.actions.status import argv_of, find_case, last_change, standing
from spike.casefile.case import Case
from spike.casefile.lock import operator_name
from spike.domain.errors import ExitCode
from spike.domain.measured import NotMeasured
from spike.domain.run import Run
from spike.domain.runbook import ANSWERS, Page, outcome_code
from spike.domain.timeline import logged_step_time
from spike.domain.verdict import Status
from spike.report.facts import VERDICT
from spike.report.text import device_hours, duration, name, plural, when

Ask = Callable[[str], bool]
Talk = Callable[[str], None]
Execute = Callable[[Sequence[str]], int]
"""Runs `spike ARGUMENTS...` and returns its exit code."""

TRIALS = frozenset({"replay", "branch", "bisect", "gate"})
"""Steps that train, and therefore cost GPU time."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of a walk."""

    step: str
    exit_code: int


@dataclass(slots=True)
class Walk:
    """A walk in progress; `ask`, `talk` and `execute` are its ports to the operator."""

    run: Run
    given: Path | None
    """The case that was named; None: the newest of the run, once there is one."""
    pages: Sequence[Page]
    ask: Ask
    talk: Talk
    execute: Execute
    taken: list[Taken] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """(step, reason) of steps that could not be taken."""

    @property
    def case(self) -> Case | None:
        """The case as it is on disk now: steps change it, and so may colleagues."""
        return find_case(self.run, self.given)


def walk(at: Walk) -> ExitCode | int:
    """Take every step that is due. Returns the exit code of the gate or verdict, or of the step that failed.

    A step that answers (also with no, or inconclusively) is followed by the next one; a step that fails ends the
    walk, and the same command goes on from there.
    """
    _welcome(at)
    while (page := _next_page(at)) is not None:
        case = at.case
        at.talk(_before(page, at.run, case))
        if not at.ask(f"Run {page.id} now?"):
            at.talk(f"Stopped before {page.id}. To go on: spike walk{_case_option(case)}")
            break
        code = at.execute(argv_of(page, at.run, case)[1:])
        at.taken.append(Taken(page.id, code))
        at.talk(f"\n{page.id}: exit {code}. {page.meaning(code)}")
        if code in page.ends:
            return ExitCode(code)
        if code not in ANSWERS:
            at.talk(_after_failure(page, case))
            return code
    return _farewell(at)


def _welcome(at: Walk) -> None:
    case = at.case
    if case is None:
        at.talk(f"No case is open for {name(at.run.directory)} yet. The walk begins with the signals.")
        return
    done = standing(case, at.pages).done
    at.talk(f"Case {name(case.facts.id)}. Done: {', '.join(done) or 'nothing yet'}.")
    last = last_change(case.journal())
    if last is not None:
        by = f"{name(last.operator)} on {name(last.host)} at {when(last.time)} UTC"
        at.talk(f"Last: {name(last.command)} by {by}. You are {name(operator_name())}.")


def _next_page(at: Walk) -> Page | None:
    """The first due step that was not taken in this walk and can be taken; says why one is left out."""
    case = at.case
    stand = standing(case, at.pages)
    passed = {t.step for t in at.taken} | {step for step, _ in at.left_out}
    for page in at.pages:
        if page.optional or page.id in stand.done or page.id in passed:
            continue
        reason = _not_possible(page, case)
        if not reason:
            return page
        at.talk(f"\n{page.id} is left out: {reason}")
        at.left_out.append((page.id, reason))
    return None


def _not_possible(page: Page, case: Case | None) -> str:
    """Why this step cannot be taken now, or ""."""
    missing = [a for a in page.needs if case is None or not (case.path / a).exists()]
    if missing:
        return f"it needs {', '.join(missing)}, which no step has produced."
    if VERDICT in page.needs and case is not None:
        verdict = read_verdict(case)
        if verdict is not None and (verdict.status is Status.UNDETERMINED or not verdict.cause):
            return "the verdict names no cause, so there is no remedy to try."
    return ""


def _before(page: Page, run: Run, case: Case | None) -> str:
    """Why the step exists, what it runs and what it costs."""
    import shlex

    estimate = estimate_words(case) if page.id in TRIALS and case is not None else ""
    lines = [
        "",
        f"{page.number}. {page.title}",
        "",
        page.why,
        "",
        f"runs   {shlex.join(argv_of(page, run, case))}",
        f"costs  {page.cost}",
    ]
    if estimate:
        lines.append(f"       {estimate}")
    lines.append(f"undo   {page.undo}")
    return "\n".join(lines)


def estimate_words(case: Case) -> str:
    """How much one trial of this case trains, as far as the record tells."""
    from spike.casefile.signals_store import read_signals

    incident, good, run = case.facts.incident, case.facts.last_good, case.facts.run
    if incident is None or good is None:
        return ""
    steps = max(incident.peak_step - good.step, 1)
    text = f"One trial trains about {plural(steps, 'step')} from step {good.step:,}"
    timed = logged_step_time(read_signals(case.path), incident.onset_step)
    if timed is None or isinstance(timed.seconds, NotMeasured):
        return f"{text}; the log names no time per step."
    seconds = steps * timed.seconds
    spent = f", {device_hours(seconds * run.devices / 3600)} on {plural(run.devices, 'device')}" if run.devices else ""
    return f"{text}: about {duration(seconds)}{spent}, without the start of the command."


def _after_failure(page: Page, case: Case | None) -> str:
    return "\n".join(
        (
            "",
            "What to do:",
            page.if_not,
            "",
            f"Then go on with: spike walk{_case_option(case)}",
            f"Or write down what is known so far: spike report{_case_option(case)}" if case is not None else "",
        )
    ).rstrip()


def _case_option(case: Case | None) -> str:
    import shlex

    return f" --case {shlex.quote(str(case.path))}" if case is not None else ""


def _farewell(at: Walk) -> ExitCode:
    case = at.case
    if case is None:
        return ExitCode.INCONCLUSIVE
    verdict, gate = read_verdict(case), read_gate(case)
    if verdict is not None:
        at.talk(f"\nVerdict: {verdict.status.value}, {name(verdict.cause) or 'no cause named'}.")
    if gate is not None:
        at.talk(f"Gate: {'open' if gate.is_open else 'closed'}.")
        if gate.is_open:
            at.talk(f"Resume with: {name(gate.resume_command)}\nRoll back with: {name(gate.rollback_command)}")
    if (case.path / "postmortem.html").is_file():
        at.talk(f"Postmortem: {case.path / 'postmortem.html'}")
    return outcome_code(verdict, gate)
