"""How does recorded state get into a live process? A small torch file with parameters, moments, or both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Role
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._bytes import load
from spike.readers.checkpoints.contract import LazyTensor

SCHEMA = "spike.donor/1"


def write(tensors: Iterable[LazyTensor], path: Path, *, parameters: bool, moments: bool) -> None:
    """Write the donor file, replacing `path` in one step. torch is imported here and nowhere else."""
    import torch

    donor: dict[str, Any] = {"schema": SCHEMA, "parameters": {}, "moments": {}}
    for tensor in tensors:
        if tensor.role is Role.PARAMETER and parameters:
            donor["parameters"][tensor.name] = as_torch(tensor)
        elif tensor.role is Role.MOMENT and moments:
            if tensor.index < 0:
                raise InputUnreadable(
                    f"{tensor.file}: moment {tensor.key} of {tensor.name} has no place in the optimizer's order"
                )
            donor["moments"].setdefault(tensor.index, {})[tensor.key] = as_torch(tensor)
    temporary = path.with_name(f".{path.name}.tmp")
    torch.save(donor, temporary)
    temporary.replace(path)


def as_torch(tensor: LazyTensor) -> Any:
    """The tensor as torch's own, with the same type, shape and bits."""
    import torch

    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise InputUnreadable(f"this torch ({torch.__version__}) has no type {tensor.dtype}")
    content = load(tensor.data)
    if not content:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(tensor.shape)
