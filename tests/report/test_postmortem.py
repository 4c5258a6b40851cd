"""Does the postmortem say what the case holds, all of it, and nothing that a hostile name could add?"""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from spike.actions.report import write_report
from spike.actions.status import shipped_pages
from spike.domain.facts import VOCABULARY, Fact
from spike.domain.measured import NotMeasured
from spike.domain.timeline import StepTime, count_impact
from spike.domain.trial import Grade, Licence
from spike.domain.verdict import CauseClass, Place, Status, Suggestion, Verdict
from spike.report.postmortem import compose, render_html, render_postmortem

GOLDEN = Path(__file__).with_name("golden") / "postmortem.md"
HOSTILE = "x\x1b[31m|`<script>alert(1)</script>](javascript:alert(2))\n# owned\u202e\"'{{7*7}}"


def section(text: str, title: str) -> str:
    """The body of one section of the Markdown."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, title
    return found[1]


def test_the_report_of_a_whole_case_is_the_golden_one(facts: Any) -> None:
    text = render_postmortem(facts)
    if os.environ.get("SPIKE_WRITE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "SPIKE_WRITE_GOLDEN=1 writes the new one; read the difference"


def test_both_formats_have_the_sections_in_the_same_order(facts: Any) -> None:
    document = compose(facts)
    titles = [s.title for s in document.sections]
    assert re.findall(r"^## (.*)$", render_postmortem(facts), re.M) == titles
    page = render_html(facts, {})
    assert [html.unescape(t) for t in re.findall(r"<h2>(.*?)</h2>", page)] == titles
    assert re.findall(r'<section id="(.*?)">', page) == [s.id for s in document.sections]


@pytest.mark.parametrize("through", ["freeze", "check", "replay", "bisect", "gate"])
def test_every_link_leads_to_a_file_of_the_case(build_case: Callable[..., Any], through: str) -> None:
    case = build_case(through=through)
    write_report(case, shipped_pages())
    markdown = (case.path / "postmortem.md").read_text()
    page = (case.path / "postmortem.html").read_text()
    targets = set(re.findall(r"\]\(([^)]+)\)", markdown))
    targets |= {t for t in re.findall(r'href="([^"]+)"', page) if not t.startswith("#")}
    assert len(targets) > 5
    missing = [t for t in targets if not (case.path / unquote(t)).exists()]
    assert missing == []


def test_the_same_case_gives_the_same_bytes_in_another_place(build_case: Callable[..., Any], tmp_path: Path) -> None:
    from spike.casefile.case import open_case

    case = build_case()
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(case.path, moved)
    files = write_report(case, shipped_pages()).files
    assert {"postmortem.md", "postmortem.html", "figures/signals.svg", "figures/trials.svg"} == set(files)
    first = {f: (case.path / f).read_bytes() for f in files}
    write_report(case, shipped_pages())
    assert {f: (case.path / f).read_bytes() for f in files} == first
    write_report(open_case(moved), shipped_pages())
    assert {f: (moved / f).read_bytes() for f in files} == first


def test_a_partial_case_says_which_steps_were_not_taken(build_case: Callable[..., Any]) -> None:
    case = build_case(through="check")
    written = write_report(case, shipped_pages())
    text = (case.path / "postmortem.md").read_text()
    assert written.not_run == ("replay", "bisect", "gate")
    assert "Not taken: replay, bisect, gate." in section(text, "Summary")
    assert "`spike bisect`: not taken" in section(text, "What could not be measured")
    assert "cause not determined" in text.splitlines()[0]
    assert "No trial was run." in section(text, "What was tried")
    assert not (case.path / "figures" / "trials.svg").exists()


def test_every_trial_stands_in_the_report_with_change_outcome_and_effect(facts: Any) -> None:
    tried = section(render_postmortem(facts), "What was tried")
    for result in facts.trials:
        row = next(line for line in tried.splitlines() if line.startswith(f"| [`{result.spec.id}`]"))
        assert f"**{result.outcome.kind.value}**" in row
        assert f"(trials/{result.spec.id}/outcome.json)" in row
        if result.spec.intervention is not None:
            assert result.spec.intervention.name in row
            assert result.spec.intervention.factor.value in row
    assert "| **no** |" in next(line for line in tried.splitlines() if "T009-safe-kernels" in line)
    assert "`T013-reseed`: It was started and has not come to an end." in tried


def test_an_undeclared_difference_is_shown_beside_the_trial(facts: Any) -> None:
    from spike.domain.trial import Factor, FactorDifference

    first, *others = facts.trials
    extra = FactorDifference(Factor.RNG, "step 221 rank 0", "aa", "bb")
    changed = replace(facts, trials=(replace(first, differences=(extra,)), *others))
    row = next(line for line in render_postmortem(changed).splitlines() if line.startswith("| [`T001-replay`]"))
    assert "| rng |" in row


def test_everything_that_was_not_measured_is_listed_with_its_reason(facts: Any) -> None:
    lost = count_impact(facts.case, None, StepTime(NotMeasured("no replay shows a time per step")), ())
    text = section(render_postmortem(replace(facts, impact=lost)), "What could not be measured")
    for line in (
        "[`logs/rank3.log`](evidence/manifest.json): not kept. Permission denied.",
        "checkpoint `/runs/owl-7b/out/step-000100`: not used.",
        "[`hardware.events`](checks.json): No hardware log was given",
        "[`T009-safe-kernels`](trials/T009-safe-kernels/outcome.json): untestable.",
        "[`held-out`](gate.json): spike.yaml has no holdout command. Waived by grace.",
        "steps to train again: No signal was logged.",
        "time per step: No replay shows a time per step.",
    ):
        assert line in text


@pytest.mark.parametrize("name", sorted(VOCABULARY))
def test_an_unmeasured_fact_of_any_name_is_never_shown_as_a_pass(facts: Any, name: str) -> None:
    unmeasured = Fact(name, "not-measured", "nobody looked")
    text = render_postmortem(replace(facts, checks=None, facts=(unmeasured,)))
    assert "Nobody looked." in section(text, "What could not be measured")
    assert name not in section(text, "Evidence")


def test_an_undetermined_verdict_names_no_cause_and_says_what_would_settle_it(facts: Any) -> None:
    open_verdict = Verdict(
        Status.UNDETERMINED,
        CauseClass.NONE,
        "",
        None,
        "the trials leave two hypotheses, and none is confirmed",
        inseparable=("system/transient-corruption", "numerics/kernel-fault"),
        next=(Suggestion("other-device", "there is no second GPU"),),
    )
    text = render_postmortem(replace(facts, verdict=open_verdict, gate=None))
    assert text.splitlines()[0].endswith("cause not determined")
    assert "system/transient-corruption" in section(text, "Why this cause and not the others")
    assert "Run [`other-device`](verdict.json), which would settle more." in section(text, "Follow-ups")
    assert "it was not run" in section(text, "Remedy and gate")


def test_a_refused_licence_is_no_quiet_matter(facts: Any) -> None:
    refused = Licence(Grade.REFUSED, "the loss parts from the record at step 201", ("loss",), 0, 201)
    text = render_postmortem(replace(facts, licence=refused, noise=None))
    assert "Refused: no outcome of a trial counts." in section(text, "What was tried")
    assert "Make replays of this run reproduce its record" in section(text, "Follow-ups")


def test_the_place_of_the_cause_is_told_as_narrow_as_it_was_found(facts: Any) -> None:
    place = Place(rank=3, module="layers.7.attn", tensor="layers.7.attn.qkv.weight", commit="4f2a91c", key="optim.lr")
    text = section(
        render_postmortem(replace(facts, verdict=replace(facts.verdict, where=place))),
        "Why this cause and not the others",
    )
    for what, where in (("rank", "3"), ("module", "layers.7.attn"), ("commit", "4f2a91c"), ("config key", "optim.lr")):
        assert f"| {what} | [`{where}`](verdict.json) |" in text


def hostile(facts: Any) -> Any:
    """The case with a hostile string wherever a string comes from a file or a person."""
    trial = facts.trials[0]
    return replace(
        facts,
        case=replace(facts.case, operator=HOSTILE, not_pinned=((HOSTILE, HOSTILE),)),
        acts=tuple(replace(a, operator=HOSTILE, command=HOSTILE, summary=HOSTILE) for a in facts.acts),
        checks=replace(facts.checks, tables=((HOSTILE, ((HOSTILE, "n"), (HOSTILE, "1"))),)),
        facts=tuple(replace(f, statement=HOSTILE, evidence=(HOSTILE,)) for f in facts.facts),
        trials=(replace(trial, outcome=replace(trial.outcome, reason=HOSTILE), ended=HOSTILE),),
        verdict=replace(
            facts.verdict,
            cause=HOSTILE,
            because=HOSTILE,
            where=Place(module=HOSTILE, tensor=HOSTILE),
            evidence=(HOSTILE,),
        ),
        gate=replace(facts.gate, remedy=HOSTILE, resume_command=HOSTILE, rollback_command="`" * 5 + HOSTILE),
        gaps=((HOSTILE, HOSTILE),),
        evidence=(replace(facts.evidence[0], path=f"evidence/{HOSTILE}", origin=HOSTILE),),
    )


def test_no_hostile_name_reaches_the_page_as_markup(facts: Any) -> None:
    page = render_html(hostile(facts), {})
    assert "<script" not in page.lower()
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "javascript:" not in "".join(re.findall(r'href="([^"]*)"', page))
    assert html.unescape(page).count("{{7*7}}") > 10


def parsed(markdown: str) -> list[Any]:
    """Every token of the Markdown, as a CommonMark parser with tables and raw HTML sees it."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown)
    return [t for token in tokens for t in (token, *(token.children or ()))]


def test_no_hostile_name_breaks_the_markdown(facts: Any) -> None:
    attacked = render_postmortem(hostile(facts))
    assert "\x1b" not in attacked
    assert "\u202e" not in attacked
    tokens = parsed(attacked)
    assert [t.content for t in tokens if t.type in ("html_inline", "html_block")] == []
    hrefs = [t.attrs["href"] for t in tokens if t.type == "link_open"]
    assert len(hrefs) > 20
    assert [h for h in hrefs if ":" in h.replace("%3A", "")] == []
    assert [t.tag for t in tokens if t.type == "heading_open"] == ["h1", *["h2"] * len(compose(facts).sections)]


def test_a_hostile_name_stays_in_its_cell(facts: Any) -> None:
    rows = [line for line in render_postmortem(hostile(facts)).splitlines() if "journal:" in line]
    assert len(rows) == len(facts.acts)
    header = "| Time (UTC) | Who | Command | Result | Source |\n| --- | --- | --- | --- | --- |\n"
    for row in rows:
        tokens = parsed(header + row)
        assert sum(t.type == "td_open" for t in tokens) == 5
        last = next(t for t in reversed(tokens) if t.type == "inline")
        assert last.content.startswith("[`journal:")


def test_the_page_asks_nothing_of_the_network_and_runs_nothing(facts: Any, drawn: Any) -> None:
    page = render_html(facts, drawn)
    assert "default-src 'none'" in page
    assert not re.findall(r"<(?:script|link|img|iframe|object)\b", page)
    assert re.findall(r'(?:src|href)="(https?:[^"]*)"', page) == []
    assert page.count("<svg") == 2


def test_a_report_that_is_older_than_a_step_it_stands_on_says_so(build_case: Callable[..., Any]) -> None:
    case = build_case()
    case.record("replay", "licence refused; outcome untestable", 0, ("licence.json",))
    write_report(case, shipped_pages())
    text = (case.path / "postmortem.md").read_text()
    assert "`spike bisect`: older than the last replay" in section(text, "What could not be measured")
