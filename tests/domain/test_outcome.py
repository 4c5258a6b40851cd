import math

import pytest

from spike.domain.incident import Kind
from spike.domain.outcome import Window, anomalous_steps, judge_outcome
from spike.domain.trial import OutcomeKind
from tests.domain.trial_facts import healthy_then, incident, signals, signature

WINDOW = Window(21, 24)


@pytest.mark.parametrize(
    ("peak", "expected"),
    [
        (6.0, OutcomeKind.REPRODUCED),
        (4.5, OutcomeKind.REPRODUCED),
        (2.6, OutcomeKind.DIFFERENT),
        (2.01, OutcomeKind.ABSENT),
        (1.2, OutcomeKind.ABSENT),
        (math.nan, OutcomeKind.REPRODUCED),
    ],
)
def test_an_outcome_is_the_share_of_the_incident_that_came_back(peak: float, expected: OutcomeKind) -> None:
    record = signals(loss=healthy_then(6.0))
    outcome = judge_outcome(incident(), record, signals(loss=healthy_then(peak)), WINDOW)
    assert outcome.kind is expected, outcome.reason


def test_a_non_finite_incident_is_reproduced_only_by_a_non_finite_value() -> None:
    bad = incident(signature(peak=math.nan, kind=Kind.NON_FINITE))
    record = signals(loss=healthy_then(math.nan))
    assert judge_outcome(bad, record, record, WINDOW).kind is OutcomeKind.REPRODUCED
    finite = judge_outcome(bad, record, signals(loss=healthy_then(2.0)), WINDOW)
    assert finite.kind is OutcomeKind.ABSENT


def test_a_trial_that_logged_nothing_at_the_anomalous_step_is_untestable() -> None:
    record = signals(loss=healthy_then(6.0))
    short = {s: v for s, v in healthy_then(6.0).items() if s < 21}
    outcome = judge_outcome(incident(), record, signals(loss=short), WINDOW)
    assert outcome.kind is OutcomeKind.UNTESTABLE
    assert "step 21" in outcome.reason


def test_a_skipped_step_is_not_judged_by_its_own_loss() -> None:
    record = signals(loss=healthy_then(6.0))
    outcome = judge_outcome(incident(), record, record, Window(21, 24, frozenset({21})))
    assert outcome.kind is OutcomeKind.UNTESTABLE


def test_one_softened_signal_keeps_a_trial_from_being_called_absent() -> None:
    both = incident(signature(), signature(signal="grad_norm", peak=20.0))
    record = signals(loss=healthy_then(6.0), grad_norm=healthy_then(20.0))
    trial = signals(loss=healthy_then(2.0), grad_norm=healthy_then(4.0))
    assert judge_outcome(both, record, trial, WINDOW).kind is OutcomeKind.DIFFERENT


def test_a_transplant_is_judged_against_healthy_values_at_its_own_steps() -> None:
    record = signals(loss=healthy_then(6.0, last=24))
    healthy = signals(loss=dict.fromkeys(range(11, 16), 3.0))
    spiking = signals(loss={s: (9.0 if s == 13 else 3.0) for s in range(11, 16)})
    reference = {"loss": healthy.series[0]}
    window = Window(21, 22)
    back = judge_outcome(incident(), record, spiking, window, reference=reference, shift=-8)
    gone = judge_outcome(incident(), record, healthy, window, reference=reference, shift=-8)
    assert (back.kind, gone.kind) == (OutcomeKind.REPRODUCED, OutcomeKind.ABSENT)


def test_anomalous_steps_are_those_beyond_the_threshold() -> None:
    record = signals(loss=healthy_then(6.0) | {22: 3.0})
    assert anomalous_steps(incident(), record, last=24) == (21, 22)


def test_a_faint_companion_of_a_nan_loss_does_not_decide() -> None:
    both = incident(signature(peak=math.nan, kind=Kind.NON_FINITE), signature(signal="grad_norm", peak=2.1))
    record = signals(loss=healthy_then(math.nan), grad_norm=healthy_then(2.1))
    trial = signals(loss=healthy_then(2.0), grad_norm=healthy_then(2.09))
    assert judge_outcome(both, record, trial, WINDOW).kind is OutcomeKind.ABSENT


def test_every_signal_that_decided_keeps_its_share() -> None:
    norm = signature(signal="grad_norm", peak=9.0)
    record = signals(loss=healthy_then(6.0), grad_norm=healthy_then(9.0))
    half = signals(loss=healthy_then(2.0), grad_norm=healthy_then(4.0))
    outcome = judge_outcome(incident(signature(), norm), record, half, Window(21, 24))
    shares = dict(outcome.shares)
    assert set(shares) == {"loss", "grad_norm"}
    assert shares["loss"] < 0.05 < shares["grad_norm"] == outcome.excess
