"""Small real runs on disk for tests of the evidence: checkpoints, logs, configuration, a git repository."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from spike.domain.case import CaseFacts
from spike.domain.incident import Incident, Kind, Severity, Signature
from spike.domain.run import Run
from spike.domain.signals import Series, Signals, Source

ONSET = 222


def write_checkpoint(path: Path, seed: int, *, poison: float | None = None) -> None:
    """A safetensors file with two tensors; `poison` goes into one element."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((32, 32)).astype(np.float32)
    if poison is not None:
        weight[3, 4] = poison
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"w": weight, "b": rng.standard_normal(32).astype(np.float32)}, path)


def make_run(directory: Path, steps: tuple[int, ...] = (100, 150, 200, 250)) -> Run:
    """A run with one checkpoint directory a step, a log, a config and a script."""
    directory.mkdir(parents=True)
    for step in steps:
        write_checkpoint(directory / "out" / f"step-{step}" / "model.safetensors", step)
    (directory / "spike.yaml").write_text("launch: python train.py --config cfg.yaml --resume {checkpoint}\n")
    (directory / "cfg.yaml").write_text("lr: 0.0003\nbatch: 8\n")
    (directory / "train.py").write_text("print('training')\n")
    rows = ({"step": s, "loss": 2.0 + (5.0 if s == ONSET else 0.0), "lr": 3e-4} for s in range(1, 301))
    (directory / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(
        directory=str(directory),
        launch="python train.py --config cfg.yaml --resume {checkpoint}",
        checkpoints="out/step-{step}",
    )


def incident(onset: int = ONSET) -> Incident:
    """A one-step loss spike."""
    signature = Signature("loss", Kind.SPIKE, "log", 0.69, 0.01, 0.1, 1, onset, onset, 7.0, onset)
    return Incident(Kind.SPIKE, Severity.TRANSIENT, onset, onset, "loss", 0, 3.5, True, None, (signature,))


def signals() -> Signals:
    """What the log of `make_run` says, as a reader would hand it over."""
    steps = np.arange(1, 301)
    loss = np.where(steps == ONSET, 7.0, 2.0)
    series = (
        Series("loss", steps, loss, None, "log.jsonl", "loss", 3),
        Series("lr", steps, np.full(300, 3e-4), None, "log.jsonl", "lr", 3),
    )
    return Signals(series, (Source("log.jsonl", "jsonl", 300, 1, 300),))


def facts(run: Run, name: str = "20260801-031245-222") -> CaseFacts:
    """Facts of a case that holds nothing yet."""
    return CaseFacts(name, "2026-08-01T03:12:45Z", "ada", "0.1.0", run, incident(), None)


def fingerprint(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything of a tree that a visitor must leave as it was: names, kinds, modes, times and bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([directory, *directory.rglob("*")]):
        status = path.lstat()
        content = ""
        if stat.S_ISREG(status.st_mode):
            handle = os.open(path, os.O_RDONLY | os.O_NOATIME)
            with os.fdopen(handle, "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        times = (status.st_mtime_ns, status.st_atime_ns if stat.S_ISREG(status.st_mode) else 0)
        found[str(path)] = (status.st_mode, status.st_uid, status.st_nlink, *times, status.st_size, content)
    return found


def git(directory: Path, *arguments: str) -> str:
    """Run git as a person would, with a name and without anybody's configuration."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
    }
    done = subprocess.run(
        ("git", "-c", "protocol.file.allow=always", *arguments),
        cwd=directory,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
