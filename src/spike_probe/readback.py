"""When may a number leave the device? At once in a trial; in record mode one or more steps later, without waiting."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

MAX_WAITING = 64
"""Records kept back before the probe waits for the oldest: a device that is never ready would fill the memory."""


class HostCopy:
    """Tensors on their way from the device to pinned memory."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._event: Optional[Any] = None
        self.tensors = [self._start(tensor) for tensor in tensors]
        if any(tensor.device.type == "cuda" for tensor in tensors):
            self._event = torch.cuda.Event()
            self._event.record()

    @staticmethod
    def _start(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cuda":
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        return host

    def is_ready(self) -> bool:
        """True when the bytes have arrived."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Block until the bytes have arrived."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None


class Readback:
    """Device scalars and batches of one step, and what to do when all of them are on the host."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.copies: list[HostCopy] = []
        self._finish = finish

    def is_ready(self) -> bool:
        return all(copy.is_ready() for copy in self.copies)

    def complete(self) -> None:
        """Wait for what is missing, then finish."""
        for copy in self.copies:
            copy.wait()
        self._finish()


class ReadbackQueue:
    """Steps whose numbers are still on the device, oldest first; written strictly in order."""

    def __init__(self) -> None:
        self._waiting: list[Readback] = []

    def add(self, readback: Readback, *, now: bool) -> None:
        """Queue one step; with `now` everything is written before this returns."""
        self._waiting.append(readback)
        self.drain(everything=now)

    def drain(self, *, everything: bool) -> None:
        """Write the steps that have arrived; all of them with `everything`."""
        while self._waiting:
            first = self._waiting[0]
            if not everything and len(self._waiting) <= MAX_WAITING and not first.is_ready():
                return
            self._waiting.pop(0)
            first.complete()


def number_of(scalar: torch.Tensor) -> Any:
    """A Python number; on CUDA a copy that stays on the device, because reading it would wait for the stream."""
    return scalar.detach().clone() if scalar.device.type == "cuda" else scalar.item()


def pack(values: dict[str, torch.Tensor]) -> Optional[HostCopy]:
    """Named device scalars as one float64 vector on its way to the host, in the dict's order."""
    if not values:
        return None
    device = next((v.device for v in values.values() if v.device.type == "cuda"), None)
    scalars = [value.detach().reshape(()).to(torch.float64) for value in values.values()]
    if device is not None:
        scalars = [scalar.to(device, non_blocking=True) for scalar in scalars]
    return HostCopy([torch.stack(scalars)])
