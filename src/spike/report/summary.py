"""What happened and what is the answer, for a reader who reads nothing else?"""

from __future__ import annotations

from collections.abc import Iterator

from spike.domain.measured import NotMeasured
from spike.domain.signals import LOSS
from spike.domain.trial import OutcomeKind
from spike.domain.verdict import Status, Verdict
from spike.report.document import Block, Section, Tile, Tiles, Tone, Words, badge, code, inline, link, paragraph
from spike.report.facts import CASE, GATE, LICENCE, SIGNALS, VERDICT, PostmortemFacts
from spike.report.phrases import (
    KIND_WORDS,
    STATUS_TONE,
    incident_words,
    place_phrase,
    recovery_words,
    signal_words,
    usual_value,
)
from spike.report.sources import prose
from spike.report.text import device_hours, name, number, plural, visible


def headline(facts: PostmortemFacts) -> str:
    """The title of the report."""
    incident, verdict = facts.case.incident, facts.verdict
    what = "Evidence without an incident in the signals"
    if incident is not None:
        words = KIND_WORDS[incident.kind]
        what = f"{words[0].upper()}{words[1:]} at step {incident.onset_step:,}"
    if verdict is None or verdict.status is Status.UNDETERMINED or not verdict.cause:
        return f"{what}, cause not determined"
    return f"{what}: {name(verdict.cause)}"


def summary_section(facts: PostmortemFacts) -> Section:
    """The answer in four sentences and a row of key figures."""
    blocks: list[Block] = []
    if facts.not_run:
        steps = ", ".join(facts.not_run)
        text = f" Not taken: {steps}. This report says nothing about what only these steps can show."
        blocks.append(paragraph(badge("partial case", Tone.WARN), text))
    blocks += [paragraph(*words) for words in _sentences(facts)]
    tiles = tuple(_tiles(facts))
    return Section("summary", "Summary", (*blocks, Tiles(tiles)) if tiles else tuple(blocks))


def _sentences(facts: PostmortemFacts) -> Iterator[tuple[Words, ...]]:
    incident = facts.case.incident
    if incident is None:
        yield ("The case was opened without an incident in the signals.",)
    else:
        yield (f"{incident_words(incident)} {recovery_words(incident)} ", code("case.yaml", CASE))
    if facts.verdict is not None:
        yield verdict_words(facts.verdict, facts)
    if facts.gate is not None:
        state = badge("gate open", Tone.GOOD) if facts.gate.is_open else badge("gate closed", Tone.BAD)
        remedy = f"Remedy: {facts.gate.remedy}" if facts.gate.remedy else "No remedy was chosen."
        yield (state, " ", prose(remedy, facts), " ", code("gate.json", GATE))


def verdict_words(verdict: Verdict, facts: PostmortemFacts) -> tuple[Words, ...]:
    """Status, cause, place, and why the status is what it is."""
    state = badge(verdict.status.value, STATUS_TONE[verdict.status])
    if verdict.status is Status.UNDETERMINED or not verdict.cause:
        return (
            state,
            " The cause is not determined. ",
            prose(verdict.because, facts),
            " ",
            code("verdict.json", VERDICT),
        )
    first = f" It first acts at step {verdict.step:,}." if verdict.step is not None else ""
    where = place_phrase(verdict.where)
    return (
        state,
        f" The cause is of the class {verdict.cause_class.value}: ",
        code(name(verdict.cause), VERDICT),
        f" ({where})." if where else ".",
        f"{first} ",
        prose(verdict.because, facts),
    )


def _tiles(facts: PostmortemFacts) -> Iterator[Tile]:
    incident, impact = facts.case.incident, facts.impact
    if incident is not None:
        first = signal_words(incident.first_signal)
        yield Tile("Onset", inline(link(f"step {incident.onset_step:,}", CASE)), inline(f"{first} first"))
        loss = incident.signature(LOSS)
        if loss is not None:
            text = f"{number(usual_value(loss))} → {number(loss.peak_value)}"
            yield Tile("Loss", inline(link(text, CASE)), inline(f"peak at step {loss.peak_step:,}"))
    if not isinstance(impact.steps, NotMeasured):
        note = "since the last good checkpoint"
        yield Tile("To train again", inline(link(plural(impact.steps, "step"), SIGNALS)), inline(note))
    if not isinstance(impact.device_hours, NotMeasured):
        value = inline(link(device_hours(impact.device_hours), impact.step_time.source))
        yield Tile("GPU time lost", value, inline(_price_words(facts)))
    if facts.licence is not None:
        note = plural(facts.licence.num_steps, "healthy step")
        yield Tile("Replay licence", inline(link(facts.licence.grade.value, LICENCE)), inline(note))
    if facts.trials:
        shown = sum(t.outcome.kind is OutcomeKind.REPRODUCED for t in facts.trials)
        yield Tile("Trials", inline(number(len(facts.trials))), inline(f"{number(shown)} reproduced the incident"))


def _price_words(facts: PostmortemFacts) -> str:
    price = facts.impact.price
    if isinstance(price, NotMeasured):
        return f"on {plural(facts.case.run.devices, 'device')}"
    return f"{price:,.2f} {visible(facts.impact.currency)}"
