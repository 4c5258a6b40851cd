"""Which models and optimizers does this process train, and what are their parameters called?"""

from __future__ import annotations

import weakref
from typing import Any

import torch

WRAPPERS = ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "FullyShardedDataParallel")
"""Classes that hold the model as `module`; the name of a checkpoint has no such prefix."""
INFIXES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class LiveState:
    """Weak references only: the probe never keeps a model or an optimizer alive."""

    def __init__(self) -> None:
        self._roots: list[Any] = []
        self._optimizers: list[Any] = []

    def note_root(self, module: torch.nn.Module) -> bool:
        """An outermost call of a module with parameters; True for the first one of this module."""
        is_new = not self.is_root(module)
        if is_new:
            self._roots.append(weakref.ref(module))
        return is_new

    def is_root(self, module: torch.nn.Module) -> bool:
        """True for a model that was noted."""
        return any(reference() is module for reference in self._roots)

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made or stepped."""
        if not any(reference() is optimizer for reference in self._optimizers):
            self._optimizers = [reference for reference in self._optimizers if reference() is not None]
            self._optimizers.append(weakref.ref(optimizer))

    def roots(self) -> list[torch.nn.Module]:
        """Models, in the order of their first outermost call."""
        return [root for reference in self._roots if (root := reference()) is not None]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that exist, oldest first."""
        return [held for reference in self._optimizers if (held := reference()) is not None]

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """(name, parameter) of all roots; a tied parameter appears under each of its names."""
        return _named(self.roots(), "named_parameters")

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """(name, buffer) of all roots."""
        return _named(self.roots(), "named_buffers")


def plain_name(root: torch.nn.Module, name: str) -> str:
    """The name without what DDP, FSDP, torch.compile and activation checkpointing put into it."""
    name += "."
    for infix in INFIXES:
        name = name.replace(infix, "")
    name = name[:-1]
    wrapped: Any = root
    while True:
        wrapped = getattr(wrapped, "_orig_mod", wrapped)
        if type(wrapped).__name__ not in WRAPPERS or not (name + ".").startswith("module."):
            return name
        name, wrapped = name[len("module.") :], getattr(wrapped, "module", None)


def _named(roots: list[torch.nn.Module], method: str) -> list[tuple[str, Any]]:
    found: dict[tuple[str, int], tuple[str, Any]] = {}
    for root in roots:
        for name, tensor in getattr(root, method)(remove_duplicate=False):
            plain = plain_name(root, name)
            found.setdefault((plain, id(tensor)), (plain, tensor))
    return list(found.values())
