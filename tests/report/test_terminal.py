"""Is what an operator sees complete, plain where there is no terminal, and safe for one?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from spike.domain.eliminate import Evidence
from spike.domain.playbook import Confirmation, Expectation, Playbook
from spike.domain.runbook import Ran, stand
from spike.domain.trial import Factor, Intervention, OutcomeKind
from spike.domain.verdict import CauseClass, Rejected
from spike.knowledge.runbook import load_runbook
from spike.knowledge.shipped import shipped_directory
from spike.report.phrases import change_words
from spike.report.terminal import explain_text, labelled, steps_text, table_text, trials_text, verdict_text

HOSTILE = "a\x1b[2J\x07b\u202e[bold red]c[/]"


def playbook(id_: str, **trials: str) -> Playbook:
    expected = tuple((k.replace("_", "-"), Expectation(v)) for k, v in trials.items())
    return Playbook(
        id_, CauseClass(id_.split("/")[0]), "claim", ("look",), (), (), expected, (Confirmation(("x",)),), (), ()
    )


def test_without_a_terminal_there_is_neither_colour_nor_wrapping(facts: Any) -> None:
    text = trials_text(facts.trials, on_terminal=False)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert len(lines) == 2 + len(facts.trials)
    row = next(line for line in lines if line.startswith("T007-clip"))
    assert re.split(r"\s{2,}", row) == [
        "T007-clip",
        "clip (steps 222-223, max_norm=0.5)",
        "different",
        "34%",
        "yes",
        "1 min 43 s",
    ]


def test_on_a_terminal_no_line_is_wider_than_it(facts: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for text in (trials_text(facts.trials, on_terminal=True), verdict_text(facts.verdict, on_terminal=True)):
        assert "\x1b[" in text
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in text.splitlines()) <= 70


def test_a_control_character_in_a_name_is_shown_and_never_sent(facts: Any) -> None:
    trial = replace(facts.trials[0], spec=replace(facts.trials[0].spec, id=HOSTILE))
    verdict = replace(facts.verdict, cause=HOSTILE, because=HOSTILE, rejected=(Rejected(HOSTILE, HOSTILE),))
    for text in (
        trials_text([trial], on_terminal=False),
        verdict_text(verdict, on_terminal=False),
        labelled([(HOSTILE, HOSTILE)], on_terminal=False),
    ):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
        assert "[bold red]c[/]" in text


def test_a_verdict_tells_status_place_findings_rejections_and_what_would_help(facts: Any) -> None:
    text = verdict_text(facts.verdict, on_terminal=False)
    assert "verdict     established: data/corrupt-batch at step 222" in text
    assert "samples 3, 7 of the batch, file shard-00017.bin" in text
    assert text.count("[intervened]") == 2
    assert text.count("\nrejected") == 3
    assert "safe-kernels: The launch command has no switch for it" in text


def test_the_explanation_shows_where_expectation_and_outcome_clash(facts: Any) -> None:
    books = (
        playbook("data/corrupt-batch", replay="reproduced", control_batch="absent"),
        playbook("numerics/kernel-fault", replay="reproduced", control_batch="reproduced"),
    )
    results = {"replay": facts.trials[0], "control-batch": facts.trials[1]}
    outcomes = {name: r.outcome.kind for name, r in results.items()}
    assert outcomes == {"replay": OutcomeKind.REPRODUCED, "control-batch": OutcomeKind.ABSENT}
    evidence = Evidence(outcomes=outcomes, trial_ids={n: r.spec.id for n, r in results.items()})
    text = explain_text(books, evidence, results, on_terminal=False)
    rows = {re.split(r"\s{2,}", line)[0]: re.split(r"\s{2,}", line) for line in text.splitlines()}
    assert rows["hypothesis"] == ["hypothesis", "replay", "control-batch", "stands"]
    assert rows["data/corrupt-batch"] == ["data/corrupt-batch", "reproduced", "absent", "yes"]
    assert rows["numerics/kernel-fault"] == ["numerics/kernel-fault", "reproduced", "not reproduced", "no"]
    assert "numerics/kernel-fault: T003-control-batch was absent, and it would have been reproduced." in text


def test_the_steps_show_done_next_optional_and_what_is_due_again() -> None:
    pages = load_runbook(shipped_directory("runbook"))
    have = {"case.yaml", "evidence/manifest.json", "checks.json", "licence.json", "verdict.json"}
    text = steps_text(pages, stand(pages, have), on_terminal=False)
    states = {line.split()[1]: line.split()[2] for line in text.splitlines()[1:]}
    assert states == {
        "detect": "done",
        "freeze": "done",
        "check": "done",
        "replay": "done",
        "branch": "optional",
        "bisect": "done",
        "gate": "next",
        "report": "to",
    }
    again = stand(pages, have, [Ran("bisect", 0), Ran("replay", 0)])
    assert "next, again, replay is newer" in steps_text(pages, again, on_terminal=False)


def test_a_table_without_rows_is_its_header() -> None:
    assert table_text(("a", "b"), [], on_terminal=False).split() == ["a", "b"]


def test_a_change_is_told_with_its_steps_and_without_lists_of_files() -> None:
    donors = tuple(f"{step}:0:0:/cases/x/trials/T001-replay/batches/{step}.pt" for step in range(220, 225))
    change = Intervention(
        "mask-samples", Factor.BATCH, (221, 220, 222), (("keep", tuple(range(8, 24))), ("donors", donors))
    )
    assert change_words(change) == "mask-samples (steps 220-222, keep=8-23)"
    assert change_words(None) == "nothing"
