"""What data reached the model? Identity, counts and content of one micro-batch, and its replacement by another.

A micro-batch is everything that arrived since the previous backward: the tensors in the arguments of outermost module
calls, and the targets of loss functions called outside of any module. What requires a gradient was computed by the
model and is no part of it.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

import torch

from spike_probe.digests import batch_digest, tensor_digest
from spike_probe.readback import HostCopy
from spike_probe.structure import find_tensors, replace_tensors
from spike_probe.targets import TargetCount, labels_of

Substitute = Callable[["MicroBatch", int, "list[torch.Tensor]"], "Optional[list[torch.Tensor]]"]
"""(micro-batch, site index, tensors that arrived) -> the tensors to use instead, or None."""


class Site:
    """One place where data entered: an outermost module call or a loss function."""

    def __init__(self, name: str, tensors: list[torch.Tensor], keep: bool) -> None:
        self.name = name
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
        self.is_model = name.startswith("forward:")
        on_host = all(tensor.device.type == "cpu" for tensor in tensors)
        self._digests = [tensor_digest(tensor) for tensor in tensors] if on_host else None
        self.copy: Optional[HostCopy] = None
        if keep or not on_host:
            self.copy = HostCopy([tensor.detach().clone() if on_host else tensor.detach() for tensor in tensors])

    def digests(self) -> list[str]:
        """Tensor digests; waits for the device where the bytes are not here yet."""
        if self._digests is None:
            assert self.copy is not None
            self.copy.wait()
            self._digests = [tensor_digest(tensor) for tensor in self.copy.tensors]
        return self._digests


class MicroBatch:
    """What arrived since the previous backward."""

    def __init__(self, index: int, keep: bool) -> None:
        self.index = index
        """Position in its step, from 0."""
        self.keep = keep
        self.sites: list[Site] = []
        self.targets = TargetCount()
        self.has_model_call = False
        self.loss: Any = None
        """A float, or a scalar on the device."""
        self._seen: dict[Any, Optional[torch.Tensor]] = {}
        self._alive: list[torch.Tensor] = []

    def arrive(self, name: str, tensors: list[torch.Tensor], substitute: Substitute) -> dict[Any, torch.Tensor]:
        """Note the tensors that are new; answers what to use instead of which, by `_key`."""
        fresh: list[torch.Tensor] = []
        for tensor in tensors:
            key = _key(tensor)
            if tensor.requires_grad or key in self._seen:
                continue
            self._seen[key] = None
            self._alive.append(tensor)
            fresh.append(tensor)
        if fresh:
            others = substitute(self, len(self.sites), fresh)
            for old, new in zip(fresh, others or ()):
                self._seen[_key(old)] = new
            self.sites.append(Site(name, others or fresh, self.keep))
        return {key: new for key in map(_key, tensors) if (new := self._seen.get(key)) is not None}

    def model_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], substitute: Substitute
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Note an outermost module call; answers the arguments to call it with."""
        found: list[torch.Tensor] = []
        find_tensors((args, kwargs), found)
        swaps = self.arrive(f"forward:{type(module).__name__}", found, substitute)
        if swaps:
            args, kwargs = replace_tensors((args, kwargs), lambda tensor: swaps.get(_key(tensor), tensor))
        self.targets.note_labels(labels_of(module, args, kwargs))
        return args, kwargs

    def target_call(self, name: str, target: torch.Tensor, substitute: Substitute) -> torch.Tensor:
        """Note the target of a loss function outside of any module; answers the target to use."""
        return self.arrive(f"loss:{name}", [target], substitute).get(_key(target), target)

    def release(self) -> None:
        """Let go of the data: the backward begins."""
        self.targets.settle()
        self._alive.clear()
        self._seen.clear()

    def num_samples(self) -> Optional[int]:
        """Leading dimension that all tensors of the model's first call have in common; None if they have none."""
        first = next((site for site in self.sites if site.is_model), self.sites[0] if self.sites else None)
        leading = {shape[0] for shape in first.shapes if shape} if first else set()
        return leading.pop() if len(leading) == 1 else None

    def digest(self) -> Optional[str]:
        """Batch digest; None where no data was seen to arrive."""
        digests = [digest for site in self.sites for digest in site.digests()]
        return batch_digest(digests) if digests else None

    def save(self, path: str) -> None:
        """Write the batch file of docs/FORMATS.md; complete or not there at all."""
        sites = []
        for site in self.sites:
            assert site.copy is not None
            site.copy.wait()
            sites.append({"site": site.name, "tensors": site.copy.tensors})
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save({"schema": "spike.batch/1", "sites": sites}, path + ".part")
        os.replace(path + ".part", path)


def _key(tensor: torch.Tensor) -> Any:
    """Same memory seen the same way: views made anew at each use are recognised."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    if address == 0:
        return id(tensor)
    return address, tensor.dtype, tuple(tensor.shape), tensor.stride()
