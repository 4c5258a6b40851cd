"""With which change may the run go on, and how does one go back?"""

from __future__ import annotations

from collections.abc import Iterator

from spike.domain.gate import Condition, ConditionState, GateDecision
from spike.report.document import Block, Command, Section, Tone, Words, badge, code, inline, paragraph, table
from spike.report.facts import GATE, PostmortemFacts
from spike.report.sources import prose, sources
from spike.report.text import name, visible

STATE_TONE = {ConditionState.HOLDS: Tone.GOOD, ConditionState.FAILS: Tone.BAD, ConditionState.NOT_MEASURED: Tone.WARN}


def recovery_section(facts: PostmortemFacts) -> Section:
    """The remedy, the contract, the causal note, both commands."""
    gate = facts.gate
    if gate is None:
        return Section("recovery", "Remedy and gate", (paragraph("No remedy has passed the gate: it was not run."),))
    return Section("recovery", "Remedy and gate", tuple(_blocks(gate, facts)))


def _blocks(gate: GateDecision, facts: PostmortemFacts) -> Iterator[Block]:
    state = badge("open", Tone.GOOD) if gate.is_open else badge("closed", Tone.BAD)
    remedy = f"The one change: {gate.remedy}" if gate.remedy else "No remedy was chosen."
    yield paragraph(state, " ", prose(remedy, facts), " ", code(GATE, GATE))
    if gate.causal_note:
        yield paragraph("Why the recovery is causal and not a coincidence: ", prose(gate.causal_note, facts))
    yield table(
        ("Condition", "State", "Measured against the bound", "Evidence"), [_row(c, facts) for c in gate.conditions]
    )
    if gate.trials:
        yield paragraph("Windows of the gate: ", sources(gate.trials, facts), ".")
    if gate.resume_command:
        yield paragraph("Resume with" if gate.is_open else "To resume once the gate is open:")
        yield Command(visible(gate.resume_command))
    if gate.rollback_command:
        yield paragraph("Roll back with")
        yield Command(visible(gate.rollback_command))


def _row(condition: Condition, facts: PostmortemFacts) -> tuple[Words, ...]:
    state: Words = badge(condition.state.value, STATE_TONE[condition.state])
    if condition.waived_by:
        state = inline(state, f" waived by {name(condition.waived_by)}")
    return code(name(condition.name)), state, prose(condition.statement, facts), sources(condition.evidence, facts)
