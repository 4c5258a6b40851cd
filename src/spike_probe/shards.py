"""Which box of which whole tensor does this rank hold? Of a DTensor, from its own description; no collective."""

from __future__ import annotations

from typing import Any

import torch


def place_of(tensor: torch.Tensor) -> dict[str, Any]:
    """`{"whole": shape, "offset": position}` of a DTensor's local shard; nothing where it is the whole tensor.

    Also nothing where the place cannot be told (a partial sum, a strided shard, another torch's internals).
    """
    placements = getattr(tensor, "placements", None)
    mesh = getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None or not any(p.is_shard() for p in placements):
        return {}
    if not all(type(p).__name__ in ("Shard", "Replicate") for p in placements):
        return {}
    try:
        shape, offset = _local_box(tensor, mesh, placements)
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return {}
    held = tensor._local_tensor  # type: ignore[attr-defined]
    if list(shape) != list(held.shape):
        return {}
    return {"whole": list(tensor.shape), "offset": [int(n) for n in offset]}


def _local_box(tensor: torch.Tensor, mesh: Any, placements: Any) -> Any:
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # before torch 2.5
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset
    return compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
