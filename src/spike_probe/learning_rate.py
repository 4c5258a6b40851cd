"""How is the learning rate of one update changed and left as it was? Set before it, read back after it, restored."""

from __future__ import annotations

from typing import Any, Optional

import torch

from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange


class RateChange(Intervention):
    """Multiplies the rates of all groups of all optimizers by one factor, for the acting steps."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._own: dict[int, list[Any]] = {}
        self._factor: Optional[float] = None
        self._factor_step: Optional[int] = None

    def factor(self, step: int, rate: float) -> Optional[float]:
        """What to multiply with, `rate` being that of the first group; None: leave this step alone."""
        raise NotImplementedError

    def before_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        groups = [group for group in optimizer.param_groups if "lr" in group]
        if not groups:
            return
        if self._factor_step != live.step:
            self._factor_step = live.step
            self._factor = self.factor(live.step, float(groups[0]["lr"]))
        if self._factor is None or self._factor == 1.0:
            return
        self._own[id(optimizer)] = [_read(group["lr"]) for group in groups]
        for group in groups:
            _set(group, _read(group["lr"]) * self._factor)

    def after_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        own = self._own.pop(id(optimizer), None)
        if own is None or self._factor is None:
            return
        groups = [group for group in optimizer.param_groups if "lr" in group]
        used = [_read(group["lr"]) for group in groups]
        wanted = [rate * self._factor for rate in own]
        for group, rate in zip(groups, own):
            _set(group, rate)
        fits = all(abs(a - b) <= 1e-6 * abs(b) for a, b in zip(used, wanted))
        live.effect("lr", _text(own), _text(used), fits and used != own)


def _read(rate: Any) -> float:
    return float(rate)


def _set(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _text(rates: list[float]) -> str:
    return ", ".join(f"{rate:.12g}" for rate in rates)
