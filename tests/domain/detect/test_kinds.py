"""Is every kind of incident named, placed and judged as a person would?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.domain.detect.curves import Values, learning, signals

from spike.domain.detect import detect
from spike.domain.incident import Detection, Incident, Kind, Severity
from spike.domain.signals import Series, Signals

ONSET = 221
ROW = ONSET - 1


def the_one(detection: Detection) -> Incident:
    assert len(detection.incidents) == 1, detection.incidents
    return detection.incidents[0]


def run(loss: Values | None, norm: Values | None = None, **others: Values) -> Detection:
    rows = len(loss if loss is not None else norm)  # type: ignore[arg-type]
    return detect(signals(np.arange(1, rows + 1), loss, norm, **others))


def test_a_healthy_run_has_no_incident() -> None:
    for seed in range(12):
        steps, loss, norm = learning(400, seed=seed)
        assert detect(signals(steps, loss, norm)).incidents == ()


def test_one_bad_batch_is_a_transient_spike_that_healed() -> None:
    _, loss, norm = learning()
    loss[ROW] *= 1.6
    norm[ROW] *= 6.0
    found = the_one(run(loss, norm))
    assert (found.kind, found.severity, found.onset_step, found.peak_step) == (
        Kind.SPIKE,
        Severity.TRANSIENT,
        ONSET,
        ONSET,
    )
    assert found.recovered
    assert {s.signal for s in found.signatures} == {"loss", "grad_norm"}
    assert found.ratio == pytest.approx(1.6, rel=0.1)


def test_the_gradient_norm_leads_and_the_lead_is_counted_to_the_peak_of_the_loss() -> None:
    _, loss, norm = learning()
    norm[ROW : ROW + 8] *= np.exp([1.4, 2.3, 4.0, 6.0, 8.0, 7.0, 7.0, 6.0])
    loss[ROW + 3 : ROW + 8] *= [1.25, 2.2, 1.6, 1.4, 1.2]
    found = the_one(run(loss, norm))
    assert (found.first_signal, found.onset_step, found.peak_step, found.lead_steps) == (
        "grad_norm",
        ONSET,
        ONSET + 4,
        4,
    )


def test_a_loss_that_climbs_and_stays_has_diverged() -> None:
    _, loss, norm = learning()
    loss[ROW:] *= np.minimum(2.5, 1.05 ** np.arange(1, len(loss) - ROW + 1))
    found = the_one(run(loss, norm))
    assert (found.kind, found.severity, found.recovered) == (Kind.DIVERGENCE, Severity.FATAL, False)
    assert abs(found.onset_step - ONSET) <= 3


def test_a_loss_that_goes_on_higher_is_a_level_shift_that_has_not_recovered() -> None:
    _, loss, norm = learning(400)
    loss[ROW:] *= 1.12
    found = the_one(run(loss, norm))
    assert (found.kind, found.severity, found.recovered) == (Kind.LEVEL_SHIFT, Severity.LASTING, False)
    assert abs(found.onset_step - ONSET) <= 1


@pytest.mark.parametrize(("stuck", "recovered"), [(0.0, True), (0.01, False), (0.015, False)])
def test_a_spike_that_leaves_the_loss_a_hundredth_of_a_nat_high_has_not_recovered(
    stuck: float, recovered: bool
) -> None:
    rng = np.random.default_rng(1)
    loss = 2.0 + 0.3 * (1.0 + np.arange(600) / 100.0) ** -0.5 + 0.003 * rng.standard_normal(600)
    loss[300:305] += [0.8, 0.6, 0.4, 0.2, 0.1]
    loss[305:] += stuck
    found = the_one(run(loss))
    assert found.recovered is recovered
    assert found.severity is (Severity.TRANSIENT if recovered else Severity.LASTING)


def test_a_loss_that_turns_and_creeps_up_is_a_slow_drift() -> None:
    rng = np.random.default_rng(2)
    rows = np.arange(900)
    loss = (2.0 + 1.5 * (1 + rows / 30) ** -0.6) * np.exp(0.02 * rng.standard_normal(900))
    loss *= np.exp(0.3 * np.clip((rows - 450) / 450, 0, 1))
    found = the_one(run(loss))
    assert (found.kind, found.severity) == (Kind.SLOW_DRIFT, Severity.LASTING)


def test_a_loss_that_is_not_finite_for_good_is_fatal_and_once_is_transient() -> None:
    _, loss, norm = learning()
    loss[ROW:] = np.nan
    found = the_one(run(loss, norm))
    assert (found.kind, found.severity, found.onset_step) == (Kind.NON_FINITE, Severity.FATAL, ONSET)
    assert math.isinf(found.ratio)
    _, loss, norm = learning()
    loss[ROW] = np.inf
    found = the_one(run(loss, norm))
    assert (found.severity, found.recovered) == (Severity.TRANSIENT, True)


def test_a_zero_loss_beside_a_lost_gradient_is_the_trainers_nan_filter() -> None:
    _, loss, norm = learning()
    loss[ROW:], norm[ROW:] = 0.0, np.nan
    found = the_one(run(loss, norm))
    assert (found.kind, found.severity, found.onset_step) == (Kind.NON_FINITE, Severity.FATAL, ONSET)
    assert "filtered NaN" in found.hints[0]


def test_a_smooth_loss_beside_gradients_that_stay_lost_is_the_filter_of_a_longer_interval() -> None:
    _, loss, norm = learning()
    norm[ROW:] = np.nan
    loss[ROW:] = loss[ROW - 20 : ROW].mean()
    found = the_one(run(loss, norm, lr=np.linspace(1e-3, 1e-5, 300)))
    assert (found.kind, found.onset_step, found.first_signal) == (Kind.NON_FINITE, ONSET, "grad_norm")


def test_a_loss_that_falls_to_exactly_zero_is_a_drop_and_says_so() -> None:
    _, loss, norm = learning()
    loss[ROW:], norm[ROW:] = 0.0, 0.01
    found = the_one(run(loss, norm))
    assert (found.kind, found.onset_step) == (Kind.DROP, ONSET)
    assert any("exactly 0.0" in hint for hint in found.hints)


def test_a_loss_that_halves_within_a_step_is_a_drop() -> None:
    _, loss, norm = learning()
    loss[ROW:] *= 0.45
    found = the_one(run(loss, norm))
    assert (found.kind, found.onset_step, found.recovered) == (Kind.DROP, ONSET, False)


def test_a_run_of_skipped_steps_is_an_incident_with_its_scale() -> None:
    _, loss, norm = learning()
    skipped, scale = np.zeros(300), np.full(300, 65536.0)
    skipped[ROW : ROW + 12] = 1.0
    scale[ROW:] = np.maximum(16.0, 65536.0 / 2.0 ** np.arange(1, 81))
    found = the_one(run(loss, norm, skipped=skipped, loss_scale=scale))
    assert (found.kind, found.onset_step) == (Kind.SKIPPED_STEPS, ONSET)
    assert any("loss scale falls" in hint for hint in found.hints)


def test_skips_that_lie_far_apart_in_a_record_of_skips_alone_are_no_run() -> None:
    total = np.array([2, 2, 2, 4, 4, 4.0])
    steps = np.arange(10, 70, 10)
    series = [Series("skipped total", steps, total), Series("lr", steps, np.full(6, 1e-4))]
    skipped = Series("skipped", np.array([10, 40]), np.array([2.0, 2.0]))
    assert detect(Signals((*series, skipped))).incidents == ()
    for_good = Series("skipped", steps, np.full(6, 9.0))
    assert [i.kind for i in detect(Signals((*series, for_good))).incidents] == [Kind.SKIPPED_STEPS]


@pytest.mark.parametrize("signal", ["loss", "param_norm"])
def test_values_that_repeat_exactly_mean_that_nothing_trains(signal: str) -> None:
    _, loss, norm = learning()
    weights = 100.0 + 0.01 * np.arange(300)
    (loss if signal == "loss" else weights)[ROW:] = (loss if signal == "loss" else weights)[ROW - 1]
    found = the_one(run(loss, norm, param_norm=weights))
    assert (found.kind, found.severity, found.first_signal) == (Kind.FROZEN, Severity.FATAL, signal)
    assert abs(found.onset_step - ONSET) <= 1


def test_a_short_record_with_twenty_healthy_rows_is_enough() -> None:
    for seed in range(6):
        steps, loss, norm = learning(26, seed=seed)
        loss[22] *= 1.8
        norm[22] *= 8.0
        assert the_one(detect(signals(steps, loss, norm))).onset_step == 23


def test_an_excerpt_that_starts_in_the_middle_of_a_run_needs_only_two_healthy_rows() -> None:
    loss = np.array([2.665, 2.667, 4.374, 4.366, 4.391, 4.405, 4.398])
    found = the_one(detect(signals(np.arange(17060, 17067), loss)))
    assert (found.kind, found.onset_step) == (Kind.DIVERGENCE, 17062)


def test_the_learning_rate_that_jumped_is_named_with_its_factor() -> None:
    _, loss, norm = learning()
    rate = 1e-3 * 0.5 * (1 + np.cos(np.pi * np.arange(300) / 400))
    rate[ROW:] *= 30.0
    loss[ROW + 1 :] *= np.minimum(1.6, 1.15 ** np.arange(1, 300 - ROW))
    found = the_one(run(loss, norm, lr=rate))
    assert abs(found.onset_step - (ONSET + 1)) <= 1
    assert any(("learning rate jumps at step 221" in hint and "x29" in hint) or "x30" in hint for hint in found.hints)


def test_a_clean_ratio_and_the_loss_of_an_untrained_model_are_pointed_at() -> None:
    _, loss, norm = learning(seed=3)
    loss[ROW:] *= 4.0
    assert any("close to x4" in hint for hint in the_one(run(loss, norm)).hints)
    steps, loss, norm = learning(seed=3, first=70_001)
    loss[ROW:] = math.log(50257) * np.exp(0.0002 * np.random.default_rng(0).standard_normal(80))
    assert any("ln(50257)" in hint for hint in the_one(detect(signals(steps, loss, norm))).hints)


def test_the_rank_that_moved_first_is_named() -> None:
    from spike.domain.signals import Series, Signals

    series = []
    for rank in range(4):
        steps, loss, norm = learning(seed=rank)
        loss[ROW + (0 if rank == 2 else 2) :] = np.nan
        series += [Series("loss", steps, loss, rank), Series("grad_norm", steps, norm, rank)]
    found = the_one(detect(Signals(tuple(series))))
    assert (found.rank, found.onset_step, found.kind) == (2, ONSET, Kind.NON_FINITE)


def test_what_happened_in_rows_that_a_restart_replaced_is_still_told() -> None:
    from spike.domain.signals import Rewind, Series, Signals

    steps, loss, _ = learning()
    lost = np.concatenate([loss[199:220], np.full(20, np.nan)])
    old = Series("loss", np.arange(200, 241), lost)
    found = the_one(
        detect(Signals((Series("loss", steps, loss),), rewinds=(Rewind(240, 200, "a.jsonl"),), superseded=(old,)))
    )
    assert (found.onset_step, found.severity) == (ONSET, Severity.TRANSIENT)
    assert any("replaced by a restart" in hint for hint in found.hints)


def test_a_loss_that_is_left_out_while_the_run_writes_on_is_lost() -> None:
    from spike.domain.signals import Series, Signals

    steps, loss, norm = learning()
    rows = Signals((Series("loss", steps[:ROW], loss[:ROW]), Series("grad_norm", steps, norm)))
    found = the_one(detect(rows))
    assert (found.kind, found.severity, found.onset_step) == (Kind.NON_FINITE, Severity.FATAL, ONSET)
    assert "no loss in 80 rows" in found.hints[0]
    seldom = Signals((Series("loss", steps[::10], loss[::10]), Series("grad_norm", steps, norm)))
    elsewhere = Signals((Series("loss", steps[:ROW], loss[:ROW], source="a"), Series("lr", steps, norm, source="b")))
    assert detect(seldom).incidents == detect(elsewhere).incidents == ()


@pytest.mark.parametrize("signal", ["update_norm", "grad_norm"])
def test_a_norm_that_becomes_exactly_zero_means_that_nothing_is_trained(signal: str) -> None:
    _, loss, norm = learning()
    update = 1e-3 * norm
    (update if signal == "update_norm" else norm)[120:] = 0.0
    found = the_one(run(loss, norm, update_norm=update))
    assert (found.kind, found.severity, found.onset_step, found.first_signal) == (
        Kind.FROZEN,
        Severity.FATAL,
        122,
        signal,
    )


@pytest.mark.parametrize(("factor", "hint"), [(8.0, "close to x8"), (0.125, "close to 1/8")])
def test_a_gradient_norm_alone_that_changes_by_a_clean_factor_is_a_shift(factor: float, hint: str) -> None:
    _, loss, norm = learning(seed=2)
    norm = norm**0.5  # calm enough for three percent
    norm[ROW:] *= factor
    found = the_one(run(loss, norm))
    assert (found.kind, found.first_signal) == (Kind.LEVEL_SHIFT, "grad_norm")
    assert any(hint in line for line in found.hints)
