"""Is the next step decided from what a case holds, whoever left it there?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.errors import ExitCode
from spike.domain.gate import GateDecision
from spike.domain.runbook import Page, Ran, next_step, outcome_code, stand
from spike.domain.verdict import CauseClass, Status, Verdict


def page(number: int, id_: str, produces: str = "", needs: str = "", *, optional: bool = False) -> Page:
    return Page(
        id=id_,
        number=number,
        title=id_,
        run=f"spike {id_}",
        needs=tuple(needs.split()),
        produces=tuple(produces.split()),
        exits=((0, "Fine."),),
        undo="",
        cost="",
        why="",
        do="",
        expect="",
        if_not="",
        optional=optional,
    )


PAGES = (
    page(1, "detect"),
    page(2, "freeze", "case.yaml evidence/manifest.json"),
    page(3, "check", "checks.json", "case.yaml"),
    page(4, "replay", "licence.json", "case.yaml"),
    page(5, "branch", optional=True),
    page(6, "bisect", "verdict.json", "case.yaml"),
    page(7, "gate", "gate.json", "verdict.json"),
    page(8, "report", "postmortem.md", "case.yaml"),
)
ARTEFACTS = tuple(a for p in PAGES for a in p.produces)


def next_id(*present: str, history: tuple[Ran, ...] = ()) -> str:
    found = next_step(PAGES, present, history)
    return found.id if found is not None else ""


def test_without_a_case_the_first_step_comes_first() -> None:
    assert next_id() == "detect"


def test_a_step_that_writes_nothing_is_done_when_a_later_one_is() -> None:
    found = stand(PAGES, ("case.yaml", "evidence/manifest.json"))
    assert found.done == ("detect", "freeze")
    assert found.next is not None
    assert found.next.id == "check"


def test_a_step_of_which_only_half_is_there_is_not_done() -> None:
    assert next_id("case.yaml") == "freeze"


def test_an_optional_step_is_never_the_next_one() -> None:
    assert next_id("case.yaml", "evidence/manifest.json", "checks.json", "licence.json") == "bisect"


def test_everything_done_leaves_no_next_step() -> None:
    assert stand(PAGES, ARTEFACTS).next is None


def test_the_next_step_names_what_it_lacks() -> None:
    pages = tuple(p for p in PAGES if p.id != "bisect")
    present = ("case.yaml", "evidence/manifest.json", "checks.json", "licence.json")
    assert stand(pages, present).missing == ("verdict.json",)


def test_a_verdict_older_than_its_replay_is_due_again() -> None:
    history = (Ran("replay", 0), Ran("bisect", 0), Ran("gate", 0), Ran("report", 0), Ran("replay", 4))
    found = stand(PAGES, ARTEFACTS, history)
    assert found.stale == (("bisect", "replay"), ("gate", "replay"), ("report", "replay"))
    assert found.next is not None
    assert found.next.id == "bisect"
    assert "bisect" not in found.done


def test_a_step_that_failed_when_repeated_makes_nothing_stale() -> None:
    history = (Ran("replay", 0), Ran("bisect", 0), Ran("replay", int(ExitCode.UNREADABLE)))
    assert stand(PAGES, ARTEFACTS, history).stale == ()


def test_artefacts_that_no_journal_tells_of_are_believed() -> None:
    assert stand(PAGES, ARTEFACTS, (Ran("check", 0),)).stale == ()


@given(st.sets(st.sampled_from(ARTEFACTS)), st.sampled_from(ARTEFACTS))
def test_one_more_artefact_never_undoes_a_step(present: set[str], more: str) -> None:
    before, after = stand(PAGES, present), stand(PAGES, present | {more})
    assert set(before.done) <= set(after.done)


@given(st.sets(st.sampled_from(ARTEFACTS)))
def test_the_next_step_is_the_first_that_is_not_done(present: set[str]) -> None:
    found = stand(PAGES, present)
    due = [p.id for p in PAGES if not p.optional and p.id not in found.done]
    assert ([found.next.id] if found.next is not None else []) == due[:1]


def test_the_meaning_of_an_exit_code_is_the_page_s_own_or_the_general_one() -> None:
    assert PAGES[0].meaning(0) == "Fine."
    assert "cannot be read" in PAGES[0].meaning(3)
    assert "nothing is lost" in PAGES[0].meaning(130)


@pytest.mark.parametrize(
    ("status", "is_open", "code"),
    [
        (None, None, ExitCode.INCONCLUSIVE),
        (Status.UNDETERMINED, None, ExitCode.INCONCLUSIVE),
        (Status.SUPPORTED, None, ExitCode.PASSED),
        (Status.ESTABLISHED, True, ExitCode.PASSED),
        (Status.ESTABLISHED, False, ExitCode.ANSWER_NO),
    ],
)
def test_a_walk_ends_with_the_code_of_the_gate_or_the_verdict(
    status: Status | None, is_open: bool | None, code: ExitCode
) -> None:
    verdict = Verdict(status, CauseClass.DATA, "data/x", 1, "because") if status is not None else None
    gate = GateDecision(is_open, "r", (), "", "", "") if is_open is not None else None
    assert outcome_code(verdict, gate) is code
