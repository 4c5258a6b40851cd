"""What is the whole training state, bit for bit? Digests of parameters, buffers, moments and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from spike_probe.digests import dtype_name, local, scalar_tensor, tensor_digest
from spike_probe.live_state import LiveState
from spike_probe.shards import place_of


def tensor_print(role: str, name: str, index: int, key: str, tensor: torch.Tensor) -> dict[str, Any]:
    """One entry of a `fingerprint` line; of a DTensor the local shard."""
    held = local(tensor.detach())
    shape = list(held.shape)
    return {
        "role": role, "name": name, "index": index, "key": key, "dtype": dtype_name(held.dtype), "shape": shape,
        "digest": tensor_digest(held), **_statistics(held), **place_of(tensor),
    }  # fmt: skip


def _statistics(held: torch.Tensor) -> dict[str, Any]:
    if held.is_complex():
        held = torch.view_as_real(held)
    values = held.to(torch.float64) if not held.is_floating_point() else held
    if values.element_size() < 4:
        values = values.to(torch.float32)
    l2 = torch.linalg.vector_norm(values, dtype=torch.float64 if values.numel() <= 1 else None)
    return {"l2": float(l2), "nonfinite": int((~torch.isfinite(values)).sum())}


def parameter_prints(state: LiveState) -> list[dict[str, Any]]:
    """Parameters: those of optimizers in their order, then the ones that no optimizer holds (index -1)."""
    names = _names(state)
    prints, done = [], set()
    for index, param in _indexed(state):
        done.add(id(param))
        for name in names.get(id(param), [""]):
            prints.append(tensor_print("parameter", name, index, "", param))
    for name, param in state.named_parameters():
        if id(param) not in done:
            prints.append(tensor_print("parameter", name, -1, "", param))
    return prints


def buffer_prints(state: LiveState) -> list[dict[str, Any]]:
    """Buffers of the models, persistent or not."""
    return [tensor_print("buffer", name, -1, "", buffer) for name, buffer in state.named_buffers()]


def moment_prints(state: LiveState) -> list[dict[str, Any]]:
    """Every tensor and number of the optimizers' state; nothing where an optimizer has not stepped yet."""
    names = _names(state)
    prints = []
    for optimizer in state.optimizers():
        for index, param in enumerate(_params(optimizer)):
            name = names.get(id(param), [""])[0]
            for key, tensor in moments_of(optimizer, param):
                prints.append(tensor_print("moment", name, index, key, tensor))
    return prints


def gradient_prints(state: LiveState) -> list[dict[str, Any]]:
    """Gradients of parameters that have one."""
    names = _names(state)
    return [
        tensor_print("gradient", names.get(id(param), [""])[0], index, "", param.grad)
        for index, param in _indexed(state)
        if param.grad is not None
    ]


def moments_of(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """(key, tensor) of one parameter's optimizer state, nested entries with dotted keys, numbers as tensors."""
    if param not in optimizer.state:
        return []
    return list(_flatten("", optimizer.state[param]))


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, (bool, int, float)):
        yield prefix, scalar_tensor(value)
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), item)


def _params(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _indexed(state: LiveState) -> list[tuple[int, torch.Tensor]]:
    return [pair for optimizer in state.optimizers() for pair in enumerate(_params(optimizer))]


def _names(state: LiveState) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, param in state.named_parameters():
        names.setdefault(id(param), []).append(name)
    return names
