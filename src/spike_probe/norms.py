"""How large were gradients, parameters and the update? One pass of multi-tensor kernels, no wait for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch

from spike_probe.digests import local
from spike_probe.readback import number_of

MEMORY_RESERVE = 1.5
"""A copy of the parameters is made only where the device has this many times its size free."""


def tensor_norms(tensors: Sequence[torch.Tensor]) -> Optional[torch.Tensor]:
    """L2 norm of each tensor (local shard), float32 vector on the first one's device; None for none.

    To be called with gradients disabled. The order is that of the tensors within each device and type.
    """
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in map(local, tensors):
        if tensor.numel():
            dense = tensor.coalesce().values() if tensor.is_sparse else tensor
            groups.setdefault((dense.dtype, dense.get_device()), []).append(dense)
    if not groups:
        return None
    parts = [torch.stack(_group_norms(group)).to(torch.float32) for group in groups.values()]
    return parts[0] if len(parts) == 1 else torch.cat([part.to(parts[0].device) for part in parts])


def _group_norms(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    if tensors[0].element_size() < 4 and tensors[0].device.type == "cpu":
        # Half-precision sums of squares overflow or lose digits on a CPU.
        return [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    return list(torch._foreach_norm(tensors))


def total_of(norms: Optional[torch.Tensor]) -> Any:
    """Norm of the concatenation, from the norms of the parts: a float, or a scalar on the device; None for none."""
    return None if norms is None else number_of(torch.linalg.vector_norm(norms))


def num_nonfinite(norms: Optional[torch.Tensor], total: Any) -> Any:
    """How many of the tensors hold a NaN or an infinity; on the host a finite total answers it for all of them."""
    if norms is None or (isinstance(total, float) and math.isfinite(total)):
        return None if norms is None else 0
    return number_of((~torch.isfinite(norms)).sum())


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients that this optimizer is about to use, in the order of its groups."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


class ParameterCopy:
    """The parameters of one optimizer before its update, kept to measure how far they moved."""

    def __init__(self) -> None:
        self._copies: dict[int, torch.Tensor] = {}
        self._taken: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.refused = ""

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the parameters that have a gradient now; buffers are reused from step to step."""
        self._taken = []
        params = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        if not self._copies and not _has_room(params):
            self.refused = "no device memory for a copy of the parameters"
        if self.refused:
            return
        for param in params:
            held = local(param)
            kept = self._copies.get(id(param))
            if kept is None or kept.shape != held.shape or kept.dtype != held.dtype or kept.device != held.device:
                kept = self._copies[id(param)] = torch.empty_like(held, requires_grad=False)
            self._taken.append((kept, held))
        if self._taken:
            torch._foreach_copy_([kept for kept, _ in self._taken], [held for _, held in self._taken])

    def moved(self) -> Any:
        """L2 norm of the change since `take`; 0 where nothing had a gradient, None where it was refused."""
        if self.refused:
            return None
        if not self._taken:
            return 0.0
        kept = [copy for copy, _ in self._taken]
        torch._foreach_sub_(kept, [held for _, held in self._taken])
        self._taken = []
        return total_of(tensor_norms(kept))


def _has_room(params: Sequence[Any]) -> bool:
    if not params or params[0].device.type != "cuda":
        return True
    needed = sum(local(p).numel() * p.element_size() for p in params)
    free, _ = torch.cuda.mem_get_info(params[0].device)
    return bool(free > MEMORY_RESERVE * needed)
