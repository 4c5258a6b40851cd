"""Which file shows it? Evidence ids as links into the case."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spike.domain.facts import Fact
from spike.report.document import Inline, Span, code, inline
from spike.report.facts import CHECKS, FACTS, JOURNAL, SIGNALS, PostmortemFacts
from spike.report.text import name, sentence, visible

_TRIAL_ID = re.compile(r"\bT\d{3,}(?:-[a-z0-9][a-z0-9-]*)?\b")


def source(evidence_id: str, facts: PostmortemFacts) -> Span:
    """The id, linked to the artefact that it names; unlinked where the case holds no such thing."""
    return code(name(evidence_id), artefact_of(evidence_id, facts))


def artefact_of(evidence_id: str, facts: PostmortemFacts) -> str:
    """Path of the artefact, relative to the case; "" for an id that names nothing in it."""
    kind, _, rest = evidence_id.partition(":")
    if facts.trial(evidence_id) is not None:
        return f"trials/{evidence_id}/outcome.json"
    match kind:
        case "check":
            return CHECKS if facts.checks is not None else ""
        case "signal":
            return SIGNALS if facts.signals is not None else ""
        case "journal":
            return JOURNAL
        case "checkpoint":
            return _checkpoint(rest, facts)
        case _:
            held = {row.path for row in (*facts.artefacts, *facts.evidence)}
            return evidence_id if evidence_id in held else ""


def fact_artefact(fact: Fact, facts: PostmortemFacts) -> str:
    """Which artefact states this fact: the checks, or what the bisect measured beyond them."""
    return CHECKS if facts.checks is not None and facts.checks.fact(fact.name) is not None else FACTS


def _checkpoint(label: str, facts: PostmortemFacts) -> str:
    good = (facts.case.last_good,) if facts.case.last_good else ()
    pinned = (*good, *facts.case.earlier, *facts.case.suspect)
    digits = re.sub(r"\D", "", label)
    return next((p.pinned for p in pinned if digits and int(digits) == p.step), "")


def sources(evidence_ids: Iterable[str], facts: PostmortemFacts) -> Inline:
    """Several ids in a row, set apart by commas."""
    words: list[Span] = []
    for position, evidence_id in enumerate(evidence_ids):
        words += [Span(", ")] if position else []
        words.append(source(evidence_id, facts))
    return inline(*words)


def prose(text: str, facts: PostmortemFacts) -> Inline:
    """A sentence from an artefact, with every trial that it names linked to its outcome."""
    shown, spans, end = sentence(text), [], 0
    ids = {t.spec.id: t.spec.id for t in facts.trials}
    ids |= {t.spec.id.split("-", 1)[0]: t.spec.id for t in facts.trials}
    for match in _TRIAL_ID.finditer(shown):
        if match[0] in ids:
            spans += [Span(shown[end : match.start()]), source_of_trial(match[0], ids[match[0]])]
            end = match.end()
    return inline(*spans, visible(shown[end:]))


def source_of_trial(label: str, trial_id: str) -> Span:
    """A trial by any short name, linked to its outcome."""
    return code(label, f"trials/{trial_id}/outcome.json")
