import math

from spike.domain.licence import judge_licence, step_offset
from spike.domain.noise import noise_floor
from spike.domain.signals import Signals
from spike.domain.trial import Grade, NoiseFloor
from tests.domain.trial_facts import series, signals, step, trace, trial_run

EXACT = NoiseFloor(num_repeats=1, bit_exact=True)


def _varying(last: int = 24, *, offset: float = 0.0) -> dict[int, float]:
    return {s: 2.0 + 0.01 * ((s * 7) % 5) + offset for s in range(1, last + 1)}


def _rounded(digits: int, values: dict[int, float]) -> Signals:
    return Signals(series=(series("loss", {s: round(v, digits - 1) for s, v in values.items()}, digits=digits),))


def _judge(record: Signals, trial: Signals, noise: NoiseFloor = EXACT, *, onset: int = 21, first: int = 10):  # type: ignore[no-untyped-def]
    return judge_licence(record, trial, first_step=first, onset=onset, noise=noise)


def test_equal_full_precision_logs_are_bit_exact() -> None:
    licence = _judge(signals(loss=_varying()), signals(loss=_varying()))
    assert licence.grade is Grade.BIT_EXACT
    assert licence.num_steps == 11  # from the checkpoint's own step to the one before the onset


def test_equal_rounded_logs_are_exact_within_rounding_only() -> None:
    licence = _judge(_rounded(5, _varying()), _rounded(5, _varying()))
    assert licence.grade is Grade.LOG_EXACT
    assert "5 logged digits" in licence.reason


def test_a_rounded_record_equals_an_unrounded_trial_to_its_last_digit_and_no_further() -> None:
    fine = {s: 2.0 + 0.00123 * ((s * 7) % 5) for s in range(1, 25)}
    record = Signals(series=(series("loss", {s: round(v, 4) for s, v in fine.items()}, digits=5),))
    apart = {s: v + (2e-4 if s == 15 else 0.0) for s, v in fine.items()}
    assert _judge(record, signals(loss=fine)).grade is Grade.LOG_EXACT
    refused = _judge(record, signals(loss=apart))
    assert (refused.grade, refused.first_difference) == (Grade.REFUSED, 15)


def test_one_different_healthy_step_refuses_the_licence_and_is_named() -> None:
    licence = _judge(signals(loss=_varying()), signals(loss=_varying() | {15: 2.5}))
    assert licence.grade is Grade.REFUSED
    assert licence.first_difference == 15


def test_steps_from_the_onset_on_do_not_count_where_healthy_ones_exist() -> None:
    licence = _judge(signals(loss=_varying() | {21: 9.0}), signals(loss=_varying()))
    assert licence.grade is Grade.BIT_EXACT


def test_a_difference_within_the_measured_spread_licenses_and_beyond_it_refuses() -> None:
    noisy = NoiseFloor(num_repeats=2, bit_exact=False, spread=(("loss", 1e-4),))
    near = _judge(signals(loss=_varying()), signals(loss=_varying(offset=2e-4)), noisy)
    far = _judge(signals(loss=_varying()), signals(loss=_varying(offset=2e-3)), noisy)
    assert (near.grade, far.grade) == (Grade.WITHIN_NOISE, Grade.REFUSED)


def test_a_replay_one_step_late_is_refused_and_called_shifted() -> None:
    shifted = {s + 1: v for s, v in _varying().items()}
    licence = _judge(signals(loss=_varying()), signals(loss=shifted))
    assert licence.grade is Grade.REFUSED
    assert "one step late" in licence.reason


def test_without_healthy_steps_the_incident_itself_may_vouch_by_equality_only() -> None:
    record = signals(loss={s: float(s) for s in range(11, 15)})
    assert _judge(record, record, onset=11).holds
    other = signals(loss={s: float(s) + 0.5 for s in range(11, 15)})
    assert not _judge(record, other, onset=11).holds


def test_nan_alone_licenses_nothing() -> None:
    record = signals(loss=dict.fromkeys(range(11, 15), math.nan))
    assert not _judge(record, record, onset=11).holds


def test_a_replay_that_logs_nothing_is_refused_with_that_reason() -> None:
    licence = _judge(signals(loss=_varying()), Signals())
    assert not licence.holds
    assert "logged nothing" in licence.reason


def test_the_learning_rate_alone_licenses_nothing() -> None:
    assert not _judge(signals(lr=_varying()), signals(lr=_varying())).holds


def test_identical_repeats_are_bit_exact_and_different_ones_give_their_spread() -> None:
    runs = [trial_run(trace([step(11), step(12, loss=2.0 + d)])) for d in (0.0, 0.0, 3e-5)]
    assert noise_floor(runs[:2], before_step=21).bit_exact
    floor = noise_floor(runs, before_step=21)
    assert not floor.bit_exact
    assert abs(floor.of("loss") - 3e-5) < 1e-12


def test_a_single_run_measures_no_noise() -> None:
    floor = noise_floor([trial_run(trace([step(11)]))], before_step=21)
    assert (floor.num_repeats, floor.bit_exact) == (0, False)


def test_a_log_that_counts_from_zero_is_aligned_by_its_own_values() -> None:
    steps = [step(s, loss=2.0 + 0.1 * (s % 4), grad_norm=1.0 + 0.3 * (s % 3)) for s in range(11, 20)]
    logged = signals(loss={s.step - 1: s.loss for s in steps}, grad_norm={s.step - 1: s.grad_norm for s in steps})
    assert step_offset(logged, trace(steps)) == -1
    assert step_offset(signals(loss={s.step: s.loss for s in steps}), trace(steps)) == 0


def test_a_noise_floor_as_wide_as_the_runs_own_fluctuation_licenses_nothing() -> None:
    wide = NoiseFloor(num_repeats=3, bit_exact=False, spread=(("loss", 0.05),))
    licence = _judge(signals(loss=_varying()), signals(loss=_varying(offset=1e-3)), wide)
    assert licence.grade is Grade.REFUSED
    assert "proves nothing" in licence.reason


def test_a_record_that_parts_from_its_command_right_before_the_onset_is_licensed_up_to_there() -> None:
    record = _varying() | {19: 2.0300001, 20: 2.05, 21: 9.0}
    licence = _judge(signals(loss=record), signals(loss=_varying()))
    assert (licence.grade, licence.acts_from) == (Grade.BIT_EXACT, 19)
    assert "the incident acts from there, and was seen at 21" in licence.reason


def test_a_difference_that_heals_or_starts_at_the_checkpoint_or_far_from_the_onset_is_no_early_beginning() -> None:
    healed = _judge(signals(loss=_varying() | {19: 2.5}), signals(loss=_varying()))
    apart = {s: v + (0.1 if s > 10 else 0.0) for s, v in _varying().items()}
    at_once = _judge(signals(loss=apart), signals(loss=_varying()), first=10)
    long_before = {s: v + (0.1 if s > 40 else 0.0) for s, v in _varying(70).items()}
    far = _judge(signals(loss=long_before), signals(loss=_varying(70)), onset=60)
    assert {(one.grade, one.acts_from) for one in (healed, at_once, far)} == {(Grade.REFUSED, None)}


def test_repeats_that_differ_from_each_other_cannot_tell_an_early_beginning_from_noise() -> None:
    noisy = NoiseFloor(num_repeats=2, bit_exact=False, spread=(("loss", 1e-9),))
    licence = _judge(signals(loss=_varying() | {19: 2.04, 20: 2.06, 21: 9.0}), signals(loss=_varying()), noisy)
    assert (licence.grade, licence.acts_from) == (Grade.REFUSED, None)
