"""What has each step answered so far? The artefacts of a case as facts; None for a step that was not taken."""

from __future__ import annotations

from typing import TypeVar

from spike.casefile.case import Case
from spike.casefile.codec import from_payload
from spike.domain.errors import InputUnreadable
from spike.domain.facts import CheckReport, Fact
from spike.domain.gate import GateDecision
from spike.domain.trial import Licence, NoiseFloor, TrialResult
from spike.domain.verdict import Verdict
from spike.report.facts import CHECKS, FACTS, GATE, LICENCE, VERDICT

T = TypeVar("T")


def read_artefact(case: Case, relative: str, kind: type[T], schema: str) -> T | None:
    """One artefact as its facts, or None where the step that writes it was not taken."""
    payload = case.read_json(relative)
    return None if payload is None else from_payload(kind, payload, schema=schema, source=str(case.path / relative))


def read_checks(case: Case) -> CheckReport | None:
    """What the checks found, if they were made."""
    return read_artefact(case, CHECKS, CheckReport, "spike.checks/1")


def read_facts(case: Case, checks: CheckReport | None) -> tuple[Fact, ...]:
    """The facts of the checks, completed and overridden by those that the trials measured."""
    found = {f.name: f for f in checks.facts} if checks is not None else {}
    payload = case.read_json(FACTS)
    for raw in payload.get("facts", ()) if payload is not None else ():
        fact = from_payload(Fact, raw, source=str(case.path / FACTS))
        found[fact.name] = fact
    return tuple(found.values())


def read_verdict(case: Case) -> Verdict | None:
    """The verdict of the case, if there is one."""
    return read_artefact(case, VERDICT, Verdict, "spike.verdict/1")


def read_gate(case: Case) -> GateDecision | None:
    """The gate's decision, if there is one."""
    return read_artefact(case, GATE, GateDecision, "spike.gate/1")


def read_licence(case: Case) -> tuple[Licence | None, NoiseFloor | None]:
    """The licence and the noise floor, which one artefact holds."""
    payload = case.read_json(LICENCE)
    if payload is None:
        return None, None
    source = str(case.path / LICENCE)
    if payload.get("schema") != "spike.licence/1":
        raise InputUnreadable(f"{source} has schema {payload.get('schema')!r}, not 'spike.licence/1'")
    licence, noise = payload.get("licence"), payload.get("noise")
    return (
        from_payload(Licence, licence, source=source) if isinstance(licence, dict) else None,
        from_payload(NoiseFloor, noise, source=source) if isinstance(noise, dict) else None,
    )


def read_trials(case: Case) -> tuple[tuple[TrialResult, ...], tuple[tuple[str, str], ...]]:
    """Judged trials, and those without an outcome with the reason.

    A finished repeat or second baseline has none by design: it measures the noise floor, or others are held against it.
    """
    judged: list[TrialResult] = []
    unjudged: list[tuple[str, str]] = []
    for trial_id in case.trial_ids():
        spec = case.read_json(f"trials/{trial_id}/trial.json")
        if spec is None:
            continue
        relative = f"trials/{trial_id}/outcome.json"
        result = read_artefact(case, relative, TrialResult, "spike.outcome/1")
        finished = (case.path / "trials" / trial_id / "run.json").is_file()
        if result is not None:
            judged.append(result)
        elif not finished:
            unjudged.append((trial_id, "it was started and has not come to an end"))
        elif spec.get("role") not in ("repeat", "control", "baseline"):
            unjudged.append((trial_id, "it ran and was not judged"))
    return tuple(judged), tuple(unjudged)
