"""What does the probe cost? Steps with and without it, taken in turn in one process, on one thread.

    python bench/probe.py [--quick]

"cost" is the time spent inside the probe divided by the median bare step; "ratio" is the median step with the probe
over the median without (it carries the machine's noise). Beside it: what a line of ordinary training code costs.
Times are the thread's processor time: other work on the machine is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import torch
from torch import nn
from torch.nn import functional as F

from spike_probe.attach import attach
from spike_probe.hooks import Hooks

MODES = ("record", "trial")
SIZES = {
    "large": {"layers": 4, "width": 256, "batch": 8, "length": 128},
    "small": {"layers": 2, "width": 64, "batch": 4, "length": 32},
}
VOCABULARY = 2048


class Transformer(nn.Module):
    """A decoder with learned positions; loss inside, as in nanoGPT."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(
            width, max(2, width // 32), 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        logits = self.head(self.blocks(h, mask=mask, is_causal=True))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


class Loop:
    """One training loop, step by step."""

    def __init__(self, layers: int, width: int, batch: int, length: int) -> None:
        torch.manual_seed(0)
        self.model = Transformer(layers, width, length)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = [torch.randint(0, VOCABULARY, (batch, length + 1)) for _ in range(8)]
        self.number = 0

    def step(self) -> None:
        rows = self.batches[self.number % len(self.batches)]
        self.number += 1
        self.model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[torch.Tensor]:
        rows = self.batches[0]
        self.model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
        return [param.grad for param in self.model.parameters() if param.grad is not None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few steps: the figures are rough")
    parser.add_argument("--mode", choices=MODES, help="one mode in this process; default: both, a process each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.mode is None:
        for mode in MODES:
            words = [sys.executable, __file__, "--mode", mode, *(["--quick"] if options.quick else [])]
            os.spawnv(os.P_WAIT, sys.executable, words)
        return
    with tempfile.TemporaryDirectory() as directory:
        measure(options.mode, Path(directory), options.quick)


def measure(mode: str, directory: Path, quick: bool) -> None:
    """Print one line for each size."""
    plan = directory / "plan.json"
    plan.write_text(json.dumps({"schema": "spike.plan/1", "trial": mode, "out": str(directory), "first_step": 0}))
    spent = _count_time_inside()
    recorder, finish = attach(str(plan))
    for name, shape in SIZES.items():
        loop = Loop(**shape)
        num = (6 if name == "large" else 60) if quick else (20 if name == "large" else 300)
        bare, probed, inside = _alternate(loop, recorder, spent, num)
        recorder.is_off = True
        median = statistics.median(bare)
        grads = loop.gradients()
        peers = {
            "foreach norm": _median_of(lambda grads=grads: torch.stack(torch._foreach_norm(grads)).tolist()),
            "clip_grad_norm_": _median_of(
                lambda loop=loop: torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1e9)
            ),
            "three questions, one tensor at a time": _median_of(lambda grads=grads: _naive(grads)),
        }
        cost = statistics.median(inside)
        print(
            f"{mode:6s} {name:5s} bare {1e3 * median:8.2f} ms  cost {cost / median:7.2%}  "
            f"ratio {statistics.median(probed) / median:5.3f}  "
            + "  ".join(f"{peer} {seconds / median:.2%}" for peer, seconds in peers.items())
        )
    finish()


def _alternate(loop: Loop, recorder: Any, spent: list[float], num: int) -> tuple[list[float], list[float], list[float]]:
    bare: list[float] = []
    probed: list[float] = []
    inside: list[float] = []
    for _ in range(3):
        loop.step()
    order = [True, False] * num
    random.Random(0).shuffle(order)
    for is_on in order:
        recorder.is_off = not is_on
        spent[0] = 0.0
        begun = time.thread_time()
        loop.step()
        took = time.thread_time() - begun
        if is_on:
            probed.append(took)
            inside.append(spent[0])
        else:
            bare.append(took)
    return bare, probed, inside


def _count_time_inside() -> list[float]:
    """Every entry into the probe goes through `Hooks.guard`: add up what is spent there."""
    spent = [0.0]
    original = Hooks.guard

    def guard(self: Hooks, where: str, call: Callable[..., Any], *args: Any) -> Any:
        begun = time.thread_time()
        try:
            return original(self, where, call, *args)
        finally:
            spent[0] += time.thread_time() - begun

    Hooks.guard = guard  # type: ignore[method-assign]
    return spent


def _naive(grads: list[torch.Tensor]) -> list[tuple[float, bool, float]]:
    return [(grad.norm().item(), bool(torch.isfinite(grad).all()), grad.abs().max().item()) for grad in grads]


def _median_of(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(15):
        begun = time.thread_time()
        call()
        times.append(time.thread_time() - begun)
    return statistics.median(times)


if __name__ == "__main__":
    main()
