"""A run, its cases, and a driver that types commands there: what the crash tests break and put back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spike.casefile.case import list_cases
from tests.casefile.small_runs import fingerprint, write_checkpoint
from tests.crash.commands import BY_NAME, Written, parsed

ROOT = Path(__file__).resolve().parents[2]
ONSET = 222


class Driver:
    """The other end of `driver.py`."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True)
        self.scratch = scratch
        self.process = subprocess.Popen(
            (sys.executable, "-m", "tests.crash.driver"),
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1", "SPIKE_OPERATOR": "ada"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One command line, and how it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return parsed(self.process.stdout.readline())

    def close(self) -> None:
        """End it, and see that it ends well."""
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


@dataclass
class World:
    """One run in `place`, with its cases beside it."""

    place: Path
    driver: Driver
    key: Path
    _before: dict[str, tuple[object, ...]] = field(default_factory=dict)
    _linked: dict[str, tuple[object, ...]] = field(default_factory=dict)
    _reference: dict[str, tuple[object, dict[str, Any]]] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.place / "run"

    @property
    def cases(self) -> Path:
        return self.place / "run.spike"

    def spike(
        self, *words: str, mode: str = "none", amount: float = 0, group: bool = False, below: Path | None = None
    ) -> dict[str, Any]:
        """Type `spike WORDS` in the run; `below` is where a disk is full, by default where the cases are."""
        filled = [word.replace("{key}", str(self.key)) for word in words]
        request = {"words": filled, "cwd": str(self.run), "mode": mode, "amount": amount, "group": group}
        return self.driver.ask({**request, "below": str(below or self.cases)})

    def note_run(self) -> None:
        """From now on the run must stay as it is."""
        self._before, self._linked = self.look(), self.look(with_links=True)

    def look(self, *, with_links: bool = False) -> dict[str, tuple[object, ...]]:
        """The run: inodes, modes, owners, times of change, sizes, bytes, and where nothing is held the links."""
        return state_of(self.run, with_links=with_links)

    def has_untouched_run(self, *, finished: bool = False) -> bool:
        """True where the run is byte by byte and inode by inode what it was; a finished command holds no links."""
        return self.look() == self._before if not finished else self.look(with_links=True) == self._linked

    def restore(self, way: Written) -> None:
        """The world as it is before this command: made once, then copied."""
        shutil.rmtree(self.cases, ignore_errors=True)
        if way.name == "init":
            (self.run / "spike.yaml").unlink(missing_ok=True)
        saved = self._saved(way.before)
        if saved.is_dir():
            shutil.copytree(saved, self.cases, symlinks=True)

    def _saved(self, before: tuple[str, ...]) -> Path:
        saved = self.place / "saved" / ("+".join(before).replace(" ", "_") or "nothing")
        if before and not saved.is_dir():
            shutil.rmtree(self.cases, ignore_errors=True)
            for name in before:
                ended = self.spike(*BY_NAME[name].words)
                assert ended["code"] == BY_NAME[name].code, (name, ended)
            shutil.copytree(self.cases, saved, symlinks=True)
            shutil.rmtree(self.cases)
        return saved

    def reference(self, way: Written) -> tuple[object, dict[str, Any]]:
        """(the right answer, how the undisturbed command ended)."""
        if way.name not in self._reference:
            self.restore(way)
            ended = self.spike(*way.words, group=way.whole_group)
            assert ended["code"] == way.code, (way.name, ended)
            self._reference[way.name] = (way.answer(parsed(ended["stdout"]), self.cases), ended)
        return self._reference[way.name]

    def case(self) -> Path | None:
        """The only case, or None before there is one."""
        found = list_cases(self.cases)
        assert len(found) <= 1, found
        return found[0] if found else None

    def litter(self) -> list[str]:
        """What a finished command must not leave: drafts and temporary files, hidden or by their ending."""
        ends = (".tmp", ".new", ".pinning", ".part")
        found = [p for p in self.cases.rglob("*") if p.name.startswith(".") or p.name.endswith(ends)]
        found += [p for p in self.run.rglob(".*") if p.name != ".git"]
        return [str(p) for p in found if p.name != ".lock"]

    def trainers(self) -> list[str]:
        """Training processes of this run that are alive."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    cwd = os.readlink(process / "cwd")
                except OSError:
                    continue
                if b"train.py" in words and str(self.place) in cwd:
                    found.append(process.name)
        return found


def state_of(directory: Path, *, with_links: bool = True) -> dict[str, tuple[object, ...]]:
    """Everything of a tree except when it was last read."""
    found = {}
    for path, (mode, owner, links, mtime, _atime, size, content) in fingerprint(directory).items():
        found[path] = (Path(path).lstat().st_ino, mode, owner, mtime, size, content, links if with_links else None)
    return found


def write_run(directory: Path, steps: tuple[int, ...]) -> None:
    """A run whose log shows one spike at step 222, with small checkpoints and a launch command that nobody starts."""
    directory.mkdir(parents=True)
    for step in steps:
        write_checkpoint(directory / "out" / f"step-{step}" / "model.safetensors", step)
    rng = np.random.default_rng(3)
    loss = 3.0 - np.arange(300) / 400 + rng.normal(0, 0.01, 300)
    norm = 1.0 + rng.normal(0, 0.02, 300)
    loss[ONSET - 1], norm[ONSET - 1] = 9.0, 30.0
    rows = [{"step": i + 1, "loss": float(loss[i]), "grad_norm": float(norm[i]), "lr": 3e-4} for i in range(300)]
    (directory / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "cfg.yaml").write_text("lr: 0.0003\nbatch: 8\n")
    (directory / "train.py").write_text("print('training')\n")


def describe(directory: Path) -> None:
    """The description that `spike init` would leave for an operator to correct."""
    lines = ["launch: ./train.sh --resume {checkpoint}", "metrics: [log.jsonl]", "checkpoints: out/step-{step}"]
    (directory / "spike.yaml").write_text("\n".join(lines) + "\n")
