"""Does the probe see unmodified scripts of the usual stacks? HF Trainer, Lightning, torch.compile, safetensors."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from .conftest import Training
from .test_recording import same, state

pytestmark = pytest.mark.process


def final(training: Training, name: str) -> object:
    return torch.load(training.directory / name, weights_only=True)


@pytest.mark.stack
def test_the_hf_trainer_is_recorded_and_undisturbed(training: Training) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    training.run("hf_trainer.py", "hf-bare", "4")
    ran = training.run("hf_trainer.py", "hf-probed", "4", name="hf", fingerprint_steps=[0], module_steps=[2])
    assert ran.code == 0, ran.err
    assert ran.lines("error") == []
    assert same(final(training, "hf-bare/final.pt"), final(training, "hf-probed/final.pt"))
    logged = re.findall(r"'loss': '([\d.]+)', 'grad_norm': '([\d.]+)', 'learning_rate': '([\d.]+)'", ran.out)
    steps = ran.lines("step")
    assert len(logged) == len(steps) == 4
    for (loss, norm, rate), step in zip(logged, steps, strict=True):
        assert step["loss"] == pytest.approx(float(loss), abs=6e-4)
        assert step["grad_norm"] == pytest.approx(float(norm), abs=6e-4)
        assert step["lr"] == [float(rate)] * 2
        assert step["clip"] == 0.5
        # Two samples of ten tokens; the labels are shifted inside of the model, two of each are ignored.
        assert [(m["samples"], m["targets"], m["supervised"]) for m in step["micro"]] == [(2, 20, 16)] * 2
    assert len({m["batch"] for step in steps for m in step["micro"]}) == 8
    names = [name for name, _ in ran.fingerprint(0, "parameter")]
    assert "transformer.h.0.attn.c_attn.weight" in names
    assert ran.lines("modules")[0]["first_nonfinite_forward"] == ""


@pytest.mark.stack
def test_an_hf_window_ends_after_its_last_step_was_logged(training: Training) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    ran = training.run("hf_trainer.py", "hf-stopped", "40", name="hf-stopped", stop_after=2)
    assert ran.code == 0, ran.err
    assert ran.out.count("'grad_norm'") == 2
    assert ran.lines("end") == [{"t": "end", "reason": "window-complete", "steps": 2}]


@pytest.mark.stack
def test_the_launcher_of_accelerate_leaves_no_trace_of_its_own(training: Training) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    launcher = (
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "1",
        "--num_machines",
        "1",
    )
    ran = training.run("hf_trainer.py", "hf-launched", "40", launcher=launcher, name="launched", stop_after=2)
    assert ran.code == 0, ran.err
    assert [path.name for path in (ran.directory / "trace").iterdir()] == ["rank00000.jsonl"]
    assert [step["step"] for step in ran.lines("step")] == [1, 2]


@pytest.mark.stack
def test_lightning_is_recorded_through_its_closures(training: Training) -> None:
    pytest.importorskip("lightning")
    training.run("lightning_fit.py", "lightning-bare.pt")
    ran = training.run("lightning_fit.py", "lightning-probed.pt", name="lightning", fingerprint_steps=[0, 2])
    assert ran.code == 0, ran.err
    assert ran.lines("error") == []
    assert same(final(training, "lightning-bare.pt"), final(training, "lightning-probed.pt"))
    steps = ran.lines("step")
    # The scheduler halves the rate after each step: the one that the update used is the one before.
    assert [step["lr"] for step in steps] == [[0.01], [0.005], [0.0025], [0.00125]]
    assert [len(step["micro"]) for step in steps] == [2, 2, 2, 2]
    assert all(step["clip"] == 0.5 and step["grad_norm"] > 0 and step["update_norm"] > 0 for step in steps)
    assert ran.fingerprint(0, "moment") == {}
    assert len(ran.fingerprint(2, "moment")) == 12


@pytest.mark.stack
def test_a_skip_in_lightning_withholds_the_update_of_a_closure(training: Training) -> None:
    pytest.importorskip("lightning")
    change = {"name": "skip-batch", "steps": [3], "parameters": {}}
    ran = training.run("lightning_fit.py", "lightning-skip.pt", name="lightning-skip", intervention=change)
    assert [line["took_effect"] for line in ran.lines("effect")] == [True]
    assert [step["applied"] for step in ran.lines("step")] == [True, True, False, True]
    assert ran.step(3)["update_norm"] == 0.0


def test_a_compiled_model_is_recorded_and_compiled_as_before(training: Training) -> None:
    bare = training.run("nano.py", "--compile", "--steps", "3", "--out", "compiled-bare")
    ran = training.run("nano.py", "--compile", "--steps", "3", "--out", "compiled", name="compiled", module_steps=[2])
    assert ran.code == 0, ran.err
    assert ran.lines("error") == []
    assert same(state(training, "compiled-bare/step-3.pt"), state(training, "compiled/step-3.pt"))
    # The model, and once more for the evaluation without gradients: the probe adds no graph and breaks none.
    assert bare.rows()[-1]["graphs"] > 0
    assert ran.rows()[-1] == bare.rows()[-1]
    for step in ran.lines("step"):
        # The loss is inside of the compiled region: targets are counted where they enter the model.
        assert [(m["samples"], m["targets"], m["supervised"]) for m in step["micro"]] == [(4, 32, 29)] * 2
        assert all(m["batch"] for m in step["micro"])
    # A watched step runs eagerly, so that every module is seen.
    names = [name for name, _ in ran.lines("modules")[0]["absmax"]]
    assert names[:3] == ["wte", "mlp.0", "mlp.1"]


def test_a_safetensors_checkpoint_is_reported_as_opened(training: Training) -> None:
    pytest.importorskip("safetensors")
    script = training.write(
        "safe.py",
        "import sys, torch\nfrom safetensors.torch import load_file, save_file\n"
        "net = torch.nn.Linear(2, 1)\n"
        "net.load_state_dict(load_file(sys.argv[1]))\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "net(torch.ones(3, 2)).sum().backward()\nopt.step()\n",
    )
    from safetensors.torch import save_file

    folder = training.directory / "ckpt"
    folder.mkdir()
    save_file({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, folder / "model.safetensors")
    ran = training.run(
        script, str(folder / "model.safetensors"), name="safe", checkpoint=str(folder), fingerprint_steps=[0]
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert [line["path"] for line in ran.lines("opened")] == [str(folder / "model.safetensors")]
    assert set(ran.fingerprint(0, "parameter")) == {("weight", ""), ("bias", "")}
