"""What was tried, did each change act, and what became of the incident?"""

from __future__ import annotations

from collections.abc import Iterator

from spike.domain.trial import Grade, TrialResult
from spike.report.document import (
    Block,
    Figure,
    Section,
    Tone,
    Words,
    badge,
    bullets,
    code,
    inline,
    link,
    paragraph,
    table,
)
from spike.report.facts import LICENCE, PostmortemFacts
from spike.report.phrases import (
    OUTCOME_TONE,
    change_words,
    effect_words,
    licence_words,
    noise_words,
    share_words,
)
from spike.report.sources import prose, source_of_trial
from spike.report.text import duration, name, sentence, visible


def trials_section(facts: PostmortemFacts) -> Section:
    """The licence, the noise floor, then every trial."""
    blocks: list[Block] = list(_licence_blocks(facts))
    if not facts.trials and not facts.unjudged:
        blocks.append(paragraph("No trial was run."))
    if facts.trials:
        blocks.append(_figure())
        blocks.append(_trial_table(facts))
        blocks.append(bullets(_reason(t, facts) for t in facts.trials))
    if facts.unjudged:
        blocks.append(paragraph("Without an outcome:"))
        blocks.append(bullets(inline(code(name(i)), f": {sentence(why)}") for i, why in facts.unjudged))
    return Section("trials", "What was tried", tuple(blocks))


def _licence_blocks(facts: PostmortemFacts) -> Iterator[Block]:
    licence = facts.licence
    if licence is None:
        if facts.trials:
            yield paragraph("No replay was licensed, so no outcome of these trials counts.")
        return
    tone = Tone.BAD if licence.grade is Grade.REFUSED else Tone.GOOD
    state = badge(f"licence: {licence.grade.value}", tone)
    yield paragraph(state, f" {licence_words(licence)} ", prose(licence.reason, facts), " ", code(LICENCE, LICENCE))
    if facts.noise is not None:
        yield paragraph(f"Noise floor: {noise_words(facts.noise)} ", code(LICENCE, LICENCE))


def _figure() -> Block:
    caption = (
        "How much of the incident was left in each trial: 0 is the baseline, 1 the incident as recorded. "
        "Dotted lines: a trial below the left one is absent, above the right one reproduced. "
        "Each value is in the trial's outcome.json."
    )
    return Figure("trials", "Outcome of every trial", inline(caption))


def _trial_table(facts: PostmortemFacts) -> Block:
    header = ("Trial", "Role", "Change", "Outcome", "Left", "Took effect", "Also differs", "Time")
    return table(header, [_row(t, facts) for t in facts.trials], numeric=(4, 7))


def _row(result: TrialResult, facts: PostmortemFacts) -> tuple[Words, ...]:
    spec, outcome = result.spec, result.outcome
    change = inline(change_words(spec.intervention))
    if spec.intervention is not None:
        change = inline(change_words(spec.intervention), f" [{spec.intervention.factor.value}]")
    elif spec.commit:
        change = inline("commit ", code(name(spec.commit)[:12]), " [code]")
    return (
        source_of_trial(name(spec.id), spec.id),
        visible(spec.role),
        change,
        badge(outcome.kind.value, OUTCOME_TONE[outcome.kind]),
        link(share_words(result), f"trials/{spec.id}/outcome.json"),
        _effect(result),
        _also(result),
        duration(result.seconds),
    )


def _effect(result: TrialResult) -> Words:
    return badge("no", Tone.BAD) if result.took_effect is False else effect_words(result)


def _also(result: TrialResult) -> str:
    """Observed differences beyond the declared one: a clean trial has none."""
    declared = result.spec.intervention.factor if result.spec.intervention is not None else None
    others = dict.fromkeys(d.factor.value for d in result.differences if d.factor is not declared)
    return ", ".join(others) if others else "nothing"


def _reason(result: TrialResult, facts: PostmortemFacts) -> Words:
    purpose = f" {sentence(result.spec.purpose)}" if result.spec.purpose else ""
    return inline(
        source_of_trial(name(result.spec.id), result.spec.id), f":{purpose} ", prose(result.outcome.reason, facts)
    )
