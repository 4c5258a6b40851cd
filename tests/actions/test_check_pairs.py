"""Is each thing that happens to tensors between two real checkpoints found, in both precisions and in moments too?"""

import pytest
import torch

from spike.actions.checks.check_checkpoints import checkpoint_facts
from spike.actions.checks.check_scene import scene_of_run
from spike.domain.run import Run
from tests.readers.checkpoints.stacks import EARLIER, LATER, Trainee

DTYPES = (torch.float32, torch.bfloat16)
PLACES = (("model", ""), ("optimizer", "exp_avg"), ("optimizer", "exp_avg_sq"))
BITS = {torch.float32: (torch.int32, 30), torch.bfloat16: (torch.int16, 14)}
"""The view and the highest exponent bit."""


def pair(root, dtype):
    """Two checkpoints of one run with its weights and moments in `dtype`."""
    trainee = Trainee(dtype=dtype)
    for step in (EARLIER, LATER):
        trainee.train(step)
        state = {"model": trainee.model.state_dict(), "optimizer": trainee.optimizer.state_dict(), "step": step}
        torch.save(state, root / f"step-{step}.pt")


def change(root, edit):
    """Edit the later one's state."""
    state = torch.load(root / f"step-{LATER}.pt", weights_only=True)
    edit(state)
    torch.save(state, root / f"step-{LATER}.pt")


def tensor_of(state, part, key):
    """The first weight, or that moment of it."""
    return state["model"]["0.weight"] if part == "model" else state["optimizer"]["state"][0][key]


def facts(root):
    found, _ = checkpoint_facts(scene_of_run(Run(directory=str(root))))
    return {fact.name.removeprefix("checkpoint."): fact for fact in found}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ordinary_training_is_nothing_of_it(dtype, tmp_path):
    pair(tmp_path, dtype)
    found = facts(tmp_path)
    values = {name: found[name].value for name in ("integrity", "finite", "training", "generation", "tensors")}
    assert values == {
        "integrity": "whole",
        "finite": "yes",
        "training": "yes",
        "generation": "one",
        "tensors": "ordinary",
    }
    assert found["bit-flip"].value != "yes"
    assert "the optimizer counts 1 updates between them" in found["training"].statement


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("part", "key"), PLACES)
def test_one_exponent_bit_is_found_at_its_element(dtype, part, key, tmp_path):
    pair(tmp_path, dtype)
    whole, bit = BITS[dtype]

    def flip(state):
        tensor_of(state, part, key).view(-1).view(whole)[37] ^= 1 << bit

    change(tmp_path, flip)
    found = facts(tmp_path)["bit-flip"]
    assert (found.value, found.step) == ("yes", LATER)
    title = f"0.weight ({key})" if key and "0.weight" in found.statement else f"0 ({key})" if key else "0.weight"
    assert f"element 37 of {title} is" in found.statement


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("part", "key"), PLACES)
@pytest.mark.parametrize(("value", "words"), [(0.0, "zeros only"), (1e-39, "subnormal")])
def test_a_tensor_of_zeros_or_subnormals_is_suspicious(dtype, part, key, value, words, tmp_path):
    pair(tmp_path, dtype)
    change(tmp_path, lambda state: tensor_of(state, part, key).fill_(value))
    found = facts(tmp_path)["tensors"]
    assert (found.value, words in found.statement) == ("suspicious", True), found.statement
    assert key in found.statement


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_stopped", [True, False])
def test_weights_that_stay_are_no_training_and_the_counter_tells_why(dtype, has_stopped, tmp_path):
    pair(tmp_path, dtype)
    old = torch.load(tmp_path / f"step-{EARLIER}.pt", weights_only=True)

    def freeze(state):
        state["model"] = old["model"]
        if has_stopped:  # nothing is stepped at all; otherwise the updates are too small to change a weight
            state["optimizer"] = old["optimizer"]

    change(tmp_path, freeze)
    found = facts(tmp_path)["training"]
    assert found.value == "no"
    counted = "the optimizer counts no update in these 1 steps" if has_stopped else "counts 1 updates between them"
    assert counted in found.statement


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_part_of_the_earlier_generation_is_named(dtype, part, tmp_path):
    pair(tmp_path, dtype)
    old = torch.load(tmp_path / f"step-{EARLIER}.pt", weights_only=True)
    change(tmp_path, lambda state: state.update({part: old[part]}))
    found = facts(tmp_path)["generation"]
    assert found.value == "mixed"
    assert {"model": "parameters", "optimizer": "moments"}[part] in found.statement


def sharded(root, steps, frozen):
    """Checkpoints of two weight files, of which the first does not train where it is `frozen`."""
    from safetensors.torch import save_file

    trainee = Trainee()
    constant = {"base.weight": torch.ones(64, 8)}
    for step in steps:
        weights = {f"head.{name}": value for name, value in trainee.train(step).model.state_dict().items()}
        folder = root / f"step-{step}"
        folder.mkdir()
        first = constant if frozen else {"base.weight": torch.full((64, 8), float(step))}
        save_file(first, folder / "model-00001-of-00002.safetensors")
        save_file(weights, folder / "model-00002-of-00002.safetensors")


def test_a_file_that_never_trains_is_no_part_of_another_generation(tmp_path):
    sharded(tmp_path, (2, 3, 4), frozen=True)
    assert facts(tmp_path)["generation"].value == "one"


def test_a_file_of_one_other_generation_is_mixed_even_where_no_checksum_is_stored(tmp_path):
    sharded(tmp_path, (2, 3, 4), frozen=False)
    name = "model-00001-of-00002.safetensors"
    (tmp_path / "step-4" / name).write_bytes((tmp_path / "step-2" / name).read_bytes())
    found = facts(tmp_path)["generation"]
    assert (found.value, found.where.file) == ("mixed", f"step-4/{name}")
    assert "that of step-2 (step 2)" in found.statement


def test_a_copy_of_a_checkpoint_of_a_tiny_model_is_no_mixture(tmp_path):
    """One weight and one bias: too few to tell a generation by, and nothing in the copy differs."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    for step in (1, 2):
        model(torch.ones(1, 8) * step).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, tmp_path / f"step-{step}.pt")
    torch.save(state, tmp_path / "last.pt")
    assert facts(tmp_path)["generation"].value == "one"
