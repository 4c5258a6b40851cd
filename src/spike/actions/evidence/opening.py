"""Which case does a freeze belong to: one that exists for this run and onset, or a new one?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spike import __version__
from spike.casefile.atomic import writing
from spike.casefile.case import Case, create_case, list_cases, open_case
from spike.casefile.lock import case_lock, operator_name
from spike.domain.case import CaseFacts
from spike.domain.errors import InputUnreadable
from spike.domain.incident import Incident
from spike.domain.run import Run
from spike.readers.redaction import redact_run

WAIT_S = 120.0
"""Many processes may open one case at once; each needs the shelf for some milliseconds."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a freeze is for."""

    run: Run
    incident: Incident | None
    onset: int | None


def find_or_open(
    cases: Path, occasion: Occasion, *, operator: str, say: Callable[[str], None], is_new: bool = False
) -> Case:
    """The case of this run and onset, or a new one. Raises `SpikeError`."""
    case = None if is_new else _case_of(cases, occasion)
    if case is not None:
        say(f"case {case.path} is already there for this incident")
        return case
    case = create_case(cases, _first_facts(cases, occasion, operator))
    say(f"case {case.path} opened")
    return case


def find_or_open_once(cases: Path, occasion: Occasion, *, operator: str, say: Callable[[str], None]) -> Case:
    """The same one for every process that asks at the same time: the shelf is locked meanwhile."""
    with writing(cases):
        cases.mkdir(parents=True, exist_ok=True)
    with case_lock(cases, "freeze", wait_s=WAIT_S):
        return find_or_open(cases, occasion, operator=operator, say=say)


def onset_of(facts: CaseFacts, step: int | None = None) -> int | None:
    """The onset that a case was opened for; `step` where its name does not tell."""
    if facts.incident is not None:
        return facts.incident.onset_step
    name = facts.id.rpartition("-")[2]
    return int(name) if name.isdecimal() else step


def _case_of(cases: Path, occasion: Occasion) -> Case | None:
    """The newest case of this run and onset; one that cannot be read does not stand in the way of a new one."""
    for path in reversed(list_cases(cases)):
        if not path.name.endswith(f"-{_onset_name(occasion.onset)}"):
            continue
        try:
            case = open_case(path)
        except InputUnreadable:
            continue
        if case.facts.run.directory == occasion.run.directory:
            return case
    return None


def _first_facts(cases: Path, occasion: Occasion, operator: str) -> CaseFacts:
    now = datetime.now(UTC)
    stamp = now.strftime("%Y%m%d-%H%M%S")
    name = _onset_name(occasion.onset)
    case_id = f"{stamp}-{name}"
    number = 2
    while (cases / case_id).exists():
        case_id = f"{stamp}.{number}-{name}"
        number += 1
    return CaseFacts(
        id=case_id,
        created=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        operator=operator or operator_name(),
        spike_version=__version__,
        run=redact_run(occasion.run),
        incident=occasion.incident,
        last_good=None,
    )


def _onset_name(onset: int | None) -> str:
    return "no-incident" if onset is None else str(onset)
