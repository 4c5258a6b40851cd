from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.conclude import conclude
from spike.domain.eliminate import (
    Confirmed,
    Evidence,
    confirmed,
    contradiction,
    is_confirmed,
    rank_experiments,
    surviving,
)
from spike.domain.facts import NOT_MEASURED, VOCABULARY, Fact
from spike.domain.playbook import Confirmation, Expectation, Playbook, Remedy, Risk
from spike.domain.trial import Grade, Licence, NoiseFloor, OutcomeKind
from spike.domain.verdict import CauseClass, Status

EXACT = Licence(Grade.LOG_EXACT, "equal", ("loss",), 10)
QUIET = NoiseFloor(num_repeats=1, bit_exact=True)
R, A = OutcomeKind.REPRODUCED, OutcomeKind.ABSENT


def playbook(
    id_: str,
    *,
    trials: Mapping[str, str],
    confirm: tuple[Confirmation, ...] = (),
    facts: Mapping[str, str] | None = None,
    supported_by: Mapping[str, str] | None = None,
) -> Playbook:
    return Playbook(
        id=id_,
        cause_class=CauseClass(id_.split("/")[0]),
        statement=id_,
        looks_like=(id_,),
        facts=tuple((k, (v,)) for k, v in (facts or {}).items()),
        supported_by=tuple((k, (v,)) for k, v in (supported_by or {}).items()),
        trials=tuple((k, Expectation(v)) for k, v in trials.items()),
        confirm=confirm,
        localise=(),
        remedies=(Remedy("undo it", Risk.LOW, "it is the cause"),),
    )


BATCH = playbook(
    "data/batch",
    trials={"replay": "reproduced", "control-batch": "absent", "scheduled-lr": "reproduced"},
    confirm=(Confirmation(("control-batch",), "control-batch-placebo", "transplant"),),
)
RATE = playbook(
    "optimization/rate",
    trials={"replay": "reproduced", "control-batch": "reproduced", "scheduled-lr": "absent"},
    confirm=(Confirmation(("scheduled-lr",), facts=(("lr.discontinuity", ("yes",)),)),),
    facts={"lr.discontinuity": "yes"},
)
FLIP = playbook(
    "system/flip",
    trials={"replay": "absent"},
    confirm=(Confirmation(facts=(("checkpoint.bit-flip", ("yes",)),)),),
    supported_by={"checkpoint.bit-flip": "yes", "hardware.events": "yes"},
)
ALL = (BATCH, RATE, FLIP)
AVAILABLE = dict.fromkeys(("control-batch", "control-batch-placebo", "transplant", "scheduled-lr"), 1.0)


def evidence(outcomes: Mapping[str, OutcomeKind], facts: Mapping[str, str] | None = None) -> Evidence:
    known = {name: Fact(name, value, f"{name} is {value}") for name, value in (facts or {}).items()}
    return Evidence(facts=known, outcomes=dict(outcomes))


def test_an_outcome_that_a_hypothesis_forbids_rejects_it_with_the_reason() -> None:
    rejected = contradiction(BATCH, evidence({"replay": A}))
    assert rejected is not None
    assert "replay" in rejected.because


def test_a_softened_outcome_rejects_nothing() -> None:
    assert contradiction(BATCH, evidence({"control-batch": OutcomeKind.DIFFERENT})) is None


def test_an_untestable_trial_rejects_nothing() -> None:
    assert len(surviving(ALL, evidence({"replay": OutcomeKind.UNTESTABLE}))) == 3


def test_an_unmeasured_fact_neither_rejects_nor_supports() -> None:
    unmeasured = evidence({"replay": R}, {"lr.discontinuity": NOT_MEASURED})
    assert RATE in surviving(ALL, unmeasured)
    assert not is_confirmed(RATE, evidence({"scheduled-lr": A}, {"lr.discontinuity": NOT_MEASURED}))


def test_a_cure_without_its_placebo_confirms_nothing() -> None:
    way = BATCH.confirm[0]
    assert confirmed(way, evidence({"control-batch": A})) is Confirmed.OPEN
    both = {"control-batch": A, "control-batch-placebo": R, "transplant": R}
    assert confirmed(way, evidence(both)) is Confirmed.YES


def test_a_placebo_that_cures_refutes_the_confirmation() -> None:
    cures = {"control-batch": A, "control-batch-placebo": A, "transplant": R}
    assert confirmed(BATCH.confirm[0], evidence(cures)) is Confirmed.NO


def test_the_trial_that_separates_is_chosen_and_controls_follow_the_cure() -> None:
    facts = {"lr.discontinuity": "yes"}
    first = rank_experiments(ALL, evidence({"replay": R}, facts), AVAILABLE)[0].experiment
    assert first in ("control-batch", "scheduled-lr")
    cured = evidence({"replay": R, "control-batch": A, "scheduled-lr": R}, facts)
    left = [c.experiment for c in rank_experiments(ALL, cured, AVAILABLE)]
    assert left[0] == "control-batch-placebo"


def test_nothing_is_run_once_one_confirmed_cause_is_left() -> None:
    done = evidence(
        {"replay": R, "control-batch": A, "control-batch-placebo": R, "transplant": R},
        {"lr.discontinuity": "no"},
    )
    assert rank_experiments(ALL, done, AVAILABLE) == ()


def test_a_cheaper_trial_of_equal_value_goes_first() -> None:
    facts = {"lr.discontinuity": "yes"}
    costs = {"control-batch": 5.0, "scheduled-lr": 1.0}
    assert rank_experiments(ALL, evidence({"replay": R}, facts), costs)[0].experiment == "scheduled-lr"


def _conclude(found: Evidence, *, licence: Licence | None = EXACT, noise: NoiseFloor = QUIET):  # type: ignore[no-untyped-def]
    return conclude(ALL, found, licence, noise, {})


CONFIRMED = {"replay": R, "control-batch": A, "control-batch-placebo": R, "transplant": R, "scheduled-lr": R}


def test_a_confirmed_single_survivor_is_established_and_the_others_are_rejected_with_reasons() -> None:
    conclusion = _conclude(evidence(CONFIRMED, {"lr.discontinuity": "no"}))
    assert (conclusion.status, conclusion.cause) == (Status.ESTABLISHED, "data/batch")
    assert {r.cause for r in conclusion.rejected} == {"optimization/rate", "system/flip"}
    assert all(r.because for r in conclusion.rejected)


@pytest.mark.parametrize("licence", [None, Licence(Grade.REFUSED, "step 12 differs")])
def test_without_a_licence_there_is_no_verdict_whatever_the_trials_say(licence: Licence | None) -> None:
    conclusion = _conclude(evidence(CONFIRMED, {"lr.discontinuity": "no"}), licence=licence)
    assert (conclusion.status, conclusion.cause) == (Status.UNDETERMINED, "")


def test_absence_on_replay_alone_proves_nothing() -> None:
    conclusion = _conclude(evidence({"replay": A}))
    assert conclusion.status is Status.UNDETERMINED


def test_absence_with_a_placing_fact_and_few_repeats_is_supported_only() -> None:
    found = evidence({"replay": A}, {"checkpoint.bit-flip": "yes"})
    few = _conclude(found, noise=NoiseFloor(1, True))
    assert (few.status, few.cause) == (Status.SUPPORTED, "system/flip")
    enough = _conclude(found, noise=NoiseFloor(2, True))
    assert enough.status is Status.ESTABLISHED
    noisy = _conclude(found, licence=Licence(Grade.WITHIN_NOISE, "near"), noise=NoiseFloor(3, False))
    assert noisy.status is Status.SUPPORTED


def test_two_confirmed_causes_of_different_classes_are_inseparable_and_undetermined() -> None:
    facts = {"lr.discontinuity": "yes"}
    loose = playbook("data/loose", trials={}, confirm=(Confirmation(("a",)),))
    rival = playbook("numerics/rival", trials={}, confirm=(Confirmation(("b",)),))
    conclusion = conclude((loose, rival), evidence({"replay": R, "a": A, "b": A}, facts), EXACT, QUIET, {})
    assert conclusion.status is Status.UNDETERMINED
    assert set(conclusion.inseparable) == {"data/loose", "numerics/rival"}


def test_when_everything_is_contradicted_the_cause_is_said_to_be_unknown() -> None:
    conclusion = _conclude(evidence({"replay": R, "control-batch": R, "scheduled-lr": R}))
    assert conclusion.status is Status.UNDETERMINED
    assert "none that the playbooks know" in conclusion.because


def test_what_could_not_be_run_is_named_with_its_reason() -> None:
    found = evidence({"replay": R}, {"lr.discontinuity": "yes"})
    conclusion = conclude(ALL, found, EXACT, QUIET, {"scheduled-lr": "no GPU is free"})
    assert ("scheduled-lr", "no GPU is free") in {(s.trial, s.because) for s in conclusion.next}


OUTCOMES = st.dictionaries(
    st.sampled_from(["replay", "control-batch", "scheduled-lr", "transplant", "control-batch-placebo"]),
    st.sampled_from(list(OutcomeKind)),
)
FACTS = st.dictionaries(
    st.sampled_from(["lr.discontinuity", "checkpoint.bit-flip", "hardware.events"]),
    st.sampled_from(["yes", "no", NOT_MEASURED]),
)


@given(OUTCOMES, FACTS, OUTCOMES, FACTS)
def test_elimination_is_monotone_more_evidence_never_revives_a_hypothesis(
    outcomes: dict[str, OutcomeKind], facts: dict[str, str], more: dict[str, OutcomeKind], more_facts: dict[str, str]
) -> None:
    before = surviving(ALL, evidence(outcomes, facts))
    after = surviving(ALL, evidence({**more, **outcomes}, {**more_facts, **facts}))
    assert {p.id for p in after} <= {p.id for p in before}


@given(OUTCOMES, FACTS, st.permutations(ALL))
def test_a_verdict_does_not_depend_on_the_order_of_the_playbooks(
    outcomes: dict[str, OutcomeKind], facts: dict[str, str], order: list[Playbook]
) -> None:
    found = evidence(outcomes, facts)
    left = conclude(ALL, found, EXACT, QUIET, {})
    right = conclude(order, found, EXACT, QUIET, {})
    assert (left.status, left.cause) == (right.status, right.cause)


@given(OUTCOMES, FACTS)
def test_nothing_is_established_without_a_confirmation(outcomes: dict[str, OutcomeKind], facts: dict[str, str]) -> None:
    found = evidence(outcomes, facts)
    conclusion = conclude(ALL, found, EXACT, QUIET, {})
    if conclusion.status is Status.ESTABLISHED:
        cause = next(p for p in ALL if p.id == conclusion.cause)
        assert is_confirmed(cause, found)
        assert contradiction(cause, found) is None


def test_a_fact_outside_the_vocabulary_cannot_be_stated() -> None:
    with pytest.raises(ValueError, match="has no value"):
        Fact("lr.discontinuity", "maybe", "?")
    assert all(len(values) > 1 for values in VOCABULARY.values())
