"""What could nobody measure, and what should be done next?"""

from __future__ import annotations

from collections.abc import Iterator

from spike.domain.facts import NOT_MEASURED
from spike.domain.gate import ConditionState
from spike.domain.measured import NotMeasured
from spike.domain.trial import Grade, OutcomeKind
from spike.domain.verdict import Status
from spike.report.document import Section, Words, bullets, code, inline, paragraph
from spike.report.facts import GATE, LICENCE, MANIFEST, VERDICT, PostmortemFacts
from spike.report.phrases import signal_words
from spike.report.sources import fact_artefact, source_of_trial
from spike.report.text import name, plural, sentence


def gaps_section(facts: PostmortemFacts) -> Section:
    """Every absence with its reason; none of them is a pass."""
    items = list(_gaps(facts))
    block = bullets(items) if items else paragraph("Everything that the steps taken ask for was measured.")
    return Section("not-measured", "What could not be measured", (block,))


def _gaps(facts: PostmortemFacts) -> Iterator[Words]:
    for step in facts.not_run:
        yield inline(code(f"spike {step}"), ": not taken.")
    for step, newer in facts.stale:
        yield inline(code(f"spike {step}"), f": older than the last {name(newer)}; its answer may no longer stand.")
    for what, why in facts.gaps:
        yield inline(code(name(what), MANIFEST), f": not kept. {sentence(why)}")
    for path, why in facts.case.not_pinned:
        yield inline("checkpoint ", code(name(path)), f": not used. {sentence(why)}")
    for fact in facts.facts:
        if fact.value == NOT_MEASURED:
            yield inline(code(fact.name, fact_artefact(fact, facts)), f": {sentence(fact.statement)}")
    for result in facts.trials:
        if result.outcome.kind is OutcomeKind.UNTESTABLE:
            trial = source_of_trial(name(result.spec.id), result.spec.id)
            yield inline(trial, f": untestable. {sentence(result.outcome.reason)}")
    for condition in facts.gate.conditions if facts.gate is not None else ():
        if condition.state is ConditionState.NOT_MEASURED:
            waived = f" Waived by {name(condition.waived_by)}." if condition.waived_by else ""
            yield inline(code(name(condition.name), GATE), f": {sentence(condition.statement)}{waived}")
    yield from _uncounted(facts)


def _uncounted(facts: PostmortemFacts) -> Iterator[Words]:
    impact = facts.impact
    named = (
        ("steps to train again", impact.steps),
        ("time per step", impact.step_time.seconds),
    )
    for what, value in named:
        if isinstance(value, NotMeasured):
            yield inline(f"{what}: {sentence(value.not_measured)}")


def followups_section(facts: PostmortemFacts) -> Section:
    """Bounded tasks that follow from the facts; nothing that would be true of every incident."""
    items = list(_followups(facts))
    block = bullets(items) if items else paragraph("None follows from the evidence.")
    return Section("follow-ups", "Follow-ups", (block,))


def _followups(facts: PostmortemFacts) -> Iterator[Words]:
    if facts.not_run:
        yield inline("Take the steps that are left: ", code("spike walk"), ".")
    yield from _open_questions(facts)
    incident, after = facts.case.incident, facts.impact.steps_after_onset
    if incident is not None and isinstance(after, int) and after > 0:
        first = signal_words(incident.first_signal)
        early = f"it left its baseline {plural(after, 'step')} before the record ends"
        yield inline(f"Watch {first} while training (", code("spike watch"), f"): {early}.")
    for condition in facts.gate.conditions if facts.gate is not None else ():
        if condition.state is not ConditionState.HOLDS and not condition.waived_by:
            verb = "Make" if condition.state is ConditionState.FAILS else "Measure"
            yield inline(
                f"{verb} ", code(name(condition.name), GATE), f" hold before resuming. {sentence(condition.statement)}"
            )
    if facts.gate is not None and facts.gate.is_open:
        yield inline("Follow the resumed run with ", code("spike watch"), ", the rollback command at hand.")
    for path, why in facts.case.not_pinned:
        yield inline("Examine checkpoint ", code(name(path)), f": {sentence(why)}")


def _open_questions(facts: PostmortemFacts) -> Iterator[Words]:
    verdict = facts.verdict
    if facts.licence is not None and facts.licence.grade is Grade.REFUSED:
        yield inline(
            "Make replays of this run reproduce its record (",
            code(LICENCE, LICENCE),
            f"). {sentence(facts.licence.reason)}",
        )
    if verdict is None:
        return
    for suggestion in verdict.next:
        trial = code(name(suggestion.trial), VERDICT)
        yield inline("Run ", trial, f", which would settle more. Not run so far: {sentence(suggestion.because)}")
    if verdict.status is Status.SUPPORTED and not verdict.next:
        yield inline(
            "Find the intervention that would establish ", code(name(verdict.cause), VERDICT), ", or rule it out."
        )
