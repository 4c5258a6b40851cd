from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.truth import Found, Truth, mismatches
from spike.domain.verdict import CauseClass, Place, Status

TRUTH = Truth(
    name="bad-shard",
    why="samples 3 to 6 are noise",
    status=Status.SUPPORTED,
    cause_class=CauseClass.DATA,
    cause="data/bad-shard",
    onset=221,
    step=221,
    where=Place(samples=(3, 4, 5, 6)),
)
RIGHT = Found(
    onsets=(221,),
    status=Status.ESTABLISHED,
    cause_class=CauseClass.DATA,
    cause="data/bad-shard",
    step=221,
    where=Place(samples=(3, 4, 5, 6)),
    num_trials=9,
)
CLEAN = Truth(name="clean", why="nothing", is_clean=True)
UNTELLABLE = Truth(name="unseeded", why="no replay", at_most=Status.UNDETERMINED, onset=221)
AT_MOST_SUPPORTED = replace(TRUTH, status=Status.UNDETERMINED, at_most=Status.SUPPORTED)


def test_a_stronger_status_than_the_weakest_right_one_is_right() -> None:
    assert mismatches(TRUTH, RIGHT) == ()


def test_a_weaker_status_is_wrong() -> None:
    assert mismatches(replace(TRUTH, status=Status.ESTABLISHED), replace(RIGHT, status=Status.SUPPORTED)) == (
        "the status is supported, and established can be had",
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cause": "data/other"}, "the cause is data/bad-shard, not data/other"),
        ({"cause_class": CauseClass.SYSTEM}, "the class is data, not system"),
        ({"step": 222}, "the step is 221, not 222"),
        ({"step": None}, "the step is 221, not None"),
        ({"onsets": ()}, "no incident was detected"),
        ({"onsets": (219,)}, "the onset is 221, detected at 219"),
        ({"status": None}, "there is no verdict"),
        ({"where": Place(samples=(2, 3, 4, 5, 6))}, "samples [2] are innocent"),
        ({"where": Place(samples=(3,))}, "1 of the 4 planted samples are named"),
        ({"where": Place()}, "0 of the 4 planted samples are named"),
    ],
)
def test_each_respect_is_held_against_the_truth(change: dict[str, object], sentence: str) -> None:
    assert mismatches(TRUTH, replace(RIGHT, **change)) == (sentence,)  # type: ignore[arg-type]


@given(off=st.integers(-50, 50), tolerance=st.integers(0, 30))
def test_a_step_is_right_exactly_within_the_tolerance(off: int, tolerance: int) -> None:
    truth = replace(TRUTH, tolerance=tolerance)
    wrong = mismatches(truth, replace(RIGHT, step=221 + off))
    assert (wrong == ()) == (abs(off) <= tolerance)


@pytest.mark.parametrize(
    ("planted", "found", "right"),
    [
        (Place(module="blocks.0.mlp"), Place(module="blocks.0.mlp.down"), True),
        (Place(module="blocks.0.mlp"), Place(module="blocks.0.mlpx"), False),
        (Place(rank=0), Place(rank=0), True),
        (Place(rank=0), Place(), False),
        (Place(tensor="lm_head.weight"), Place(tensor="wte.weight"), False),
        (Place(commit="Shift the labels"), Place(commit="Shift the labels in the model"), True),
        (Place(commit="Shift the labels"), Place(commit="Mention make run"), False),
        (Place(file="step-000200.pt"), Place(file="ckpt/step-000200.pt"), True),
        (Place(file="step-000200.pt"), Place(file="ckpt/old-step-000200.pt"), False),
        (Place(key="grad_clip"), Place(key="lr"), False),
        (Place(key="lr"), Place(key="config.lr"), True),
    ],
)
def test_the_place_is_compared_field_by_field(planted: Place, found: Place, right: bool) -> None:
    wrong = mismatches(replace(TRUTH, where=planted), replace(RIGHT, where=found))
    assert (wrong == ()) == right


def test_a_place_that_the_truth_leaves_open_may_say_more() -> None:
    assert mismatches(replace(TRUTH, where=Place()), RIGHT) == ()


def test_an_incident_in_a_clean_run_is_wrong() -> None:
    assert mismatches(CLEAN, Found(())) == ()
    assert mismatches(CLEAN, Found((50, 70))) == ("a healthy run has incidents at steps 50, 70",)


@pytest.mark.parametrize("status", [Status.SUPPORTED, Status.ESTABLISHED])
def test_any_claim_about_a_run_that_cannot_show_its_cause_is_wrong(status: Status) -> None:
    assert mismatches(UNTELLABLE, Found((221,), Status.UNDETERMINED)) == ()
    claim = mismatches(UNTELLABLE, replace(RIGHT, status=status))
    assert len(claim) == 1
    assert claim[0].startswith("it claims data/bad-shard")


def test_a_run_that_bears_a_weak_claim_only_may_get_the_right_one_or_none() -> None:
    assert mismatches(AT_MOST_SUPPORTED, Found((221,), Status.UNDETERMINED)) == ()
    assert mismatches(AT_MOST_SUPPORTED, replace(RIGHT, status=Status.SUPPORTED)) == ()
    assert mismatches(AT_MOST_SUPPORTED, replace(RIGHT, status=Status.SUPPORTED, cause="data/other")) == (
        "the cause is data/bad-shard, not data/other",
    )
    too_much = mismatches(AT_MOST_SUPPORTED, RIGHT)
    assert too_much == ("it claims data/bad-shard (established), and this run can show no more than supported",)
