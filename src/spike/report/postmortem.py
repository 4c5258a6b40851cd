"""What does the postmortem of a case say? The same bytes for the same case, in Markdown and as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping

from spike.report.cause import cause_section
from spike.report.course import detection_section, impact_section, timeline_section
from spike.report.document import Document, Inline, Tone, badge, code, inline, link
from spike.report.evidence import evidence_section, record_section
from spike.report.facts import CASE, PostmortemFacts
from spike.report.gaps import followups_section, gaps_section
from spike.report.markdown import render_markdown
from spike.report.page import render_page
from spike.report.phrases import STATUS_TONE
from spike.report.recovery import recovery_section
from spike.report.summary import headline, summary_section
from spike.report.text import name, when
from spike.report.trials import trials_section


def compose(facts: PostmortemFacts) -> Document:
    """The report as a document, before it takes a format."""
    sections = (
        summary_section(facts),
        impact_section(facts),
        timeline_section(facts),
        detection_section(facts),
        evidence_section(facts),
        trials_section(facts),
        cause_section(facts),
        recovery_section(facts),
        gaps_section(facts),
        followups_section(facts),
        record_section(facts),
    )
    return Document(headline(facts), tuple(_meta(facts)), sections)


def _meta(facts: PostmortemFacts) -> list[tuple[str, Inline]]:
    case = facts.case
    people = dict.fromkeys(name(act.operator) for act in facts.acts) or {name(case.operator): None}
    return [
        ("Case", inline(link(name(case.id), CASE))),
        ("Run", inline(code(name(case.run.directory)))),
        ("Opened (UTC)", inline(when(case.created))),
        ("Operators", inline(", ".join(people))),
        ("Verdict", inline(_verdict_badge(facts))),
        ("Gate", inline(_gate_badge(facts))),
        ("spike", inline(name(case.spike_version))),
    ]


def _verdict_badge(facts: PostmortemFacts) -> Inline:
    if facts.verdict is None:
        return inline(badge("none yet", Tone.QUIET))
    return inline(badge(facts.verdict.status.value, STATUS_TONE[facts.verdict.status]))


def _gate_badge(facts: PostmortemFacts) -> Inline:
    if facts.gate is None:
        return inline(badge("not run", Tone.QUIET))
    return inline(badge("open", Tone.GOOD) if facts.gate.is_open else badge("closed", Tone.BAD))


def render_postmortem(facts: PostmortemFacts) -> str:
    """The postmortem as Markdown; figures are linked as figures/<name>.svg."""
    return render_markdown(compose(facts))


def render_html(facts: PostmortemFacts, figures: Mapping[str, str]) -> str:
    """The postmortem as one HTML file with `figures` (SVG text by name) drawn inside."""
    return render_page(compose(facts), figures)
