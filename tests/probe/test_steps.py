"""What is one attempted step in loops that are not the textbook's? Scalers, several optimizers, closures, NaN."""

from __future__ import annotations

import pytest

from .conftest import Ran, Training

pytestmark = pytest.mark.process

KINDS = (
    "two-optimizers",
    "adversarial",
    "scaler",
    "scaler-fused",
    "closure",
    "in-backward",
    "nan-batch",
    "overflow",
    "split-clip",
    "checkpointed",
    "outside",
    "own-loss",
    "functional",
    "failing-backward",
    "scripted",
    "compiled-autocast",
)


@pytest.fixture(scope="module")
def loops(training: Training) -> dict[str, Ran]:
    return training.run_forks("loops.py", ["{name}"], {kind: {"module_steps": [2]} for kind in KINDS})


def micros(ran: Ran) -> list[int]:
    return [len(step["micro"]) for step in ran.lines("step")]


def test_every_loop_ends_well_and_the_probe_without_errors(loops: dict[str, Ran]) -> None:
    for name, ran in loops.items():
        assert ran.code == 0, (name, ran.err)
        assert ran.lines("error") == [], name
        assert ran.lines("end") == [{"t": "end", "reason": "exited", "steps": len(ran.lines("step"))}], name


def test_two_optimizers_without_a_backward_between_them_are_one_step(loops: dict[str, Ran]) -> None:
    ran = loops["two-optimizers"]
    assert micros(ran) == [1, 1, 1]
    for row, step in zip(ran.rows(), ran.lines("step"), strict=True):
        assert step["loss"] == pytest.approx(row["loss"], rel=1e-7)
        assert step["grad_norm"] == pytest.approx(row["norm"], rel=1e-6)
        assert step["lr"] == [0.1, 0.01]
    assert len(ran.lines("kernels")[0]["optimizers"]) == 2


def test_two_backwards_with_their_own_updates_are_two_steps(loops: dict[str, Ran]) -> None:
    assert micros(loops["adversarial"]) == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["scaler", "scaler-fused"])
def test_a_step_that_the_scaler_withholds_is_an_attempt_that_was_not_applied(loops: dict[str, Ran], kind: str) -> None:
    ran = loops[kind]
    rows = [row for row in ran.rows() if "loss" in row]
    steps = ran.lines("step")
    assert [row["moved"] for row in rows] == [True, True, False, True]
    assert [step["applied"] for step in steps] == [True, True, False, True]
    assert [step["loss_scale"] for step in steps] == [1024.0, 1024.0, 1024.0, 512.0]
    assert [step["precision"] for step in steps] == ["autocast=bfloat16 params=float32"] * 4
    assert steps[2]["update_norm"] == 0.0
    assert steps[2]["nonfinite_grads"] == 4
    assert steps[2]["grad_norm"] in ("NaN", "Infinity")
    assert steps[3]["nonfinite_grads"] == 0


@pytest.mark.parametrize("kind", ["scaler", "scaler-fused"])
def test_loss_and_gradients_of_a_scaled_step_are_undivided_by_the_scale(loops: dict[str, Ran], kind: str) -> None:
    ran = loops[kind]
    losses = [row["loss"] for row in ran.rows() if "loss" in row]
    clipped = next(row["clipped"] for row in ran.rows() if "clipped" in row)
    for number in (0, 1, 3):
        assert ran.lines("step")[number]["loss"] == pytest.approx(losses[number], rel=1e-7)
    assert ran.step(2)["grad_norm"] == clipped
    # Without a clip the norm is measured by the probe, on a step of the same size.
    assert 0.1 < ran.step(1)["grad_norm"] / clipped < 10


def test_the_backwards_inside_of_a_closure_belong_to_its_step(loops: dict[str, Ran]) -> None:
    ran = loops["closure"]
    assert len(ran.lines("step")) == 2
    assert all(number >= 3 for number in micros(ran))
    assert all(step["update_norm"] > 0 for step in ran.lines("step"))


def test_updates_inside_of_the_backward_are_one_step(loops: dict[str, Ran]) -> None:
    ran = loops["in-backward"]
    assert micros(ran) == [1, 1, 1]
    assert all(step["lr"] == [0.05] * 4 for step in ran.lines("step"))
    assert all(step["grad_norm"] > 0 for step in ran.lines("step"))


def test_a_nan_is_counted_before_the_clip_spreads_it(loops: dict[str, Ran]) -> None:
    before, bad, after = loops["nan-batch"].lines("step")
    assert (bad["loss"], bad["grad_norm"], bad["applied"]) == ("NaN", "NaN", True)
    # One NaN input: the gradients of all four parameters, through the loss.
    assert bad["nonfinite_grads"] == 4
    assert before["nonfinite_grads"] == after["nonfinite_grads"] == 0


def test_the_first_module_with_a_non_finite_output_is_named(loops: dict[str, Ran]) -> None:
    (healthy,) = loops["two-optimizers"].lines("modules")
    assert (healthy["first_nonfinite_forward"], healthy["first_nonfinite_backward"]) == ("", "")
    (line,) = loops["overflow"].lines("modules")
    assert line["first_nonfinite_forward"] == "2"
    assert line["first_nonfinite_backward"] != ""
    assert dict(line["absmax"])["2"] in ("Infinity", "NaN")
    assert dict(line["absmax"])["1"] <= 1.0
    # The input itself is not finite: no module has made it.
    (inherited,) = loops["nan-batch"].lines("modules")
    assert inherited["first_nonfinite_forward"] == ""


def test_norms_are_those_before_the_clip_however_it_is_spelt(loops: dict[str, Ran]) -> None:
    ran = loops["split-clip"]
    for row, step, clip in zip(ran.rows(), ran.lines("step"), (0.7, 0.6), strict=True):
        assert step["grad_norm"] == pytest.approx(row["norm"], rel=1e-6)
        assert step["clip"] == clip


def test_recomputed_activations_are_no_new_data(loops: dict[str, Ran]) -> None:
    ran = loops["checkpointed"]
    assert micros(ran) == [1, 1, 1, 1]
    assert len({step["micro"][0]["batch"] for step in ran.lines("step")}) == 4


def test_a_target_that_the_model_was_called_with_is_counted_and_not_new_data(loops: dict[str, Ran]) -> None:
    ran = loops["outside"]
    assert [step["micro"][0]["targets"] for step in ran.lines("step")] == [30, 30]
    assert [step["micro"][0]["samples"] for step in ran.lines("step")] == [5, 5]


def test_targets_of_a_loss_that_is_not_torchs_are_not_measured(loops: dict[str, Ran]) -> None:
    for step in loops["own-loss"].lines("step"):
        assert step["micro"][0]["targets"] is None
        assert step["micro"][0]["supervised"] is None
        assert step["micro"][0]["batch"]


def test_training_without_any_module_is_recorded(loops: dict[str, Ran]) -> None:
    steps = loops["functional"].lines("step")
    assert [step["micro"][0]["targets"] for step in steps] == [5, 5]
    assert steps[0]["micro"][0]["batch"] != steps[1]["micro"][0]["batch"]


def test_a_backward_that_failed_is_in_no_step(loops: dict[str, Ran]) -> None:
    ran = loops["failing-backward"]
    assert micros(ran) == [1, 1]
    # Same batches as the loop that loses none, without the second.
    assert ran.step(2)["micro"][0]["batch"] == loops["nan-batch"].step(3)["micro"][0]["batch"]


def test_autocast_inside_of_compiled_code_is_known_at_every_step(loops: dict[str, Ran]) -> None:
    steps = loops["compiled-autocast"].lines("step")
    assert [step["precision"] for step in steps] == ["autocast=bfloat16 params=float32"] * 3


def test_tracers_see_the_model_alone(training: Training) -> None:
    bare, ran = training.run("loops.py", "traced"), training.run("loops.py", "traced", name="traced")
    assert ran.rows() == bare.rows() != []
    assert ran.lines("error") == []
    assert micros(ran) == [1]


def test_a_scripted_loss_still_compiles(loops: dict[str, Ran]) -> None:
    assert micros(loops["scripted"]) == [1, 1]
