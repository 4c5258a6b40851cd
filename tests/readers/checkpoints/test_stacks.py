"""Is every stack's layout read as that stack wrote it, and is what each may lose found?"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from tests.readers.checkpoints.made import digest, trained

from spike.domain.checkpoint import Integrity, Role
from spike.domain.ranks import replica_agreement
from spike.readers.checkpoints import find_checkpoints, inspect_checkpoint, lazy_tensors, scan_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def clean(found):
    assert scan_checkpoint(found).unreadable == ()
    return found


# -- Lightning ---


def test_a_real_lightning_file_is_read(samples):
    folder = samples / "lightning" / "lightning_logs" / "version_0" / "checkpoints"
    found = clean(inspect_checkpoint(folder / "epoch=0-step=2.ckpt"))
    assert (found.layout, found.step, found.integrity) == ("lightning", 2, Integrity.COMPLETE)
    scalars = dict(found.scalars)
    assert scalars["fit_loop.batches.processed"] == 2
    assert scalars["scheduler.last_epoch"] == 2
    assert scalars["optimizer.param_groups.0.initial_lr"] == 1e-3
    assert dict(found.config)["lightning_version"] == '"2.6.6"'
    assert found.missing == ("rng", "data-cursor")
    moments = [(t.index, t.key) for t in lazy_tensors(found) if t.role is Role.MOMENT]
    assert len(moments) == 6


def test_last_ckpt_does_not_hide_the_files_that_carry_a_step(samples):
    found = find_checkpoints(samples / "lightning", "lightning_logs/version_0/checkpoints/epoch=*-step={step}.ckpt")
    assert [c.step for c in found] == [1, 2, 3]


@pytest.mark.stack
def test_a_lightning_trainer_of_this_machine_is_read(written):
    _, later = written("lightning")
    found = clean(inspect_checkpoint(later))
    assert (found.layout, found.step) == ("lightning", 3)
    assert dict(found.config)["hyper_parameters.width"] == "8"
    state = torch.load(later, weights_only=True)
    weights = {t.name: t.digest for t in scan_checkpoint(found).tensors if t.role is Role.PARAMETER}
    assert weights == {name: digest(tensor) for name, tensor in state["state_dict"].items()}


@pytest.mark.stack
def test_the_directory_of_a_sharded_strategy_is_a_lightning_checkpoint(written):
    _, later = written("lightning-sharded")
    found = clean(inspect_checkpoint(later))
    assert (found.layout, found.step, found.integrity) == ("lightning", 3, Integrity.COMPLETE)
    assert dict(found.scalars)["fit_loop.batches.processed"] == 3
    whole = torch.load(later.parents[1] / "whole-3.bin", weights_only=True)
    weights = {t.name: t.digest for t in scan_checkpoint(found).tensors if t.role is Role.PARAMETER}
    assert weights == {name: digest(tensor) for name, tensor in whole.items()}
    assert {t.key for t in lazy_tensors(found) if t.role is Role.MOMENT} == {"step", "exp_avg", "exp_avg_sq"}


MODEL_PARALLEL = """
import sys
import torch, lightning.pytorch as lightning
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    def configure_model(self):
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])
    def training_step(self, batch, _index):
        return self.layers(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

saver = lightning.callbacks.ModelCheckpoint(dirpath=sys.argv[1], every_n_train_steps=1, save_top_k=-1)
strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
trainer = lightning.Trainer(
    max_steps=2, callbacks=[saver], logger=False, accelerator="cpu", devices=2, strategy=strategy,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=2))
"""


@pytest.mark.long
@pytest.mark.stack
@pytest.mark.process
def test_lightnings_own_model_parallel_strategy_writes_what_is_read(tmp_path):
    pytest.importorskip("lightning.pytorch")
    (tmp_path / "job.py").write_text(MODEL_PARALLEL)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "job.py", str(tmp_path / "saved")]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300, capture_output=True)
    found = [clean(c) for c in find_checkpoints(tmp_path / "saved")]
    assert [(c.layout, c.step, c.integrity) for c in found] == [
        ("lightning", 1, Integrity.COMPLETE),
        ("lightning", 2, Integrity.COMPLETE),
    ]
    assert sum(t.role is Role.MOMENT for t in lazy_tensors(found[-1])) == 12


# -- Accelerate ---


@pytest.fixture
def accelerated(samples, tmp_path):
    return Path(shutil.copytree(samples / "accelerate" / "checkpoint_2", tmp_path / "checkpoint_2"))


def test_a_real_accelerate_directory_counts_steps_and_not_saves(accelerated):
    found = clean(inspect_checkpoint(accelerated))
    assert (found.layout, found.step, found.integrity, found.missing) == (
        "accelerate",
        3,
        Integrity.COMPLETE,
        ("data-cursor",),
    )
    assert dict(found.scalars)["scheduler.last_epoch"] == 3


def test_a_cut_file_of_accelerate_tears_it(accelerated):
    data = (accelerated / "optimizer.bin").read_bytes()
    (accelerated / "optimizer.bin").write_bytes(data[:1000])
    found = inspect_checkpoint(accelerated)
    assert found.integrity is Integrity.TORN
    assert "optimizer.bin" in found.reason


def test_accelerate_without_a_model_is_torn(accelerated):
    (accelerated / "model.safetensors").unlink()
    assert inspect_checkpoint(accelerated).integrity is Integrity.TORN


@pytest.mark.stack
def test_an_accelerate_save_of_this_machine_is_read(written):
    _, later = written("accelerate")
    found = clean(inspect_checkpoint(later))
    assert (found.layout, found.step, found.integrity) == ("accelerate", 3, Integrity.COMPLETE)
    assert sum(t.role is Role.MOMENT for t in lazy_tensors(found)) == 12


# -- Hugging Face Trainer ---


@pytest.mark.stack
def test_a_trainer_of_this_machine_is_read(written):
    for step, path in zip((2, 3), written("hf-trainer"), strict=True):
        found = clean(inspect_checkpoint(path))
        expected = ("hf-trainer", step, Integrity.COMPLETE, ())
        assert (found.layout, found.step, found.integrity, found.missing) == expected
        held = {t.name: t.digest for t in scan_checkpoint(found).tensors if t.role is Role.PARAMETER}
        with safe_open(path / "model.safetensors", "pt") as file:
            assert held == {name: digest(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118


# -- DeepSpeed ---


@pytest.fixture
def deepspeed(samples, tmp_path):
    return Path(shutil.copytree(samples / "deepspeed_zero1_2rank", tmp_path / "ds")) / "global_step3"


def test_a_real_deepspeed_directory_is_read_with_the_partitions_of_every_rank(deepspeed):
    found = clean(inspect_checkpoint(deepspeed))
    assert (found.layout, found.step, found.integrity) == ("deepspeed", 3, Integrity.COMPLETE)
    config, scalars = dict(found.config), dict(found.scalars)
    assert config["ds_config.zero_optimization.stage"] == "1"
    assert (scalars["skipped_steps"], scalars["dp_world_size"], scalars["optimizer.step"]) == (0, 2, 3)
    moments = {(t.key, t.file[:20]) for t in lazy_tensors(found) if t.role is Role.MOMENT and t.key != "step"}
    assert {key for key, _ in moments} == {"exp_avg", "exp_avg_sq", "fp32_partition"}
    assert len(moments) == 6
    assert all(t.index == -1 for t in lazy_tensors(found))


@pytest.mark.stack
def test_a_deepspeed_save_of_this_machine_is_read(written):
    _, later = written("deepspeed")
    found = clean(inspect_checkpoint(later))
    assert (found.layout, found.step, found.integrity, found.reason) == ("deepspeed", 3, Integrity.COMPLETE, "")
    assert {t.dtype for t in lazy_tensors(found) if t.role is Role.PARAMETER} == {"bfloat16"}
    partitions = [t.shape for t in lazy_tensors(found) if t.key == "fp32_partition"]
    assert partitions == [(106,), (106,)], "212 parameters over two ranks"


def test_a_missing_partition_tears_deepspeed(deepspeed):
    next(deepspeed.glob("*rank_1*")).unlink()
    found = inspect_checkpoint(deepspeed)
    assert found.integrity is Integrity.TORN
    assert "rank 1" in found.reason


def test_a_directory_that_latest_does_not_name_yet_is_noted(deepspeed):
    moved = deepspeed.rename(deepspeed.with_name("global_step5"))
    assert "still names step 3" in inspect_checkpoint(moved).reason


# -- Megatron, legacy ---


def megatron(root, *, tensor=2, pipeline=1, iteration=50):
    folder = root / f"iter_{iteration:07d}"
    for t in range(tensor):
        for p in range(pipeline):
            _, optimizer = trained(2)
            args = argparse.Namespace(
                tensor_model_parallel_size=tensor,
                pipeline_model_parallel_size=pipeline,
                lr=1e-4,
                consumed_train_samples=800,
                iteration=iteration,
                save=Path("/ckpt"),
            )
            language = {
                "encoder": {"input_layernorm.weight": torch.ones(4), "attention.weight": torch.full((4,), float(t))}
            }
            state = {
                "args": args,
                "checkpoint_version": 3.0,
                "iteration": iteration,
                "model": {"language_model": language},
                "optimizer": optimizer.state_dict(),
                "opt_param_scheduler": {"max_lr": 1e-4, "num_steps": 800},
                "rng_state": [{"numpy_rng_state": np.random.get_state(), "torch_rng_state": torch.get_rng_state()}],
            }
            place = folder / (f"mp_rank_{t:02d}" if pipeline == 1 else f"mp_rank_{t:02d}_{p:03d}")
            place.mkdir(parents=True)
            torch.save(state, place / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return folder


def test_a_megatron_directory_is_read_rank_by_rank(tmp_path):
    found = clean(inspect_checkpoint(megatron(tmp_path)))
    assert (found.layout, found.step, found.integrity, found.missing) == ("megatron", 50, Integrity.COMPLETE, ())
    config, scalars = dict(found.config), dict(found.scalars)
    assert config["args.lr"] == "0.0001"
    assert config["args.save"] == '"/ckpt"'
    assert scalars["consumed_train_samples"] == 800
    names = {(t.name, t.file) for t in lazy_tensors(found) if t.role is Role.PARAMETER}
    assert ("language_model.encoder.attention.weight", "mp_rank_01/model_optim_rng.pt") in names


def test_a_missing_model_rank_tears_megatron(tmp_path):
    folder = megatron(tmp_path, tensor=2, pipeline=2)
    shutil.rmtree(folder / "mp_rank_01_000")
    found = inspect_checkpoint(folder)
    assert found.integrity is Integrity.TORN
    assert "tensor 1 pipeline 0" in found.reason


def test_an_iteration_that_the_tracker_does_not_name_yet_is_noted(tmp_path):
    folder = megatron(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("40")
    assert "still names 40" in inspect_checkpoint(folder).reason


def test_normalisation_weights_that_drifted_between_tensor_ranks_are_found(tmp_path):
    folder = megatron(tmp_path)

    def agreement():
        files = {}
        for tensor in scan_checkpoint(inspect_checkpoint(folder)).tensors:
            files.setdefault(int(tensor.file[8:10]), []).append(tensor)
        return replica_agreement(files, step=50, only_norms=True)

    assert agreement().agree is True
    state = torch.load(folder / "mp_rank_01" / "model_optim_rng.pt", weights_only=False)
    state["model"]["language_model"]["encoder"]["input_layernorm.weight"][2] += 1e-3
    torch.save(state, folder / "mp_rank_01" / "model_optim_rng.pt")
    found = agreement()
    assert (found.agree, found.tensor) == (False, "language_model.encoder.input_layernorm.weight")


# -- Megatron, torch_dist ---


def megatron_dist(root, *, digests=True):
    folder = root / "iter_0000050"
    weights = {"decoder.layers.weight": torch.randn(4, 3)}
    moments = {f"optimizer.state.exp_avg.{name}": torch.randn(4, 3) for name in weights}
    dcp.save(weights | moments, checkpoint_id=str(folder))
    args = argparse.Namespace(lr=1e-4, consumed_train_samples=800)
    torch.save({"args": args, "iteration": 50, "checkpoint_version": 3.0}, folder / "common.pt")
    if digests:
        files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
        (folder / "integrity.json").write_text(json.dumps({"algorithm": "sha256", "files": files}))
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    return folder


def test_a_megatron_dist_directory_is_read(tmp_path):
    found = clean(inspect_checkpoint(megatron_dist(tmp_path)))
    assert (found.layout, found.step, found.integrity) == ("megatron-dist", 50, Integrity.COMPLETE)
    tensors = {(t.role, t.name, t.key) for t in lazy_tensors(found)}
    assert tensors == {
        (Role.PARAMETER, "decoder.layers.weight", ""),
        (Role.MOMENT, "decoder.layers.weight", "exp_avg"),
    }
    assert dict(found.config)["args.lr"] == "0.0001"


def test_megatron_dist_without_its_marker_is_torn(tmp_path):
    folder = megatron_dist(tmp_path)
    (folder / "metadata.json").unlink()
    assert inspect_checkpoint(folder).integrity is Integrity.TORN


def test_the_digests_that_megatron_stored_are_recomputed(tmp_path):
    folder = megatron_dist(tmp_path)
    torch.save({"args": argparse.Namespace(lr=9.0), "iteration": 50}, folder / "common.pt")
    places = [place for place, _ in scan_checkpoint(inspect_checkpoint(folder)).unreadable]
    assert places == ["common.pt"]


# -- OLMo-core ---


def olmo(root, *, world=2):
    folder = root / "step100"
    model, _ = trained(1)
    dcp.save({"model": model.state_dict(), "optim": {"lr": 1e-3}}, checkpoint_id=str(folder / "model_and_optim"))
    (folder / "train").mkdir()
    for rank in range(world):
        state = {
            "global_step": 100,
            "world_size": world,
            "data_loader": {"tokens": 5},
            "rng": {"torch": torch.get_rng_state()},
        }
        torch.save(state, folder / "train" / f"rank{rank}.pt")
    (folder / "config.json").write_text(json.dumps({"model": {"d_model": 8}, "optim": {"lr": 1e-3}}))
    (folder / ".metadata.json").write_text(json.dumps({"version": "v2", "ephemeral": False}))
    return folder, model


def test_an_olmo_directory_is_read(tmp_path):
    folder, model = olmo(tmp_path)
    found = clean(inspect_checkpoint(folder))
    assert (found.layout, found.step, found.integrity) == ("olmo-core", 100, Integrity.COMPLETE)
    assert "rng" not in found.missing
    assert "data-cursor" not in found.missing
    assert dict(found.config)["config.model.d_model"] == "8"
    weights = {t.name: t.digest for t in scan_checkpoint(found).tensors if t.role is Role.PARAMETER}
    assert weights == {name: digest(tensor) for name, tensor in model.state_dict().items()}
    assert [c.path for c in find_checkpoints(tmp_path)] == [str(folder)]


@pytest.mark.parametrize("gone", [".metadata.json", "train/rank1.pt", "model_and_optim/.metadata", "train/rank0.pt"])
def test_what_an_olmo_directory_lost_tears_it(tmp_path, gone):
    folder, _ = olmo(tmp_path)
    (folder / gone).unlink()
    assert inspect_checkpoint(folder).integrity is Integrity.TORN
