"""A small real training job for the lab's tests: a torch script with its log and its checkpoints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spike.domain.run import Limits, Run
from spike.domain.trial import Intervention, TrialSpec
from spike.lab.runner import TrialRequest

SCRIPT = """\
import argparse, json, os, torch

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--lr", type=float, default=0.05)
options = parser.parse_args()

torch.manual_seed(7)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
data = torch.randn(64, 4, 8)
begun = 0
if options.resume:
    state = torch.load(options.resume, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    for group in optimizer.param_groups:
        group["lr"] = options.lr
    begun = state["step"]
os.makedirs("out", exist_ok=True)
for step in range(begun + 1, options.steps + 1):
    batch = data[step]
    loss = torch.nn.functional.mse_loss(model(batch).squeeze(1), batch.sum(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with open("log.jsonl", "a") as log:
        log.write(json.dumps({"step": step, "loss": loss.item()}) + "\\n")
    print("step", step, flush=True)
    if step % 4 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"out/step-{step}.pt")
"""


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SPIKE_GRACE_S", "1")
    monkeypatch.delenv("SPIKE_GUARD", raising=False)
    monkeypatch.delenv("SPIKE_SCRATCH", raising=False)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve steps with checkpoints at 4, 8 and 12; not to be changed."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "train.py"], cwd=directory, env=environment, check=True, capture_output=True)
    return directory


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A private copy of the trained run."""
    directory = tmp_path / "run"
    shutil.copytree(trained, directory)
    return Run(directory=str(directory), launch=f"{sys.executable} train.py --resume {{checkpoint}}")


@pytest.fixture
def bare_run(tmp_path: Path) -> Callable[[str], Run]:
    """A run directory whose training script is the given text, without torch."""

    def make(script: str, launch: str = f"{sys.executable} train.py", minutes: float = 1.0) -> Run:
        directory = tmp_path / "run"
        directory.mkdir(exist_ok=True)
        (directory / "train.py").write_text(script)
        return Run(directory=str(directory), launch=launch, limits=Limits(trial_minutes=minutes))

    return make


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., TrialRequest]:
    """A request to replay from step 4, the checkpoint pinned in a case beside the run."""

    def make(
        run: Run, name: str = "T001-baseline", change: Intervention | None = None, **fields: object
    ) -> TrialRequest:
        case = tmp_path / "run.spike" / "case"
        original = Path(run.directory) / "out" / "step-4.pt"
        pinned = case / "evidence" / "pinned" / "step-4.pt"
        if original.exists() and not pinned.exists():
            pinned.parent.mkdir(parents=True)
            shutil.copy2(original, pinned)
        has_checkpoint = pinned.exists()
        spec = TrialSpec(
            id=name,
            purpose="the unchanged command",
            checkpoint=str(original) if has_checkpoint else "",
            first_step=4 if has_checkpoint else 0,
            stop_after=7,
            intervention=change,
        )
        request = TrialRequest(
            run=run,
            spec=spec,
            directory=str(case / "trials" / name),
            pinned=str(pinned) if has_checkpoint else "",
            metric_files=("log.jsonl",),
        )
        return replace(request, **fields)  # type: ignore[arg-type]

    return make
