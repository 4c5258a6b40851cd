"""A small real run for the checks: a repository, logs with a spike, and checkpoints of a really updated model."""

import json
import os
import random
import subprocess
from pathlib import Path

import torch

BASE = 1_780_000_000
"""Unix time of step 0; one step a second."""
ONSET = 86
LAST = 120
SAVED = (40, 80, 120)


def git(directory, *words, at=None):
    stamp = f"{BASE + (at if at is not None else -100_000)} +0000"
    environment = {
        **os.environ,
        "GIT_COMMITTER_DATE": stamp,
        "GIT_AUTHOR_DATE": stamp,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *words], cwd=directory, env=environment, check=True, capture_output=True)


class CheckedRun:
    """Build with the constructor, change with the methods, look at with `check_run`."""

    def __init__(self, directory: Path, *, config=None):
        self.directory = directory
        (directory / "ckpt").mkdir(parents=True)
        (directory / "train.py").write_text("print('training')\n")
        (directory / "config.yaml").write_text("learning_rate: 0.002\nrun_name: first\n")
        (directory / ".gitignore").write_text("ckpt/\n*.jsonl\n*.log\nspike.yaml\n")
        git(directory, "init", "-q", "-b", "main")
        self.commit("Start")
        self.config = dict(config or {"learning_rate": 2e-3, "out_dir": "out"})
        self.train()
        self.log()

    def path(self, step):
        return self.directory / "ckpt" / f"step-{step:04d}.pt"

    def commit(self, message, *, at=None):
        git(self.directory, "add", "-A")
        git(self.directory, "commit", "-q", "-m", message, at=at)

    def write(self, name, text, *, at=None):
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / name).write_text(text)
        if at is not None:
            os.utime(self.directory / name, (BASE + at, BASE + at))

    def train(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        model.register_buffer("mask", torch.tensor([[0.0, float("-inf")], [0.0, 0.0]]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
        for step in range(1, LAST + 1):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in SAVED:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "config": dict(self.config),
                }
                self.save(step, state)

    def load(self, step):
        return torch.load(self.path(step), weights_only=True)

    def save(self, step, state):
        torch.save(state, self.path(step))
        os.utime(self.path(step), (BASE + step, BASE + step))

    def log(self, *, rows=None):
        rows = rows if rows is not None else [self.row(step) for step in range(1, LAST + 1)]
        self.write("log.jsonl", "".join(json.dumps(row) + "\n" for row in rows), at=LAST + 1)

    def row(self, step, **changes):
        noise = random.Random(step).gauss(0, 0.01)
        loss = 3.0 + noise - step * 0.002
        off = 3.0 if ONSET <= step <= ONSET + 4 else 0.0
        return {"step": step, "loss": loss + off, "grad_norm": 1.0 + noise + 10 * off, "lr": 2e-3, **changes}
