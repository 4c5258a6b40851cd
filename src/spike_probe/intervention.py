"""How can one thing of a live process be changed, and be proven to have changed? The shape of an intervention.

An intervention is one file in `interventions/`: constants that `spike` reads without importing it (NAME, FACTOR,
SUMMARY, PARAMETERS, SPECIFIC), and a subclass of `Intervention` called `INTERVENTION`. Every method defaults to
doing nothing.
"""

from __future__ import annotations

import importlib
from typing import Any, Optional, Protocol

import torch

from spike_probe.plan import PlannedChange


class Live(Protocol):
    """What an intervention sees of the running process."""

    rank: int
    first_step: int

    @property
    def step(self) -> int:
        """The attempted step in progress."""

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that exist, oldest first."""

    def roots(self) -> list[torch.nn.Module]:
        """Models, in the order of their first outermost call."""

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Parameters of the models seen in outermost calls, names without wrapper prefixes."""

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Buffers of the same models."""

    def num_micro_batches(self) -> Optional[int]:
        """Micro-batches of the previous step; None in the first."""

    def effect(self, what: str, before: str, after: str, took_effect: bool, step: Optional[int] = None) -> None:
        """Write an `effect` line."""


class Intervention:
    """A change of exactly one factor; subclasses override what they need."""

    def __init__(self, change: PlannedChange) -> None:
        self.name = change.name
        self.steps = frozenset(change.steps)
        self.parameters = change.parameters

    def acts_on(self, step: int) -> bool:
        """True for the steps that the plan names; for all where it names none."""
        return not self.steps or step in self.steps

    def arm(self, live: Live) -> None:
        """torch has just been imported; no user code has run."""

    def at_start(self, live: Live) -> None:
        """Before the first forward of training: the checkpoint is loaded."""

    def before_forward(self, live: Live, module: torch.nn.Module) -> None:
        """Before each outermost module call."""

    def autocast(self, live: Live, step: int, region: Any) -> None:
        """A `torch.autocast` region is about to be entered, for this step."""

    def substitute(
        self, live: Live, micro: Any, site: int, tensors: list[torch.Tensor]
    ) -> Optional[list[torch.Tensor]]:
        """Data has arrived at one site of a micro-batch; answers what to use instead."""

    def after_backward(self, live: Live, micro: Any) -> None:
        """A micro-batch is complete."""

    def clip_norm(self, live: Live, max_norm: float) -> float:
        """The script clips; answers the norm to clip to."""
        return max_norm

    def before_first_update(self, live: Live) -> None:
        """Before the first update of the process: optimizer state is as loaded."""

    def before_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are final, the optimizer is about to use them."""

    def after_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has returned."""

    def withholds(self, step: int) -> bool:
        """True where the update of this step is withheld on purpose."""
        return False

    def after_step(self, live: Live) -> None:
        """The step is over: the next forward or backward, or the end of the process, has begun."""


def load_intervention(change: Optional[PlannedChange]) -> Optional[Intervention]:
    """The intervention of this name; ValueError where the probe has none, so that a trial cannot pass without it."""
    if change is None:
        return None
    module = f"spike_probe.interventions.{change.name.replace('-', '_')}"
    try:
        plugin = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(f"the probe has no intervention {change.name!r}") from None
    if not all(name in change.parameters for name in plugin.PARAMETERS):
        missing = [name for name in plugin.PARAMETERS if name not in change.parameters]
        raise ValueError(f"intervention {change.name!r} needs the parameters {', '.join(missing)}")
    return plugin.INTERVENTION(change)  # type: ignore[no-any-return]
