"""Does a tighter clip soften it? Gradients are clipped to another norm; that attenuates almost any spike.

Where the script clips, its own call gets the other norm; where it does not, the gradients are clipped right before
the update. Sharded gradients that the script does not clip are refused: their norm would need a collective.
"""

from __future__ import annotations

import torch

from spike_probe.intervention import Intervention, Live
from spike_probe.norms import gradients, tensor_norms, total_of
from spike_probe.plan import PlannedChange

NAME = "clipping"
FACTOR = "clipping"
SUMMARY = "Gradients are clipped to another norm."
PARAMETERS = ("max_norm",)
SPECIFIC = False


class Clipping(Intervention):
    """`max_norm` replaces the script's, or is applied where the script does not clip."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._max_norm = float(change.parameters["max_norm"])
        self._clipped: dict[int, float] = {}
        """Norm that the script asked for, by step."""
        self._is_own_call = False

    def clip_norm(self, live: Live, max_norm: float) -> float:
        if not self._is_own_call:
            self._clipped.setdefault(live.step, max_norm)
        return self._max_norm

    def before_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        if live.step in self._clipped:
            return
        grads = gradients(optimizer)
        if any(hasattr(grad, "_local_tensor") for grad in grads):
            live.effect("max_norm", "none", "refused: sharded gradients, which the script does not clip", False)
            return
        before = total_of(tensor_norms(grads))
        if before is None:
            return
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._is_own_call = True
        try:
            torch.nn.utils.clip_grad_norm_(params, self._max_norm)
        finally:
            self._is_own_call = False
        after = total_of(tensor_norms(grads))
        live.effect("max_norm", f"none (norm {float(before):.9g})", f"{self._max_norm} (norm {float(after):.9g})", True)

    def after_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        asked = self._clipped.pop(live.step, None)
        if asked is not None:
            live.effect("max_norm", str(asked), str(self._max_norm), asked != self._max_norm)


INTERVENTION = Clipping
