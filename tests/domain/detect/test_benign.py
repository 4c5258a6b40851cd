"""Is everything that looks alarming and is not left alone, with its reason?"""

from __future__ import annotations

import numpy as np
import pytest
from tests.domain.detect.curves import learning, signals

from spike.domain.detect import detect
from spike.domain.incident import Detection
from spike.domain.signals import Rewind, Series, Signals


def patterns(detection: Detection) -> set[str]:
    assert detection.incidents == ()
    assert all(notice.why_benign for notice in detection.notices)
    return {notice.pattern for notice in detection.notices}


def test_one_overflow_that_the_scaler_handled_is_no_incident() -> None:
    steps, loss, norm = learning(400)
    rate, scale = 1e-4 * (1 - steps / 500), np.full(400, 65536.0)
    for row in (120, 260):
        norm[row], rate[row] = np.inf, rate[row - 1]
        scale[row:] /= 2
    assert patterns(detect(signals(steps, loss, norm, lr=rate, loss_scale=scale))) == {"single-scaler-skip"}


def test_the_search_of_a_scaler_at_the_start_is_no_incident() -> None:
    steps, loss, norm = learning(200)
    skipped = np.zeros(200)
    skipped[:15] = 1.0
    assert patterns(detect(signals(steps, loss, norm, skipped=skipped))) == {"start-up-scaler-search"}


def test_a_loss_that_swings_with_a_period_is_no_incident() -> None:
    steps, loss, norm = learning(600, noise=0.02)
    hard = np.where(np.arange(600) % 12 == 5, 0.35, 0.0)
    assert "periodic-batches" in patterns(detect(signals(steps, loss * np.exp(hard), norm * np.exp(2 * hard))))


def test_an_incident_in_a_run_that_swings_is_still_found() -> None:
    steps, loss, norm = learning(600, noise=0.02)
    loss *= np.exp(np.where(np.arange(600) % 12 == 5, 0.35, 0.0))
    loss[400] *= 2.5
    assert [i.onset_step for i in detect(signals(steps, loss, norm)).incidents] == [401]


def test_hard_batches_that_recur_are_the_runs_own_noise() -> None:
    rng = np.random.default_rng(5)
    steps, loss, norm = learning(1500, noise=0.02, seed=5)
    hard = rng.random(1500) < 0.02
    loss[hard] *= np.exp(rng.uniform(0.07, 0.11, hard.sum()))
    assert patterns(detect(signals(steps, loss, norm))) <= {"hard-batches"}


def test_a_policy_gradient_loss_of_zero_is_no_incident() -> None:
    steps, _, norm = learning(300)
    assert patterns(detect(signals(steps, np.zeros(300), norm))) == {"zero-loss"}


@pytest.mark.parametrize(
    "norm", [np.zeros(300), np.repeat(np.exp(0.3 * np.random.default_rng(0).standard_normal(30)), 10)]
)
def test_a_norm_that_was_never_computed_or_is_stale_proves_nothing(norm: np.ndarray) -> None:
    steps, loss, _ = learning(300)
    assert patterns(detect(signals(steps, loss, norm))) == {"stale-column"}


def test_a_loss_that_falls_with_the_learning_rate_or_at_an_epoch_is_no_drop() -> None:
    steps, loss, norm = learning(400)
    rate = np.where(steps < 250, 1e-3, 1e-4)
    lower = np.where(steps < 250, 1.0, 0.8)
    assert patterns(detect(signals(steps, loss * lower, norm, lr=rate))) <= {"learning-rate-step"}
    epoch = steps / 125.0
    lower = np.where(steps < 250, 1.0, 0.75)
    assert patterns(detect(signals(steps, loss * lower, norm, epoch=epoch))) <= {"epoch-boundary"}


def test_learning_that_sets_in_late_is_no_drop() -> None:
    steps, loss, norm = learning(500)
    loss *= np.exp(0.6 / (1.0 + np.exp((steps - 100) / 12.0)))
    assert patterns(detect(signals(steps, loss, norm))) <= {"hard-batches"}


def test_restarts_and_several_runs_in_one_log_are_told_and_not_judged() -> None:
    steps, loss, norm = learning(300)
    made = signals(steps, loss, norm)
    again = Signals(made.series, rewinds=(Rewind(220, 201, "a.log"), Rewind(300, 1, "a.log", True)))
    assert patterns(detect(again)) == {"restart-rows", "several-runs"}


def test_a_timer_that_prints_nan_in_its_first_rows_is_told_and_not_judged() -> None:
    steps, loss, norm = learning(300)
    timer = np.full(300, 210.0)
    timer[:10] = np.nan
    assert patterns(detect(signals(steps, loss, norm, step_avg=timer))) == {"non-finite-timer"}


def test_a_negative_loss_is_judged_as_it_is() -> None:
    steps, loss, norm = learning(300)
    assert patterns(detect(signals(steps, -loss, norm))) == set()
    spiked = -loss
    spiked[220] = 5.0
    assert [i.onset_step for i in detect(signals(steps, spiked, norm)).incidents] == [221]


def test_columns_that_are_no_signal_raise_nothing() -> None:
    steps, loss, norm = learning(300)
    wild = np.exp(5 * np.random.default_rng(1).standard_normal(300))
    made = signals(steps, loss, norm)
    assert patterns(detect(Signals((*made.series, Series("memory", steps, wild))))) == set()
