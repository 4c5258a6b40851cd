"""Are two tensors the same bits? SHA-256 over dtype, shape and bytes, as docs/FORMATS.md defines it."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable
from typing import Any

import torch


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds: a DTensor's shard, else the tensor itself. No collective."""
    shard = getattr(tensor, "_local_tensor", None)
    return tensor if shard is None else shard


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" for torch.bfloat16."""
    return str(dtype)[len("torch.") :]


def shape_text(shape: Iterable[int]) -> str:
    """ "2x3" for (2, 3); "" for a scalar."""
    return "x".join(str(int(size)) for size in shape)


def tensor_digest(tensor: torch.Tensor) -> str:
    """Hexadecimal digest of a tensor on any device; of a DTensor its local shard. Waits for the device."""
    held = local(tensor)
    is_plain = held.device.type == "cpu" and held.is_contiguous() and not held.is_conj() and not held.is_neg()
    host = held if is_plain else held.detach().cpu().contiguous().resolve_conj().resolve_neg()
    digest = hashlib.sha256(f"{dtype_name(host.dtype)}:{shape_text(host.shape)}:".encode())
    size = host.numel() * host.element_size()
    if size:
        # A view of the memory itself: no numpy needed, any dtype (bfloat16, float8) and no copy.
        digest.update((ctypes.c_char * size).from_address(host.data_ptr()))
    return digest.hexdigest()


def scalar_tensor(value: Any) -> torch.Tensor:
    """A Python number of an optimizer state as the tensor that is digested: bool, int64 or float64."""
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def batch_digest(tensor_digests: Iterable[str]) -> str:
    """Digest of a micro-batch from its tensors' digests, in the order in which they arrived."""
    return hashlib.sha256("\n".join(tensor_digests).encode()).hexdigest()
