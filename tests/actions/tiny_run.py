"""A run that takes two seconds: a linear model on noise, one absurd batch, checkpoints every ten steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import argparse, json, os, sys
import torch
p = argparse.ArgumentParser()
p.add_argument("--resume")
p.add_argument("--steps", type=int, default=100)
p.add_argument("--ignore", action="store_true")
p.add_argument("--offset", type=int, default=0)
a = p.parse_args()
torch.manual_seed(7)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
start = 0
if a.resume and not a.ignore:
    state = torch.load(a.resume, weights_only=True)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["optimizer"])
    start = state["step"]
data = torch.load("data.pt", weights_only=True)
for step in range(start + 1, a.steps + 1):
    x, y = data["x"][step], data["y"][step]
    loss = torch.nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    opt.step()
    row = {"step": step + a.offset, "loss": loss.item(), "grad_norm": norm.item(), "lr": 1e-3}
    with open("log.jsonl", "a") as f:
        f.write(json.dumps(row) + "\\n")
    if step % 10 == 0:
        os.makedirs("ckpt", exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": opt.state_dict(), "step": step}
        torch.save(state, f"ckpt/step-{step:04d}.pt")
"""

ONSET, LAST_GOOD = 43, 40


def build(directory: Path) -> Path:
    """Train 50 steps with one absurd batch at step 43; the checkpoints of 10 to 50 are whole."""
    import torch

    directory.mkdir(parents=True)
    (directory / "train.py").write_text(SCRIPT)
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(101, 32, 8, generator=generator)
    y = x.sum(-1, keepdim=True) + 0.3 * torch.randn(101, 32, 1, generator=generator)
    y[ONSET, 4:12] += 400.0
    torch.save({"x": x, "y": y}, directory / "data.pt")
    subprocess.run(
        [sys.executable, "train.py", "--steps", "50"],
        cwd=directory,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    describe(directory, f"{sys.executable} train.py --resume {{checkpoint}}")
    return directory


def describe(directory: Path, launch: str, *, minutes: float = 2.0, **more: str) -> None:
    """Write spike.yaml with this launch command."""
    lines = [f"launch: '{launch}'", "checkpoints: ckpt/step-{step}.pt", "metrics: [log.jsonl]"]
    lines += [f"limits: {{trial_minutes: {minutes}, repeats: 1}}", "env: {OMP_NUM_THREADS: 1}"]
    lines += [f"{key}: {value}" for key, value in more.items()]
    (directory / "spike.yaml").write_text("\n".join(lines) + "\n")
