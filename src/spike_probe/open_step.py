"""What is known about the step in progress? Collected event by event, written as one `step` line."""

from __future__ import annotations

import time
from typing import Any, Optional

import torch

from spike_probe.batches import MicroBatch
from spike_probe.modules import ModuleWatch
from spike_probe.readback import HostCopy, pack

Number = Any
"""A Python float, a device scalar, or None where it was not measured."""


class Clip:
    """Calls of clip_grad_norm_ on one set of parameters."""

    def __init__(self, max_norm: float, norm: Number, nonfinite: Number) -> None:
        self.max_norm = max_norm
        self.norm = norm
        self.nonfinite = nonfinite


class Update:
    """What one optimizer did in one step."""

    def __init__(self) -> None:
        self.lr: list[Number] = []
        self.norm: Number = None
        self.nonfinite: Number = None
        self.found_inf: Number = None
        """Set where a fused optimizer decides inside its kernel."""
        self.is_withheld = False
        self.moved: Number = None
        self.size: Number = None

    def numbers(self) -> list[tuple[str, Number]]:
        """Measured quantities by name."""
        named = [("norm", self.norm), ("bad", self.nonfinite), ("inf", self.found_inf)]
        named += [("moved", self.moved), ("size", self.size)]
        return named + [(f"lr{index}", rate) for index, rate in enumerate(self.lr)]


class OpenStep:
    """One attempted optimizer step of this rank."""

    def __init__(self, number: int, began: float) -> None:
        self.number = number
        self.began = began
        self.ended = began
        self.micros: list[MicroBatch] = []
        self.clips: dict[Any, Clip] = {}
        self.updates: dict[int, Update] = {}
        self.autocast: dict[str, None] = {}
        self.param_dtypes = ""
        self.rng: Optional[dict[str, str]] = None
        self.loss_scale: Number = None
        self.watch: Optional[ModuleWatch] = None
        self.has_gradients_printed = False
        self.is_stepped = False
        """An optimizer has returned (or a scaler has withheld it) and no backward has begun since."""

    def update(self, optimizer: torch.optim.Optimizer) -> Update:
        """This optimizer's part, made on first use."""
        return self.updates.setdefault(id(optimizer), Update())

    def mark_stepped(self) -> None:
        """The attempt is over; more optimizers may follow."""
        self.is_stepped = True
        self.ended = time.perf_counter()

    def numbers(self) -> dict[str, Number]:
        """Everything measured in this step, by name."""
        numbers: dict[str, Number] = {"loss_scale": self.loss_scale}
        for micro in self.micros:
            numbers[f"loss.{micro.index}"] = micro.loss
            numbers[f"supervised.{micro.index}"] = micro.targets.num_supervised
        for at, clip in enumerate(self.clips.values()):
            numbers[f"clip.{at}"] = clip.norm
            numbers[f"clip_bad.{at}"] = clip.nonfinite
        for at, update in enumerate(self.updates.values()):
            numbers.update({f"{name}.{at}": value for name, value in update.numbers()})
        return {name: value for name, value in numbers.items() if value is not None}


class StepLine:
    """The `step` line, once the device's numbers are on the host."""

    def __init__(self, step: OpenStep) -> None:
        self._step = step
        numbers = step.numbers()
        on_device = {name: value for name, value in numbers.items() if isinstance(value, torch.Tensor)}
        self._names = list(on_device)
        self.copy: Optional[HostCopy] = pack(on_device)
        """Device scalars, moved to the host together."""
        self._host: dict[str, float] = {name: value for name, value in numbers.items() if name not in on_device}

    def keys(self) -> dict[str, Any]:
        """Keys of the line; the copy must have arrived."""
        if self.copy is not None:
            self._host.update(zip(self._names, self.copy.tensors[0].tolist()))
        step = self._step
        micros = [self._micro(micro) for micro in step.micros]
        return {
            "step": step.number,
            "micro": micros,
            "loss": _sum([micro["loss"] for micro in micros]),
            **self._gradients(),
            "lr": self._lr(),
            "applied": self._is_applied(),
            "update_norm": self._root_sum("moved"),
            "param_norm": self._root_sum("size"),
            "loss_scale": self._host.get("loss_scale"),
            "precision": f"autocast={'+'.join(step.autocast) or 'off'} params={step.param_dtypes}",
            "rng": step.rng or {},
            "seconds": round(step.ended - step.began, 6),
        }

    def _micro(self, micro: MicroBatch) -> dict[str, Any]:
        supervised = self._host.get(f"supervised.{micro.index}")
        return {
            "loss": self._host.get(f"loss.{micro.index}"),
            "batch": micro.digest(),
            "targets": micro.targets.num_targets,
            "supervised": None if supervised is None else int(supervised),
            "samples": micro.num_samples(),
        }

    def _gradients(self) -> dict[str, Any]:
        """Pre-clip norm: of the clip calls where there were any, else as each optimizer found its gradients."""
        clips = list(self._step.clips.values())
        names = ("clip", "clip_bad", len(clips)) if clips else ("norm", "bad", len(self._step.updates))
        norms = [self._host.get(f"{names[0]}.{at}") for at in range(names[2])]
        bad = [self._host.get(f"{names[1]}.{at}") for at in range(names[2])]
        return {
            "grad_norm": _root_of_squares(norms),
            "nonfinite_grads": None if _sum(bad) is None else int(_sum(bad) or 0),
            "clip": min(clip.max_norm for clip in clips) if clips else None,
        }

    def _lr(self) -> list[Optional[float]]:
        return [
            self._host.get(f"lr{index}.{at}")
            for at, update in enumerate(self._step.updates.values())
            for index in range(len(update.lr))
        ]

    def _is_applied(self) -> bool:
        updates = self._step.updates.values()
        found = [self._host.get(f"inf.{at}", 0.0) > 0 for at in range(len(updates))]
        return bool(updates) and not any(u.is_withheld or bad for u, bad in zip(updates, found))

    def _root_sum(self, name: str) -> Optional[float]:
        return _root_of_squares([self._host.get(f"{name}.{at}") for at in range(len(self._step.updates))])


def _sum(values: list[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _root_of_squares(values: list[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return float(sum(value * value for value in known) ** 0.5)
