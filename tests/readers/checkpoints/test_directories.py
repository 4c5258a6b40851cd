"""Are directories of files understood as one checkpoint, and is what is missing in them found?"""

import json
import os
import shutil

import pytest
import torch
from tests.readers.checkpoints.made import digest, trained

from spike.domain.checkpoint import Integrity, Role
from spike.readers.checkpoints import find_checkpoints, inspect_checkpoint, lazy_tensors, scan_checkpoint


def parts(folder, step=2):
    """model.pt beside optimizer.pt."""
    folder.mkdir(parents=True, exist_ok=True)
    model, optimizer = trained(step)
    torch.save({"model": model.state_dict(), "step": step}, folder / "model.pt")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(torch.get_rng_state(), folder / "rng.pt")
    return model, optimizer


def test_model_and_optimizer_files_are_one_checkpoint(tmp_path):
    model, _ = parts(tmp_path / "run" / "latest")
    (found,) = find_checkpoints(tmp_path)
    assert (found.layout, found.step, found.integrity) == ("torch-parts", 2, Integrity.COMPLETE)
    assert found.missing == ("scheduler", "data-cursor")
    scan = scan_checkpoint(found)
    assert scan.unreadable == ()
    weights = {t.digest for t in scan.tensors if t.role is Role.PARAMETER}
    assert weights == {digest(t) for t in model.state_dict().values()}


def test_a_damaged_part_damages_the_whole_and_is_named(tmp_path):
    parts(tmp_path / "step-2")
    data = (tmp_path / "step-2" / "optimizer.pt").read_bytes()
    (tmp_path / "step-2" / "optimizer.pt").write_bytes(data[: len(data) // 2])
    found = inspect_checkpoint(tmp_path / "step-2")
    assert found.integrity is Integrity.TORN
    assert "optimizer.pt" in found.reason
    assert any("optimizer.pt" in reason for _, reason in scan_checkpoint(found).unreadable)


def test_files_that_a_loader_would_ignore_are_listed(tmp_path):
    parts(tmp_path / "step-2")
    (tmp_path / "step-2" / "model.pt.tmp").write_bytes(b"left over")
    (tmp_path / "step-2" / "notes.txt").write_text("by hand")
    assert inspect_checkpoint(tmp_path / "step-2").strays == ("model.pt.tmp", "notes.txt")


def ranks(folder, count=3):
    folder.mkdir()
    model, optimizer = trained(2)
    for rank in range(count):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
        torch.save(state, folder / f"rank{rank}.pt")
    return folder


def test_one_file_a_rank_is_one_checkpoint_and_a_missing_rank_tears_it(tmp_path):
    folder = ranks(tmp_path / "step-2")
    found = inspect_checkpoint(folder)
    assert (found.layout, found.step, found.integrity) == ("torch-parts", 2, Integrity.COMPLETE)
    assert {t.file for t in lazy_tensors(found)} == {"rank0.pt", "rank1.pt", "rank2.pt"}
    (folder / "rank1.pt").unlink()
    found = inspect_checkpoint(folder)
    assert found.integrity is Integrity.TORN
    assert "rank 1" in found.reason


def test_several_generations_in_one_directory_are_several_checkpoints(tmp_path):
    for step in (1, 2, 3):
        model, optimizer = trained(step)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": step}
        torch.save(state, tmp_path / f"ckpt_{step:04d}.pt")
    found = find_checkpoints(tmp_path)
    assert [(c.layout, c.step) for c in found] == [("torch-zip", 1), ("torch-zip", 2), ("torch-zip", 3)]


# -- Hugging Face Trainer ---------------------------------------------------------------------------------------


@pytest.fixture
def trainer(samples, tmp_path):
    """A copy of a real Trainer checkpoint, with its times."""
    return shutil.copytree(samples / "hf_trainer" / "checkpoint-3", tmp_path / "checkpoint-3")


def test_a_real_trainer_checkpoint_is_read_in_all_its_parts(trainer):
    found = inspect_checkpoint(trainer)
    assert (found.layout, found.step, found.integrity, found.missing) == ("hf-trainer", 3, Integrity.COMPLETE, ())
    config, scalars = dict(found.config), dict(found.scalars)
    assert config["config.model_type"] == '"llama"'
    assert json.loads(config["training_args.per_device_train_batch_size"]) == 2
    assert config["training_args.lr_scheduler_type"] == '"linear"'
    assert scalars["global_step"] == 3
    assert scalars["optimizer.param_groups.0.initial_lr"] == 5e-5
    scan = scan_checkpoint(found)
    assert scan.unreadable == ()
    state = torch.load(trainer / "optimizer.pt", weights_only=True)["state"]
    moments = {(t.name, t.key): t.digest for t in scan.tensors if t.role is Role.MOMENT}
    assert moments == {(str(i), key): digest(value) for i, by in state.items() for key, value in by.items()}


@pytest.mark.parametrize(
    ("gone", "integrity"),
    [
        ("trainer_state.json", Integrity.TORN),
        ("optimizer.pt", Integrity.TORN),
        ("model.safetensors", Integrity.TORN),
        ("rng_state.pth", Integrity.COMPLETE),
        ("scheduler.pt", Integrity.COMPLETE),
        ("training_args.bin", Integrity.COMPLETE),
    ],
)
def test_what_a_trainer_checkpoint_lost_tears_it_or_is_missing(trainer, gone, integrity):
    (trainer / gone).unlink()
    found = inspect_checkpoint(trainer)
    assert found.integrity is integrity
    if gone in ("rng_state.pth", "scheduler.pt"):
        assert found.missing == (gone.partition("_")[0].partition(".")[0],)


def test_a_trainer_state_with_nan_is_read_and_a_cut_one_tears_the_checkpoint(trainer):
    state = json.loads((trainer / "trainer_state.json").read_text())
    (trainer / "trainer_state.json").write_text(json.dumps({**state, "best_metric": float("nan")}))
    assert inspect_checkpoint(trainer).integrity is Integrity.COMPLETE
    text = (trainer / "trainer_state.json").read_text()
    (trainer / "trainer_state.json").write_text(text[: len(text) // 2])
    assert inspect_checkpoint(trainer).integrity is Integrity.TORN


def test_a_step_that_contradicts_the_directory_is_reported_and_the_contents_win(trainer):
    moved = trainer.rename(trainer.with_name("checkpoint-9"))
    (found,) = find_checkpoints(moved.parent, "checkpoint-{step}")
    assert found.step == 3
    assert "path says step 9, its contents say 3" in found.reason


def test_a_file_written_again_after_the_marker_means_overwritten(trainer):
    optimizer = trainer / "optimizer.pt"
    data = optimizer.read_bytes()
    now = optimizer.stat().st_ctime_ns
    with optimizer.open("r+b") as file:  # the same inode, as torch.save reuses it
        file.write(data)
    later = now + 3_600 * 10**9
    os.utime(trainer / "trainer_state.json", ns=(later, later))
    assert inspect_checkpoint(trainer).integrity is Integrity.COMPLETE
    os.utime(optimizer, ns=(later + 3_600 * 10**9,) * 2)
    found = inspect_checkpoint(trainer)
    assert found.integrity is Integrity.OVERWRITTEN
    assert "optimizer.pt" in found.reason


def test_a_copy_that_lost_its_times_is_not_called_overwritten(trainer):
    # The marker is older than the other files, but those did not exist yet when it was written.
    old = 1_600_000_000 * 10**9
    os.utime(trainer / "trainer_state.json", ns=(old, old))
    found = inspect_checkpoint(trainer)
    assert found.integrity is Integrity.COMPLETE
    assert "copied without its times" in found.reason


def test_the_output_directory_above_the_checkpoints_is_not_one_of_them(trainer):
    root = trainer.parent
    shutil.copy(trainer / "trainer_state.json", root)
    shutil.copy(trainer / "config.json", root)
    assert [c.path for c in find_checkpoints(root)] == [str(trainer)]


def test_a_hostile_training_args_file_makes_the_checkpoint_corrupt(trainer):
    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {trainer / 'was-run'}",)

    torch.save(Hostile(), trainer / "training_args.bin")
    found = inspect_checkpoint(trainer)
    scan_checkpoint(found)
    assert found.integrity is Integrity.CORRUPT
    assert not (trainer / "was-run").exists()
