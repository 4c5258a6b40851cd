"""Does each intervention change what it says, and nothing else? On a real training process, resumed at step 3."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from spike.lab.catalogue import interventions

from .conftest import Ran, Training
from .test_recording import digest, same
from .test_window import TORCHRUN

pytestmark = pytest.mark.process

FROM = ["--resume", "bare/step-3.pt", "--out", "{name}"]
BROKEN = ("unknown", "incomplete", "donor-gone")
"""Plans that name a change which cannot be made."""


def plan(name: str, steps: tuple[int, ...] = (), **parameters: Any) -> dict[str, Any]:
    return {
        "first_step": 3,
        "fingerprint_steps": [3, 4],
        "capture_steps": [4, 5],
        "intervention": {"name": name, "steps": list(steps), "parameters": parameters},
    }


@pytest.fixture(scope="module")
def baseline(training: Training) -> Ran:
    """Six steps with checkpoints, then steps 4 to 6 again under the probe without a change."""
    bare = training.run("nano.py", "--out", "bare")
    assert bare.code == 0, bare.err
    keys = {"first_step": 3, "fingerprint_steps": [3, 4], "capture_steps": [4, 5, 6]}
    return training.run_forks("nano.py", FROM, {"baseline": keys})["baseline"]


@pytest.fixture(scope="module")
def donors(training: Training, baseline: Ran) -> dict[str, str]:
    """Donor files from the checkpoint of step 1 and of step 3, and one that fits nothing."""
    paths = {}
    for step in (1, 3):
        state = torch.load(training.directory / f"bare/step-{step}.pt", weights_only=True)
        parameters = {f"module.{name}": tensor for name, tensor in state["model"].items()}
        donor = {"schema": "spike.donor/1", "parameters": parameters, "moments": state["optimizer"]["state"]}
        paths[f"step-{step}"] = str(training.directory / f"donor-{step}.pt")
        torch.save(donor, paths[f"step-{step}"])
    donor["parameters"] = {name: torch.zeros(3) for name in donor["parameters"]}
    paths["misfit"] = str(training.directory / "donor-misfit.pt")
    torch.save(donor, paths["misfit"])
    return paths


def batch_file(training: Training, step: int, micro: int) -> str:
    return str(training.directory / f"baseline/batches/step{step:08d}-micro{micro:03d}-rank00000.pt")


@pytest.fixture(scope="module")
def changed(training: Training, baseline: Ran, donors: dict[str, str]) -> dict[str, Ran]:
    """One process for each change."""
    control = [f"5:{micro}:0:{batch_file(training, 6, micro)}" for micro in (0, 1)]
    flipped = [f"5:{micro}:0:{batch_file(training, 5, micro)}" for micro in (0, 1)]
    plans = {
        "skip-batch": plan("skip-batch", (5,)),
        "control-batch": plan("control-batch", (5,), donors=control),
        "control-itself": plan("control-batch", (5,), donors=flipped),
        "control-short": plan("control-batch", (5,), donors=control[:1]),
        "control-other-rank": plan("control-batch", (5,), donors=[text.replace(":0:/", ":1:/") for text in control]),
        "control-gone": plan("control-batch", (5,), donors=["5:0:0:/nowhere.pt", control[1]]),
        "transplant": plan("transplant", (4,), donors=[text.replace("5:", "4:", 1) for text in control]),
        "mask-samples": plan("mask-samples", (5,), donors=control, keep=[2, 5]),
        "mask-nothing": plan("mask-samples", (5,), donors=control, keep=list(range(8))),
        "scheduled-lr": plan("scheduled-lr", (5,), lr=["5:0.0025"]),
        "scaled-lr": plan("scaled-lr", (), scale=0.5),
        "clipping": plan("clipping", (5,), max_norm=0.25),
        "fresh-moments": plan("fresh-moments"),
        "donor-moments": plan("donor-moments", donor=donors["step-1"]),
        "donor-parameters": plan("donor-parameters", donor=donors["step-1"]),
        "donor-misfit": plan("donor-parameters", donor=donors["misfit"]),
        "intact-load": plan("intact-load", donor=donors["step-1"]),
        "intact-already": plan("intact-load", donor=donors["step-3"]),
        "full-precision": plan("full-precision"),
        "safe-kernels": plan("safe-kernels"),
        "reseed": plan("reseed", seed=99),
        "set-element": plan("set-element", (5,), element="wte.weight:7:40000000"),
        "unknown": plan("no-such-change"),
        "incomplete": plan("scaled-lr"),
        "donor-gone": plan("intact-load", donor="/nowhere.pt"),
    }
    return training.run_forks("nano.py", FROM, plans)


def effects(ran: Ran) -> list[tuple[int, str, bool]]:
    return [(line["step"], line["what"], line["took_effect"]) for line in ran.lines("effect")]


def batches(ran: Ran, step: int) -> list[str]:
    return [micro["batch"] for micro in ran.step(step)["micro"]]


def final(training: Training, name: str) -> Any:
    return torch.load(training.directory / f"{name}/step-6.pt", weights_only=True)["model"]


def test_the_repeated_baseline_is_the_run_itself(training: Training, baseline: Ran) -> None:
    assert same(final(training, "baseline"), final(training, "bare"))


def test_every_intervention_of_the_probe_is_exercised_here(changed: dict[str, Ran]) -> None:
    in_process = {info.name for info in interventions().values() if info.is_in_process}
    assert in_process <= set(changed)


def test_no_change_breaks_the_run_or_the_probe(changed: dict[str, Ran]) -> None:
    for name, ran in changed.items():
        assert ran.code == 0, (name, ran.err)
        assert [step["step"] for step in ran.lines("step")] == [4, 5, 6], name
        if name not in BROKEN:
            assert ran.lines("error") == [], name


def test_a_skipped_batch_moves_neither_parameters_nor_moments(changed: dict[str, Ran], baseline: Ran) -> None:
    ran = changed["skip-batch"]
    assert effects(ran) == [(5, "parameters and moments", True)]
    assert [step["applied"] for step in ran.lines("step")] == [True, False, True]
    assert ran.step(5)["update_norm"] == 0.0
    assert ran.step(5)["param_norm"] == ran.step(4)["param_norm"]
    # The suspect step itself is seen unchanged: same batch, same gradients.
    assert ran.step(5)["micro"] == baseline.step(5)["micro"]
    assert ran.step(5)["grad_norm"] == baseline.step(5)["grad_norm"]
    assert ran.step(6)["grad_norm"] != baseline.step(6)["grad_norm"]


def test_a_skipped_step_saves_the_checkpoint_of_the_step_before(training: Training, changed: dict[str, Ran]) -> None:
    four, five = (torch.load(training.directory / f"skip-batch/step-{n}.pt", weights_only=True) for n in (4, 5))
    assert same(four["model"], five["model"])
    assert same(four["optimizer"]["state"], five["optimizer"]["state"])


@pytest.mark.parametrize(("name", "step"), [("control-batch", 5), ("transplant", 4)])
def test_the_donor_batch_is_what_reaches_the_model(
    changed: dict[str, Ran], baseline: Ran, name: str, step: int
) -> None:
    ran = changed[name]
    assert effects(ran) == [(step, "batch.0", True), (step, "batch.1", True)]
    assert batches(ran, step) == batches(baseline, 6)
    assert [line["before"] for line in ran.lines("effect")] == batches(baseline, step)
    assert ran.step(step)["loss"] != baseline.step(step)["loss"]
    others = {4, 5, 6} - {step}
    assert all(batches(ran, other) == batches(baseline, other) for other in others)
    # Same random numbers: only the content of the batch differs.
    assert ran.step(step)["rng"]["torch"] == baseline.step(step)["rng"]["torch"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("control-short", "steps have 2 micro-batches on rank 0, the donor has 1"),
        ("control-gone", "the donor of micro-batch 0 cannot be read"),
    ],
)
def test_a_donor_that_does_not_fit_is_refused_and_the_run_goes_on_unchanged(
    training: Training, changed: dict[str, Ran], baseline: Ran, name: str, reason: str
) -> None:
    ran = changed[name]
    assert effects(ran) == [(5, "batch", False)]
    assert reason in ran.lines("effect")[0]["after"]
    assert same(final(training, name), final(training, "bare"))


def test_a_donor_for_another_rank_leaves_this_one_untouched_and_that_is_said(
    changed: dict[str, Ran], baseline: Ran
) -> None:
    ran = changed["control-other-rank"]
    assert effects(ran) == [(5, "batch", True)]
    assert [line["after"] for line in ran.lines("effect")] == ["untouched: the change is for other ranks"]
    assert [line["loss"] for line in ran.lines("step")] == [line["loss"] for line in baseline.lines("step")]


def test_a_batch_in_its_own_place_is_no_change(changed: dict[str, Ran]) -> None:
    assert effects(changed["control-itself"]) == [(5, "batch.0", False), (5, "batch.1", False)]


def test_masking_keeps_the_named_samples_and_replaces_the_others(training: Training, changed: dict[str, Ran]) -> None:
    ran = changed["mask-samples"]
    assert effects(ran) == [(5, "batch.0", True), (5, "batch.1", True)]
    masked = [
        torch.load(ran.directory / line["path"], weights_only=True) for line in ran.lines("batch") if line["step"] == 5
    ]
    for micro, kept in ((0, 2), (1, 1)):
        own, donor = (torch.load(batch_file(training, step, micro), weights_only=True) for step in (5, 6))
        for position in (0, 1):
            got, mine, other = (batch["sites"][0]["tensors"][position] for batch in (masked[micro], own, donor))
            for sample in range(4):
                assert torch.equal(got[sample], mine[sample] if sample == kept else other[sample])
            assert not torch.equal(mine[kept], other[kept])


def test_masking_nothing_is_no_change(training: Training, changed: dict[str, Ran]) -> None:
    assert effects(changed["mask-nothing"]) == [(5, "batch", False)]
    assert same(final(training, "mask-nothing"), final(training, "bare"))


def test_the_scheduled_rate_is_used_for_its_step_and_then_left_to_the_script(
    changed: dict[str, Ran], baseline: Ran
) -> None:
    ran = changed["scheduled-lr"]
    assert [step["lr"] for step in ran.lines("step")] == [[0.0097], [0.0025], [0.0095]]
    (effect,) = ran.lines("effect")
    assert (effect["before"], effect["after"], effect["took_effect"]) == ("0.0096", "0.0025", True)
    # The script reads its own rate back right after the update.
    assert [row["lr"] for row in ran.rows()] == [0.0097, 0.0096, 0.0095]
    assert ran.step(5)["update_norm"] < 0.5 * baseline.step(5)["update_norm"]


def test_a_scaled_rate_holds_for_the_whole_window(changed: dict[str, Ran]) -> None:
    ran = changed["scaled-lr"]
    assert [step["lr"][0] for step in ran.lines("step")] == pytest.approx([0.00485, 0.0048, 0.00475])
    assert effects(ran) == [(4, "lr", True), (5, "lr", True), (6, "lr", True)]


def test_clipping_takes_the_place_of_the_scripts_norm(changed: dict[str, Ran], baseline: Ran) -> None:
    ran = changed["clipping"]
    assert [step["clip"] for step in ran.lines("step")] == [1.0, 0.25, 1.0]
    assert effects(ran) == [(5, "max_norm", True)]
    assert ran.step(5)["grad_norm"] == baseline.step(5)["grad_norm"]


def test_clipping_is_done_for_a_script_that_does_not_clip(training: Training, baseline: Ran) -> None:
    plans = {"loose": {"first_step": 3}, "clipped": plan("clipping", (5,), max_norm=0.25)}
    ran = training.run_forks("nano.py", [*FROM, "--no-clip"], plans)
    assert [step["clip"] for step in ran["loose"].lines("step")] == [None, None, None]
    assert [step["clip"] for step in ran["clipped"].lines("step")] == [None, 0.25, None]
    (effect,) = ran["clipped"].lines("effect")
    assert effect["took_effect"]
    before, after = (float(effect[key].split("norm ")[1].rstrip(")")) for key in ("before", "after"))
    assert before == pytest.approx(ran["loose"].step(5)["grad_norm"], rel=1e-6)
    assert after == pytest.approx(0.25, rel=1e-4)
    assert ran["clipped"].step(5)["grad_norm"] == ran["loose"].step(5)["grad_norm"]


def test_fresh_moments_leave_no_state_before_the_first_update(changed: dict[str, Ran], baseline: Ran) -> None:
    ran = changed["fresh-moments"]
    assert effects(ran) == [(4, "moments", True)]
    assert baseline.fingerprint(3, "moment")
    assert ran.fingerprint(3, "moment") == {}
    assert ran.fingerprint(3, "parameter") == baseline.fingerprint(3, "parameter")


def test_donor_moments_are_in_the_optimizer_before_the_first_update(
    training: Training, changed: dict[str, Ran], baseline: Ran
) -> None:
    ran = changed["donor-moments"]
    assert effects(ran) == [(4, "moments", True)]
    saved = torch.load(training.directory / "bare/step-1.pt", weights_only=True)["optimizer"]["state"]
    expected = {digest(tensor) for keys in saved.values() for tensor in keys.values()}
    assert set(ran.fingerprint(3, "moment").values()) == expected
    assert ran.fingerprint(3, "parameter") == baseline.fingerprint(3, "parameter")


def test_donor_parameters_are_in_the_model_before_the_first_forward(
    training: Training, changed: dict[str, Ran], baseline: Ran
) -> None:
    ran = changed["donor-parameters"]
    assert effects(ran) == [(4, "parameters", True)]
    saved = torch.load(training.directory / "bare/step-1.pt", weights_only=True)["model"]
    live = ran.fingerprint(3, "parameter") | ran.fingerprint(3, "buffer")
    assert live == {(name, ""): digest(tensor) for name, tensor in saved.items()}
    assert ran.fingerprint(3, "moment") == baseline.fingerprint(3, "moment")


def test_a_donor_of_other_shapes_is_not_forced(training: Training, changed: dict[str, Ran]) -> None:
    (effect,) = changed["donor-misfit"].lines("effect")
    assert not effect["took_effect"]
    assert "of another shape" in effect["after"]
    assert same(final(training, "donor-misfit"), final(training, "bare"))


def test_an_intact_load_forces_parameters_and_moments(changed: dict[str, Ran]) -> None:
    ran = changed["intact-load"]
    assert effects(ran) == [(4, "parameters and moments", True)]
    assert ran.fingerprint(3, "parameter") == changed["donor-parameters"].fingerprint(3, "parameter")
    assert ran.fingerprint(3, "moment") == changed["donor-moments"].fingerprint(3, "moment")


def test_an_intact_load_of_what_was_loaded_holds_and_changes_nothing(
    training: Training, changed: dict[str, Ran]
) -> None:
    assert effects(changed["intact-already"]) == [(4, "parameters and moments", True)]
    assert same(final(training, "intact-already"), final(training, "bare"))


def test_full_precision_says_so_where_there_is_nothing_to_change(changed: dict[str, Ran]) -> None:
    ran = changed["full-precision"]
    assert effects(ran) == [(4, "autocast", False), (5, "autocast", False), (6, "autocast", False)]
    assert "parameters are float32 and are not converted" in ran.lines("effect")[0]["after"]


def test_full_precision_switches_autocast_off(training: Training, baseline: Ran) -> None:
    plans = {
        "mixed": {"first_step": 3},
        "full": plan("full-precision"),
        "full-once": plan("full-precision", (5,)),
    }
    ran = training.run_forks("nano.py", [*FROM, "--autocast"], plans)
    precisions = {name: [step["precision"].split()[0] for step in r.lines("step")] for name, r in ran.items()}
    assert precisions["mixed"] == ["autocast=bfloat16"] * 3
    assert precisions["full"] == ["autocast=off"] * 3
    assert precisions["full-once"] == ["autocast=bfloat16", "autocast=off", "autocast=bfloat16"]
    assert effects(ran["full-once"]) == [(5, "autocast", True)]
    # Off all the time is the run that never had autocast, bit for bit.
    assert same(final(training, "full"), final(training, "bare"))
    assert not same(final(training, "mixed"), final(training, "bare"))


def test_safe_kernels_are_seen_in_the_flags_of_the_process(changed: dict[str, Ran], baseline: Ran) -> None:
    ran = changed["safe-kernels"]
    before, after = (r.lines("kernels")[0] for r in (baseline, ran))
    assert (before["kernels"]["sdp_flash"], after["kernels"]["sdp_flash"]) == ("True", "False")
    assert after["kernels"]["deterministic_algorithms"] == "True"
    assert "foreach=False, fused=False" in after["optimizers"][0]
    named = {line["what"].removeprefix("kernel."): line for line in ran.lines("effect")}
    assert all(line["took_effect"] for line in named.values())
    for flag, value in after["kernels"].items():
        assert (flag in named) == (value != before["kernels"][flag])


def test_a_reseed_changes_the_random_numbers_and_not_the_first_batch(changed: dict[str, Ran], baseline: Ran) -> None:
    ran = changed["reseed"]
    assert {what for _, what, took_effect in effects(ran) if took_effect} >= {"rng.python", "rng.torch"}
    assert ran.step(4)["rng"]["torch"] != baseline.step(4)["rng"]["torch"]
    assert batches(ran, 4)[0] == batches(baseline, 4)[0]
    assert ran.step(4)["loss"] != baseline.step(4)["loss"]


def test_a_flipped_bit_is_in_the_weights_from_its_step_on(changed: dict[str, Ran], baseline: Ran) -> None:
    ran = changed["set-element"]
    assert effects(ran) == [(5, "element", True)]
    (effect,) = ran.lines("effect")
    # Bit 30 is the highest of the exponent.
    assert abs(float(effect["after"])) > 1e30 * abs(float(effect["before"]))
    assert ran.step(4)["loss"] == baseline.step(4)["loss"]
    assert batches(ran, 5) == batches(baseline, 5)
    assert ran.step(5)["param_norm"] != baseline.step(5)["param_norm"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown", "the probe has no intervention 'no-such-change'"),
        ("incomplete", "intervention 'scaled-lr' needs the parameters scale"),
        ("donor-gone", "FileNotFoundError"),
    ],
)
def test_a_change_that_cannot_be_made_leaves_an_error_and_no_effect(
    training: Training, changed: dict[str, Ran], name: str, message: str
) -> None:
    ran = changed[name]
    assert effects(ran) == []
    assert message in ran.lines("error")[0]["message"]
    assert same(final(training, name), final(training, "bare"))


def test_an_effect_is_written_for_every_change_that_was_planned(changed: dict[str, Ran]) -> None:
    for name, ran in changed.items():
        assert bool(effects(ran)) == (name not in BROKEN), name


def test_interventions_read_no_file_but_their_donors() -> None:
    """An intervention that imports more than torch, the standard library and the probe would not stage."""
    folder = Path(__file__).parents[2] / "src" / "spike_probe"
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] != "spike", f"{path.name} imports {name}"


def test_a_batch_that_is_replaced_on_one_rank_leaves_the_others_alone_and_they_say_so(training: Training) -> None:
    recorded = training.run("ddp.py", launcher=TORCHRUN, name="ranks", capture_steps=[2, 3])
    saved = [line for line in recorded.lines("batch", 1) if line["step"] == 2]
    donors = [f"3:{line['micro']}:1:{recorded.directory / line['path']}" for line in saved]
    change = {"name": "control-batch", "steps": [3], "parameters": {"donors": donors}}
    changed = training.run("ddp.py", launcher=TORCHRUN, name="one-rank", intervention=change)
    assert changed.code == 0, changed.err
    assert [e["after"] for e in changed.lines("effect", 0)] == ["untouched: the change is for other ranks"]
    effects = changed.lines("effect", 1)
    assert len(effects) == len(donors) > 0
    assert all(effect["took_effect"] and effect["before"] != effect["after"] for effect in effects)
    batches = [[line["micro"][0]["batch"] for line in ran.lines("step", 0)] for ran in (recorded, changed)]
    assert batches[0] == batches[1]
