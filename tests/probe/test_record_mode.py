"""What does recording in production write, and what does it leave out?"""

from __future__ import annotations

import pytest

from .conftest import Ran, Training
from .test_recording import same, state

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def recorded(training: Training) -> Ran:
    training.run("nano.py", "--out", "bare")
    ran = training.run("nano.py", "--out", "recorded", name="record", keep_batches=2, capture_steps=[1])
    assert ran.code == 0, ran.err
    return ran


def test_recording_changes_nothing(training: Training, recorded: Ran) -> None:
    assert same(state(training, "bare/step-6.pt"), state(training, "recorded/step-6.pt"))
    assert recorded.lines("error") == []


def test_losses_norms_rates_batches_and_generators_are_recorded(training: Training, recorded: Ran) -> None:
    steps = recorded.lines("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    for row, step in zip(recorded.rows(), steps, strict=True):
        assert step["loss"] == pytest.approx(row["loss"], rel=1e-7)
        assert step["grad_norm"] == row["grad_norm"]
        assert step["lr"] == [row["lr"]]
        assert set(step["rng"]) >= {"python", "torch"}
        assert all(micro["batch"] for micro in step["micro"])


def test_what_costs_a_copy_of_the_parameters_is_left_out(recorded: Ran) -> None:
    assert [(step["update_norm"], step["param_norm"]) for step in recorded.lines("step")] == [(None, None)] * 6


def test_only_the_newest_batches_are_kept_beside_those_asked_for(recorded: Ran) -> None:
    kept = sorted(path.name for path in (recorded.directory / "batches").iterdir())
    assert kept == [f"step{step:08d}-micro{micro:03d}-rank00000.pt" for step in (1, 5, 6) for micro in (0, 1)]
