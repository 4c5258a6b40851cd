"""Why this cause and not the others?"""

from __future__ import annotations

from collections.abc import Iterator

from spike.domain.verdict import Finding, Status, Strength, Verdict
from spike.report.document import Block, Section, Tone, Words, badge, bullets, code, inline, paragraph, table
from spike.report.facts import VERDICT, PostmortemFacts
from spike.report.phrases import STATUS_TONE, place_words
from spike.report.sources import prose, sources
from spike.report.summary import verdict_words
from spike.report.text import name, plural

STRENGTH_TONE = {Strength.INTERVENED: Tone.GOOD, Strength.ASSOCIATED: Tone.WARN, Strength.OBSERVED: Tone.QUIET}


def cause_section(facts: PostmortemFacts) -> Section:
    """The verdict, what it stands on, and what speaks against every other hypothesis."""
    verdict = facts.verdict
    if verdict is None:
        return Section("cause", "Cause", (paragraph("The causes were not bisected, so there is no verdict."),))
    blocks: list[Block] = [_standing(verdict, facts)]
    blocks += _place_blocks(verdict)
    blocks += _finding_blocks(verdict, facts)
    blocks += _other_blocks(verdict, facts)
    return Section("cause", "Why this cause and not the others", tuple(blocks))


def _standing(verdict: Verdict, facts: PostmortemFacts) -> Block:
    """Status and cause, and the evidence under them."""
    if verdict.status is Status.UNDETERMINED or not verdict.cause:
        return paragraph(*verdict_words(verdict, facts))
    stands = inline(", standing on ", sources(verdict.evidence, facts)) if verdict.evidence else inline()
    state = badge(verdict.status.value, STATUS_TONE[verdict.status])
    return paragraph(state, " ", code(name(verdict.cause), VERDICT), stands, ".")


def _place_blocks(verdict: Verdict) -> Iterator[Block]:
    places = place_words(verdict.where)
    if verdict.step is not None:
        places = (("first acting at step", f"{verdict.step:,}"), *places)
    if places:
        rows = [(what, inline(code(where, VERDICT))) for what, where in places]
        yield table(("Place", "Where the cause acts"), rows)
    elif verdict.status is not Status.UNDETERMINED:
        yield paragraph("The cause was not narrowed down to a place.")


def _finding_blocks(verdict: Verdict, facts: PostmortemFacts) -> Iterator[Block]:
    """The findings; a plain observation that the table of facts already tells is counted and not repeated."""
    told = {f.statement for f in facts.facts}
    shown = tuple(f for f in verdict.findings if f.strength is not Strength.OBSERVED or f.statement not in told)
    if shown:
        yield _finding_table(shown, facts)
    if len(shown) < len(verdict.findings):
        fit = plural(len(verdict.findings) - len(shown), "observed fact")
        yield paragraph(f"{fit} besides, in the table of facts above.")


def _finding_table(findings: tuple[Finding, ...], facts: PostmortemFacts) -> Block:
    order = {Strength.INTERVENED: 0, Strength.ASSOCIATED: 1, Strength.OBSERVED: 2}
    rows = [
        (badge(f.strength.value, STRENGTH_TONE[f.strength]), prose(f.statement, facts), sources(f.evidence, facts))
        for f in sorted(findings, key=lambda f: order[f.strength])
    ]
    return table(("Strength", "Finding", "Evidence"), rows)


def _other_blocks(verdict: Verdict, facts: PostmortemFacts) -> Iterator[Block]:
    if verdict.rejected:
        rows: list[tuple[Words, ...]] = [(code(name(r.cause)), prose(r.because, facts)) for r in verdict.rejected]
        yield table(("Rejected", "Because"), rows)
    if verdict.inseparable:
        yield paragraph("The trials so far cannot tell these apart:")
        yield bullets(code(name(cause)) for cause in verdict.inseparable)
    if verdict.next:
        yield paragraph(f"{plural(len(verdict.next), 'trial')} would settle more; see the follow-ups.")
