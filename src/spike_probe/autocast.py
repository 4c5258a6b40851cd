"""Is automatic mixed precision on right now, and in which type? Asked the same way of every torch."""

from __future__ import annotations

import torch


def ambient_autocast() -> list[tuple[str, torch.dtype]]:
    """(device type, autocast dtype) of every device type whose autocast is enabled at this moment."""
    if hasattr(torch, "get_autocast_dtype"):  # torch >= 2.4
        devices = [device for device in ("cuda", "cpu") if torch.is_autocast_enabled(device)]
        return [(device, torch.get_autocast_dtype(device)) for device in devices]
    found = []
    if torch.is_autocast_enabled():
        found.append(("cuda", torch.get_autocast_gpu_dtype()))
    if torch.is_autocast_cpu_enabled():
        found.append(("cpu", torch.get_autocast_cpu_dtype()))
    return found


def set_autocast(device: str, enabled: bool) -> None:
    """Switch the ambient state of one device type; a region that is left restores what it found."""
    if hasattr(torch, "get_autocast_dtype"):
        torch.set_autocast_enabled(device, enabled)
    elif device == "cuda":
        torch.set_autocast_enabled(enabled)
    else:
        torch.set_autocast_cpu_enabled(enabled)
