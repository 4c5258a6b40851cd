"""Does the record count as followed exactly when it saw the same data from the same state?"""

import numpy as np
import pytest

from spike.domain.seeded import FEWEST_STEPS, judge_seeded
from spike.domain.signals import Signals
from spike.domain.trial import Grade
from tests.domain.trial_facts import signals

STEPS = range(1, 41)


def _run(batches: np.ndarray, seed: int, noise: float) -> Signals:  # type: ignore[type-arg]
    draw = np.random.default_rng(seed).normal(0.0, noise, len(batches))
    return signals(loss={s: float(v) for s, v in zip(STEPS, batches + draw, strict=False)})


def _batches(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    return 2.0 - 0.002 * np.arange(len(STEPS)) + np.random.default_rng(seed).normal(0.0, 0.1, len(STEPS))


@pytest.mark.parametrize("seed", range(20))
def test_a_record_of_the_same_batches_with_other_masks_is_licensed_within_noise(seed: int) -> None:
    batches = _batches(seed)
    trials = [_run(batches, 1000 * seed + n, 0.01) for n in range(4)]
    licence = judge_seeded(_run(batches, 7 + seed, 0.01), trials, first_step=1, onset=40)
    assert licence.grade is Grade.WITHIN_NOISE
    assert "does not restore its generators" in licence.reason


def test_a_record_of_other_batches_is_never_licensed() -> None:
    tried = 0
    for seed in range(200):
        noise = (0.003, 0.01, 0.03, 0.1)[seed % 4]
        trials = [_run(_batches(seed), 1000 * seed + n, noise) for n in range(4)]
        other = _run(_batches(90_000 + seed), 5 + seed, noise)
        for onset in (12, 20, 40):
            tried += 1
            assert judge_seeded(other, trials, first_step=1, onset=onset).grade is Grade.REFUSED
    assert tried == 600


def test_a_record_that_is_one_step_late_is_never_licensed() -> None:
    for seed in range(50):
        batches = _batches(seed)
        trials = [_run(batches, 1000 * seed + n, 0.01) for n in range(4)]
        late = _run(np.roll(batches, 1), 7 + seed, 0.01)
        assert judge_seeded(late, trials, first_step=1, onset=40).grade is Grade.REFUSED


def test_masks_that_move_the_loss_as_much_as_batches_do_license_nothing() -> None:
    batches = _batches(3)
    trials = [_run(batches, n, 0.3) for n in range(4)]
    licence = judge_seeded(_run(batches, 99, 0.3), trials, first_step=1, onset=40)
    assert licence.grade is Grade.REFUSED
    assert "proves nothing" in licence.reason


def test_too_few_steps_license_nothing_and_are_counted() -> None:
    batches = _batches(4)
    trials = [_run(batches, n, 0.01) for n in range(4)]
    licence = judge_seeded(_run(batches, 9, 0.01), trials, first_step=1, onset=FEWEST_STEPS)
    assert licence.grade is Grade.REFUSED
    assert f"only {FEWEST_STEPS - 1} healthy steps" in licence.reason
