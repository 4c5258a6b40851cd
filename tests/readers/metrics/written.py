"""One course of a run, with a NaN and both infinities in it, for real packages to write down."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

STEPS = 60
NAN_AT, INF_AT, MINUS_AT = 35, 44, 45
"""0-based rows."""


def course() -> tuple[list[float], list[float]]:
    """(losses, gradient norms): healthy noise, and three losses that no number can hold."""
    rng = np.random.default_rng(7)
    losses = ((2.0 + 2.0 / (1 + np.arange(STEPS) / 20)) * np.exp(0.02 * rng.standard_normal(STEPS))).tolist()
    norms = np.exp(0.15 * rng.standard_normal(STEPS)).tolist()
    losses[NAN_AT], losses[INF_AT], losses[MINUS_AT] = math.nan, math.inf, -math.inf
    return losses, norms


WANDB = """
import wandb
run = wandb.init(project="p", settings=wandb.Settings(console="off"))
for step, (loss, norm) in enumerate(zip(*course())):
    run.log({"train/loss": loss, "train/grad_norm": norm, "lr": 1e-4}, step=step)
run.finish()
"""

MLFLOW = """
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("e")
with mlflow.start_run():
    for step, (loss, norm) in enumerate(zip(*course())):
        mlflow.log_metrics({"train/loss": loss, "grad_norm": norm}, step=step)
"""

DEEPSPEED = """
import logging
import torch, torch.distributed, deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import logger
get_accelerator().is_fp16_supported = lambda: True  # it says no for a CPU; its optimizer and scaler can
logger.setLevel(logging.INFO)
logger.handlers[0].setLevel(logging.INFO)
torch.manual_seed(0)
torch.set_num_threads(1)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return (self.linear(x) ** 2).mean()

model = Model()
monitor = {"enabled": True, "output_path": sys.argv[1], "job_name": "job"}
config = {
    "train_batch_size": 4,
    "steps_per_print": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "fp16": {"enabled": True, "initial_scale_power": 12, "hysteresis": 1},
    "csv_monitor": monitor,
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(1, 31):
    x = torch.randn(4, 8).half() * (60000 if step == 21 else 1)
    engine.backward(engine(x))
    engine.step()
torch.distributed.destroy_process_group()
"""

PROBED = """
import torch
torch.set_num_threads(1)
w = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([w], lr=0.5)
for loss, norm in zip(*course()):
    optimizer.zero_grad()
    (loss + (w - w.detach()) * norm).backward()
    optimizer.step()
"""


def program(body: str) -> str:
    """A program of its own that knows the course."""
    return f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom written import course\n{body}"
