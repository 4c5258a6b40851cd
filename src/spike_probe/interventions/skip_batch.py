"""What if this batch had never reached the weights? The update is withheld by taking the gradients away.

A select, not a multiply: parameters without a gradient are passed over by the optimizer, moments and weight decay
included. Digests of parameters and moments before and after prove that nothing moved.
"""

from __future__ import annotations

import torch

from spike_probe.donor_state import combined_digest
from spike_probe.fingerprint import moments_of
from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange

NAME = "skip-batch"
FACTOR = "batch content"
SUMMARY = "The update of the step is withheld; parameters and moments stay as they were."
PARAMETERS = ()
SPECIFIC = True


class SkipBatch(Intervention):
    """Sets the gradients to None before the update of an acting step."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._before: dict[int, str] = {}
        self._withheld: set[int] = set()

    def before_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        if all(param.grad is None for param in params):
            return
        self._before[id(optimizer)] = _state(optimizer)
        for param in params:
            param.grad = None

    def after_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        before = self._before.pop(id(optimizer), None)
        if before is None:
            return
        after = _state(optimizer)
        if after == before:
            self._withheld.add(live.step)
        live.effect("parameters and moments", before, after, after == before)

    def withholds(self, step: int) -> bool:
        return step in self._withheld

    def after_step(self, live: Live) -> None:
        if live.step not in self._withheld:
            live.effect("update", "withheld already or without gradients", "unchanged", False)


def _state(optimizer: torch.optim.Optimizer) -> str:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    moments = [tensor for param in params for _, tensor in moments_of(optimizer, param)]
    return combined_digest([*params, *moments])


INTERVENTION = SkipBatch
