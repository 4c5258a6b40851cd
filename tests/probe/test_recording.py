"""Is what the probe writes what the script did? A nanoGPT-style script, against what it says of itself."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from spike.lab.traces import read_batches, read_traces

from .conftest import Ran, Training

pytestmark = pytest.mark.process

WATCHED = {"capture_steps": [2], "fingerprint_steps": [3, 5], "module_steps": [4], "gradient_steps": [6]}


@pytest.fixture(scope="module")
def bare(training: Training) -> Ran:
    ran = training.run("nano.py", "--out", "bare")
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture(scope="module")
def recorded(training: Training, bare: Ran) -> Ran:
    """The same run resumed from its third checkpoint, watched as closely as possible."""
    training.run("nano.py", "--out", "whole", name="whole", fingerprint_steps=[0, 3])
    ran = training.run(
        "nano.py", "--resume", "bare/step-3.pt", "--out", "watched", name="watched", **{**WATCHED, "first_step": 3},
        checkpoint=str(training.directory / "bare" / "step-3.pt"),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture(scope="module")
def whole(training: Training, recorded: Ran) -> Ran:
    return training._ran(0, "", "", "whole")


def digest(tensor: torch.Tensor) -> str:
    """docs/FORMATS.md "Tensor digest", written independently of the probe."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = "x".join(str(n) for n in tensor.shape)
    return hashlib.sha256(f"{dtype}:{shape}:".encode() + tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def state(training: Training, path: str) -> dict[str, Any]:
    return torch.load(training.directory / path, weights_only=True)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b if not isinstance(a, (list, tuple)) else all(map(same, a, b))


def test_training_is_bit_identical_with_and_without_the_probe(training: Training, recorded: Ran) -> None:
    final = state(training, "bare/step-6.pt")
    assert same(final, state(training, "whole/step-6.pt"))
    assert same(final, state(training, "watched/step-6.pt"))
    assert not same(final, state(training, "bare/step-5.pt"))


def test_every_attempted_step_has_one_line_with_the_scripts_own_numbers(bare: Ran, whole: Ran) -> None:
    rows, steps = bare.rows(), whole.lines("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    for row, step in zip(rows, steps, strict=True):
        assert step["loss"] == pytest.approx(row["loss"], rel=1e-7)
        assert step["grad_norm"] == row["grad_norm"]
        assert step["lr"] == [row["lr"]]
        assert step["clip"] == 1.0
        assert step["applied"] is True
        assert step["nonfinite_grads"] == 0
        assert step["precision"] == "autocast=off params=float32"
        assert step["loss_scale"] is None
        assert step["seconds"] > 0


def test_accumulation_makes_micro_batches_and_no_steps(whole: Ran) -> None:
    for step in whole.lines("step"):
        assert len(step["micro"]) == 2
        assert [micro["samples"] for micro in step["micro"]] == [4, 4]
        # 4 samples of 8 tokens; the script ignores three of them.
        assert [micro["targets"] for micro in step["micro"]] == [32, 32]
        assert [micro["supervised"] for micro in step["micro"]] == [29, 29]


def test_evaluation_leaves_no_trace(whole: Ran) -> None:
    digests = [micro["batch"] for step in whole.lines("step") for micro in step["micro"]]
    assert len(set(digests)) == 12


def test_a_resumed_run_repeats_the_steps_of_the_whole_one(recorded: Ran, whole: Ran) -> None:
    assert [step["step"] for step in recorded.lines("step")] == [4, 5, 6]
    for step in recorded.lines("step"):
        original = whole.step(step["step"])
        for key in ("micro", "grad_norm", "lr", "update_norm", "param_norm"):
            assert step[key] == original[key], key
        assert step["rng"]["torch"] == original["rng"]["torch"]


def test_the_update_norm_is_the_distance_between_two_checkpoints(training: Training, whole: Ran) -> None:
    before, after = (state(training, f"bare/step-{n}.pt")["model"] for n in (4, 5))
    # The head shares the embedding's weight, the scale is a buffer.
    names = [name for name in before if name not in ("head.weight", "scale")]
    moved = torch.cat([(after[n] - before[n]).double().flatten() for n in names]).norm()
    size = torch.cat([after[n].double().flatten() for n in names]).norm()
    assert whole.step(5)["update_norm"] == pytest.approx(float(moved), rel=1e-5)
    assert whole.step(5)["param_norm"] == pytest.approx(float(size), rel=1e-5)


def test_the_fingerprint_as_loaded_is_the_checkpoint(training: Training, recorded: Ran) -> None:
    saved = state(training, "bare/step-3.pt")
    live = recorded.fingerprint(3, "parameter") | recorded.fingerprint(3, "buffer")
    assert live == {(name, ""): digest(tensor) for name, tensor in saved["model"].items()}
    line = next(line for line in recorded.lines("fingerprint") if line["step"] == 3)
    moments = {(t["index"], t["key"]): t["digest"] for t in line["tensors"] if t["role"] == "moment"}
    assert moments == {
        (index, key): digest(tensor)
        for index, keys in saved["optimizer"]["state"].items()
        for key, tensor in keys.items()
    }


def test_a_later_fingerprint_is_the_state_after_that_step(training: Training, recorded: Ran) -> None:
    saved = state(training, "bare/step-5.pt")["model"]
    live = recorded.fingerprint(5, "parameter") | recorded.fingerprint(5, "buffer")
    assert live == {(name, ""): digest(tensor) for name, tensor in saved.items()}


def test_before_the_first_step_of_all_there_are_no_moments(whole: Ran) -> None:
    assert whole.fingerprint(0, "parameter")
    assert whole.fingerprint(0, "moment") == {}


def test_gradients_of_a_step_are_those_before_clipping(recorded: Ran) -> None:
    line = next(line for line in recorded.lines("fingerprint") if line["step"] == 6)
    squares = sum(t["l2"] ** 2 for t in line["tensors"] if t["role"] == "gradient")
    assert squares**0.5 == pytest.approx(recorded.step(6)["grad_norm"], rel=1e-5)


def test_a_watched_step_lists_its_modules_in_the_order_of_execution(recorded: Ran) -> None:
    (line,) = recorded.lines("modules")
    assert line["step"] == 4
    assert line["first_nonfinite_forward"] == ""
    assert line["first_nonfinite_backward"] == ""
    names = [name for name, _ in line["absmax"]]
    assert names == ["wte", "mlp.0", "mlp.1", "mlp.2", "mlp.3", "mlp", "head", ""]
    assert all(value > 0 for _, value in line["absmax"])


def test_saved_batches_hold_what_the_digest_says(training: Training, bare: Ran) -> None:
    ran = training.run("nano.py", "--steps", "3", "--out", "captured", name="captured", capture_steps=[2])
    saved = read_batches(training.directory / "captured")
    assert [(batch.step, batch.micro, batch.num_samples) for batch in saved] == [(2, 0, 4), (2, 1, 4)]
    for batch in saved:
        content = torch.load(batch.path, weights_only=True)
        assert content["schema"] == "spike.batch/1"
        assert [site["site"] for site in content["sites"]] == ["forward:Tiny"]
        x, y = content["sites"][0]["tensors"]
        assert torch.equal(x[1:, 1:], y[1:, :-1])
        joined = "\n".join(digest(tensor) for tensor in (x, y))
        assert hashlib.sha256(joined.encode()).hexdigest() == batch.digest
        assert batch.digest == ran.step(2)["micro"][batch.micro]["batch"]


def test_the_start_line_says_where_this_ran_and_nothing_secret(training: Training) -> None:
    variables = {"HF_TOKEN": "s3cret", "MKL_CBWR": "AUTO"}
    ran = training.run("nano.py", "--steps", "1", "--out", "secret", name="secret", environment=variables)
    (start,) = ran.lines("start")
    assert start["schema"] == "spike.trace/1"
    assert (start["rank"], start["world"], start["threads"], start["device"]) == (0, 1, 1, "cpu")
    assert start["argv"][1:] == ["--steps", "1", "--out", "secret"]
    assert start["packages"]["torch"] == torch.__version__
    assert start["env"]["MKL_CBWR"] == "AUTO"
    assert "s3cret" not in (ran.directory / "trace" / "rank00000.jsonl").read_text()
    (kernels,) = ran.lines("kernels")
    assert kernels["kernels"]["deterministic_algorithms"] == "False"
    assert kernels["optimizers"][0].startswith("AdamW(params 5): ")
    assert "betas=(0.9, 0.95)" in kernels["optimizers"][0]


def test_files_of_the_checkpoint_that_were_opened_are_reported_once(training: Training, recorded: Ran) -> None:
    opened = [line["path"] for line in recorded.lines("opened")]
    assert opened == [str(training.directory / "bare" / "step-3.pt")]


def test_the_labs_reader_understands_the_trace(training: Training, recorded: Ran) -> None:
    (trace,) = read_traces(training.directory / "watched")
    assert trace.end == "exited"
    assert trace.errors == ()
    assert [step.step for step in trace.steps] == [4, 5, 6]
    assert trace.steps[0].lr == tuple(recorded.step(4)["lr"])
    assert trace.first_step == 3


def test_without_a_plan_nothing_is_written(training: Training, stage: Path) -> None:
    before = set(training.directory.rglob("*.jsonl"))
    ran = training.run(
        "nano.py", "--steps", "1", "--out", "unplanned", environment={"PYTHONPATH": str(stage)}
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert set(training.directory.rglob("*.jsonl")) - before == {training.directory / "unplanned" / "log.jsonl"}
