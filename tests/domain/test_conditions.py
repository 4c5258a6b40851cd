import math

import pytest

from spike.domain import conditions
from spike.domain.gate import ConditionState
from spike.domain.measured import NotMeasured
from spike.domain.receipt import Mismatch, Receipt
from spike.domain.trial import NoiseFloor, Outcome, OutcomeKind
from tests.domain.trial_facts import incident, series, step, trace

HOLDS, FAILS, UNMEASURED = ConditionState.HOLDS, ConditionState.FAILS, ConditionState.NOT_MEASURED


def falling(last: int, *, bump: float = 0.0, since: int = 21) -> dict[int, float]:
    return {s: 3.0 - 0.01 * s + 0.002 * ((s * 7) % 5) + (bump if s >= since else 0.0) for s in range(1, last + 1)}


@pytest.mark.parametrize(("bump", "state"), [(0.0, HOLDS), (0.5, FAILS), (-0.3, HOLDS), (math.nan, FAILS)])
def test_the_loss_must_come_back_to_the_trend_not_only_come_down(bump: float, state: ConditionState) -> None:
    record = series("loss", falling(24))
    replayed = series("loss", falling(40, bump=bump))
    assert conditions.loss_on_trend(record, replayed, incident(), 10, "T9").state is state


def test_an_early_steep_fall_is_not_promised_to_go_on() -> None:
    curve = {s: 3.0 + 2.5 * math.exp(-s / 12) + 0.02 * ((s * 7) % 5 - 2) for s in range(1, 120)}
    record = series("loss", {s: v for s, v in curve.items() if s < 91})
    resumed = series("loss", {s: v for s, v in curve.items() if s >= 81})
    found = conditions.loss_on_trend(record, resumed, incident(onset=91), 80, "T9")
    assert found.state is HOLDS, found.statement


def test_without_a_loss_the_trend_is_not_measured() -> None:
    assert conditions.loss_on_trend(None, None, incident(), 10, "T9").state is UNMEASURED


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (OutcomeKind.ABSENT, HOLDS),
        (OutcomeKind.DIFFERENT, FAILS),
        (OutcomeKind.REPRODUCED, FAILS),
        (OutcomeKind.UNTESTABLE, UNMEASURED),
    ],
)
def test_a_softened_incident_does_not_open_the_gate(kind: OutcomeKind, state: ConditionState) -> None:
    assert conditions.signature_gone(Outcome(kind, "why"), "T9").state is state


def test_a_doubled_update_norm_fails_and_an_untraced_one_is_not_measured() -> None:
    healthy = trace([step(s) for s in range(11, 21)])
    steady = trace([step(s) for s in range(11, 30)])
    doubled = trace([step(s, update_norm=0.03 if s > 22 else 0.01) for s in range(11, 30)])
    unknown = trace([step(s, update_norm=NotMeasured("record mode")) for s in range(11, 30)])  # type: ignore[arg-type]
    assert conditions.update_norm(steady, 21, [healthy], "T9").state is HOLDS
    assert conditions.update_norm(doubled, 21, [healthy], "T9").state is FAILS
    assert conditions.update_norm(unknown, 21, [unknown], "T9").state is UNMEASURED


def test_a_slow_resume_fails() -> None:
    usual = trace([step(s) for s in range(11, 21)])
    slow = trace([step(s, seconds=0.3) for s in range(11, 21)])
    assert conditions.throughput(usual, usual, "T9").state is HOLDS
    assert conditions.throughput(slow, usual, "T9").state is FAILS
    assert conditions.throughput(trace([step(11)]), usual, "T9").state is UNMEASURED


def test_a_load_that_differs_fails_and_replaced_moments_are_allowed_only_where_declared() -> None:
    wrong = Receipt(4, 4, (), (Mismatch(0, "moment", "w", "exp_avg", "another"),))
    assert conditions.load_receipt(wrong, "T9", replaces_moments=False).state is FAILS
    assert conditions.load_receipt(wrong, "T9", replaces_moments=True).state is HOLDS
    assert conditions.load_receipt(NotMeasured("no trace"), "T9", replaces_moments=True).state is UNMEASURED
    assert conditions.load_receipt(Receipt(0, 0, (), ()), "T9", replaces_moments=True).state is UNMEASURED


def test_only_declared_steps_may_be_withheld() -> None:
    skipped = trace([step(11), step(12, applied=False)])
    assert conditions.skip_counters([skipped], [12], "T9").state is HOLDS
    assert conditions.skip_counters([skipped], [], "T9").state is FAILS
    assert conditions.skip_counters([], [], "T9").state is UNMEASURED


@pytest.mark.parametrize(("after", "state"), [(2.0, HOLDS), (2.5, FAILS), (math.nan, FAILS)])
def test_the_held_out_number_may_not_get_worse(after: float, state: ConditionState) -> None:
    assert conditions.held_out(2.0, after, "T9").state is state


def test_a_missing_held_out_number_is_not_measured() -> None:
    assert conditions.held_out(2.0, NotMeasured("no command"), "T9").state is UNMEASURED


def test_the_control_fails_where_the_resumed_run_parts_before_the_remedy_acts() -> None:
    usual = trace([step(s) for s in range(11, 21)])
    parted = trace([step(s, loss=2.5 if s == 13 else 2.0) for s in range(11, 21)])
    exact = NoiseFloor(1, True)
    assert conditions.healthy_steps_match(usual, usual, 15, exact, "T9").state is HOLDS
    assert conditions.healthy_steps_match(parted, usual, 15, exact, "T9").state is FAILS
    assert conditions.healthy_steps_match(usual, usual, 11, exact, "T9").state is UNMEASURED
