"""Two generations of a small training run, written by every stack that spike reads.

Stacks that install on a CPU train and save by themselves; Megatron, OLMo-core and torchtitan are written with
`torch.save` and `torch.distributed.checkpoint` in their documented layout. Each function takes an empty directory and
returns the earlier and the later checkpoint.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

WIDTHS = (8, 16, 4)
EARLIER, LATER = 2, 3


class Trainee:
    """A model and an AdamW that step by step see the same seeded batches in every stack."""

    def __init__(self, *, dtype=torch.float32, schedule=False):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, betas=(0.9, 0.95))
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)
        self.dtype = dtype
        self.step = 0

    def train(self, to):
        """Update until `to` updates were made."""
        while self.step < to:
            self.step += 1
            generator = torch.Generator().manual_seed(self.step)
            batch = torch.randn(4, 8, generator=generator).to(self.dtype)
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return self

    def named_state(self):
        """The optimizer's state by parameter name, as distributed savers flatten it."""
        names = [name for name, _ in self.model.named_parameters()]
        state = self.optimizer.state_dict()
        return {
            "state": {names[index]: moments for index, moments in state["state"].items()},
            "param_groups": [
                {**group, "params": [names[i] for i in group["params"]]} for group in state["param_groups"]
            ],
        }


def two(root, write, name):
    """Both generations by one function `write(trainee, path)`."""
    trainee, made = Trainee(), []
    for step in (EARLIER, LATER):
        trainee.train(step)
        path = root / name.format(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(trainee, path)
        made.append(path)
    return tuple(made)


# -- written by the stack itself ---


def hf_trainer(root, *, steps=LATER, limit=3, callbacks=()):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    ids = torch.randint(0, 32, (16, 6))
    args = transformers.TrainingArguments(
        output_dir=str(root / "out"),
        max_steps=steps,
        save_steps=1,
        save_total_limit=limit,
        learning_rate=1e-3,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in ids]
    model = transformers.LlamaForCausalLM(config)
    transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=list(callbacks)).train()
    return tuple(root / "out" / f"checkpoint-{step}" for step in (EARLIER, LATER))


def accelerate(root):
    library = pytest.importorskip("accelerate")
    settings = library.utils.ProjectConfiguration(project_dir=str(root), automatic_checkpoint_naming=True)
    accelerator = library.Accelerator(cpu=True, project_config=settings)
    trainee = Trainee()
    model, optimizer, scheduler = accelerator.prepare(trainee.model, trainee.optimizer, trainee.scheduler)
    for step in range(1, LATER + 1):
        accelerator.backward(model(torch.randn(4, 8)).square().mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step >= EARLIER:
            accelerator.save_state()
    return tuple(root / "checkpoints" / f"checkpoint_{i}" for i in (0, 1))


LIGHTNING_SCORES = (5.0, 3.0, 4.0, 6.0, 2.0, 1.0, 9.0, 0.5)
"""A monitored value that goes up and down."""


def lightning(root, *, steps=LATER, keep=None, callbacks=()):
    library = pytest.importorskip("lightning.pytorch")

    class Module(library.LightningModule):
        def __init__(self, width=8):
            super().__init__()
            self.save_hyperparameters()
            self.layers = torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.Linear(16, 4))

        def training_step(self, batch, _index):
            loss = self.layers(batch).square().mean()
            self.log("loss", loss)
            self.log("score", LIGHTNING_SCORES[self.global_step % len(LIGHTNING_SCORES)])
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer), "interval": "step"}]

    torch.manual_seed(0)
    saver = library.callbacks.ModelCheckpoint(dirpath=root, every_n_train_steps=1, **(keep or {"save_top_k": -1}))
    trainer = library.Trainer(
        max_steps=steps,
        callbacks=[*callbacks, saver],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=2))
    return tuple(root / f"epoch=0-step={step}.ckpt" for step in (EARLIER, LATER))


TWO_RANKS = """
import sys
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
root = Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in (1, 2, 3):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        continue
    weights, moments = get_state_dict(model, optimizer)
    train = {"train_state": {"step": torch.tensor(step)}, "dataloader": {f"dp_rank_{dist.get_rank()}": {"at": step}}}
    dcp.save({"model": weights, "optimizer": moments, **train}, checkpoint_id=str(root / "fsdp2" / f"step-{step}"))
    writer = HuggingFaceStorageWriter(path=str(root / "hf" / f"hf-{step}"), save_distributed=True)
    dcp.save(weights, storage_writer=writer)
    folder = root / "lightning" / f"epoch=0-step={step}.ckpt"
    dcp.save({"state_dict": weights, "optimizer_0": moments}, checkpoint_id=str(folder))
    if dist.get_rank() == 0:
        loops = {"fit_loop": {"epoch_loop.batch_progress": {"total": {"processed": step}}}}
        torch.save(
            {"epoch": 0, "global_step": step, "pytorch-lightning_version": "2.6.6", "loops": loops, "callbacks": {},
             "lr_schedulers": [{"last_epoch": step}]},
            folder / "meta.pt",
        )
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    if dist.get_rank() == 0:
        torch.save(whole, root / f"whole-{step}.bin")
    dist.barrier()
dist.barrier()  # a rank that leaves first can abort the other
dist.destroy_process_group()
"""


def two_ranks(root):
    """Everything that FSDP2 on two gloo ranks writes: DCP, its safetensors writer, and the sharded Lightning form."""
    _run_ranks(root, TWO_RANKS)
    return root


DEEPSPEED = """
import os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
import torch, deepspeed
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
config = {
    "train_batch_size": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in (1, 2, 3):
    engine.backward(engine(torch.randn(2, 8, dtype=torch.bfloat16)).float().square().mean())
    engine.step()
    if step > 1:
        engine.save_checkpoint(sys.argv[1], tag=f"global_step{step}")
torch.distributed.barrier()  # a rank that leaves first can abort the other
torch.distributed.destroy_process_group()
"""


def deepspeed(root):
    """ZeRO-1 in bfloat16 on two gloo ranks."""
    pytest.importorskip("deepspeed")
    _run_ranks(root, DEEPSPEED)
    return tuple(root / f"global_step{step}" for step in (EARLIER, LATER))


def _run_ranks(root, program):
    job = root / "job.py"
    job.write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*command, str(root)], env=environment, capture_output=True, text=True, timeout=300)
    job.unlink()
    assert done.returncode == 0, done.stderr[-3000:]


# -- written with torch, in the stack's documented layout ---


def nanogpt(root):
    """Two files here, so that they can be compared; nanoGPT itself keeps one, ckpt.pt."""
    settings = {"learning_rate": 1e-2, "dtype": "bfloat16"}
    return two(
        root,
        lambda trainee, path: torch.save(
            {
                "model": trainee.model.state_dict(),
                "optimizer": trainee.optimizer.state_dict(),
                "model_args": {"n_layer": 2},
                "iter_num": trainee.step,
                "best_val_loss": torch.tensor(2.5),
                "config": settings,
            },
            path,
        ),
        "out-{}/ckpt.pt",
    )


def torch_parts(root):
    def write(trainee, path):
        path.mkdir()
        torch.save({"model": trainee.model.state_dict(), "step": trainee.step}, path / "model.pt")
        torch.save(trainee.optimizer.state_dict(), path / "optimizer.pt")
        torch.save(trainee.scheduler.state_dict(), path / "scheduler.pt")
        torch.save(torch.get_rng_state(), path / "rng.pt")

    return two(root, write, "step-{}")


def safetensors(root):
    """Two shards with an index, as `save_pretrained` leaves them."""
    from safetensors.torch import save_file

    def write(trainee, path):
        path.mkdir()
        weights = trainee.model.state_dict()
        shards = {"model-00001-of-00002.safetensors": ("0.",), "model-00002-of-00002.safetensors": ("1.",)}
        index = {}
        for file, prefixes in shards.items():
            part = {name: value for name, value in weights.items() if name.startswith(prefixes)}
            save_file(part, path / file)
            index |= dict.fromkeys(part, file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))

    return two(root, write, "export-{}")


def torchtitan(root):
    def write(trainee, path):
        state = {
            **trainee.model.state_dict(),
            "optimizer": trainee.named_state(),
            "lr_scheduler": {"last_epoch": trainee.step},
            "dataloader": {"dp_rank_0": b"state"},
            "train_state": {"step": torch.tensor(trainee.step), "ntokens_seen": torch.tensor(1000 * trainee.step)},
        }
        dcp.save(state, checkpoint_id=str(path), no_dist=True)

    return two(root, write, "checkpoint/step-{}")


def megatron(root):
    def write(trainee, path):
        for rank in range(2):
            args = argparse.Namespace(
                tensor_model_parallel_size=2,
                pipeline_model_parallel_size=1,
                consumed_train_samples=4 * trainee.step,
                iteration=trainee.step,
                save_retain_interval=None,
            )
            language = {f"layers.{rank}.{name}": value for name, value in trainee.model.state_dict().items()}
            rng = {
                "random_rng_state": random.getstate(),
                "np_rng_state": np.random.get_state(),
                "torch_rng_state": torch.get_rng_state(),
            }
            place = path / f"mp_rank_{rank:02d}"
            place.mkdir(parents=True)
            torch.save(
                {
                    "args": args,
                    "checkpoint_version": 3.0,
                    "iteration": trainee.step,
                    "model": {"language_model": language},
                    "optimizer": trainee.optimizer.state_dict(),
                    "opt_param_scheduler": {"num_steps": trainee.step},
                    "rng_state": [rng],
                },
                place / "model_optim_rng.pt",
            )
        (root / "latest_checkpointed_iteration.txt").write_text(str(trainee.step))

    return two(root, write, "iter_{:07d}")


def megatron_dist(root):
    def write(trainee, path):
        state = {f"decoder.{name}": value for name, value in trainee.model.state_dict().items()}
        for name, moments in trainee.named_state()["state"].items():
            state |= {f"optimizer.state.{key}.decoder.{name}": value for key, value in moments.items()}
        state |= {"rng_state/shard_0_1": {"torch": torch.get_rng_state()}}
        dcp.save(state, checkpoint_id=str(path), no_dist=True)
        args = argparse.Namespace(consumed_train_samples=4 * trainee.step, save_retain_interval=None)
        common = {"args": args, "iteration": trainee.step, "checkpoint_version": 3.0}
        torch.save(common | {"opt_param_scheduler": {"num_steps": trainee.step}}, path / "common.pt")
        files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}
        (path / "integrity.json").write_text(json.dumps({"algorithm": "sha256", "files": files}))
        (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
        (root / "latest_checkpointed_iteration.txt").write_text(str(trainee.step))

    return two(root, write, "iter_{:07d}")


def olmo_core(root):
    def write(trainee, path):
        state = {"model": trainee.model.state_dict(), "optim": trainee.named_state()}
        dcp.save(state, checkpoint_id=str(path / "model_and_optim"), no_dist=True)
        (path / "train").mkdir()
        for rank in range(2):
            own = {
                "global_step": trainee.step,
                "world_size": 2,
                "data_loader": {"batches_processed": trainee.step},
                "rng": {"torch": torch.get_rng_state()},
                "scheduler": {"last_epoch": trainee.step},
            }
            torch.save(own, path / "train" / f"rank{rank}.pt")
        (path / "config.json").write_text(json.dumps({"model": {"d_model": 8}}))
        (path / ".metadata.json").write_text(json.dumps({"version": "v2", "ephemeral": False}))

    return two(root, write, "step{}")


# -- all of them, once ---

ALONE = {
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "hf-trainer": hf_trainer,
    "lightning": lightning,
    "megatron": megatron,
    "megatron-dist": megatron_dist,
    "nanogpt": nanogpt,
    "olmo-core": olmo_core,
    "safetensors": safetensors,
    "torch-parts": torch_parts,
    "torchtitan": torchtitan,
}
TOGETHER = {
    "fsdp2": lambda root: tuple(root / "fsdp2" / f"step-{step}" for step in (EARLIER, LATER)),
    "dcp-safetensors": lambda root: tuple(root / "hf" / f"hf-{step}" for step in (EARLIER, LATER)),
    "lightning-sharded": lambda root: tuple(root / "lightning" / f"epoch=0-step={step}.ckpt" for step in (2, 3)),
}
"""Written by one job of two ranks."""
LAYOUTS = {
    "nanogpt": "torch-zip",
    "torchtitan": "dcp",
    "fsdp2": "dcp",
    "dcp-safetensors": "safetensors",
    "lightning-sharded": "lightning",
}
"""The layout that reads it, where it is not of the same name."""
STACKS = (*ALONE, *TOGETHER)


class Written:
    """Every stack's run, made when it is first asked for."""

    def __init__(self, root):
        self.root = root
        self._made = {}

    def __call__(self, stack):
        """(earlier, later) checkpoint of a stack; skips where it is not installed."""
        if stack in TOGETHER:
            return TOGETHER[stack](self._once("two-ranks", two_ranks))
        return self._once(stack, ALONE[stack])

    def copy(self, stack, target):
        """The same in a fresh place with its times, to be damaged; files beside the checkpoints come along."""
        made = self(stack)
        base = os.path.commonpath([path.parent for path in made])
        place = target / "run"
        shutil.copytree(base, place)
        return tuple(place / path.relative_to(base) for path in made)

    def _once(self, name, make):
        if name not in self._made:
            root = self.root / name
            root.mkdir()
            self._made[name] = make(root)
        return self._made[name]
