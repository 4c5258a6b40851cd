"""Which random numbers would come next? Digests of the generators' states, read without drawing."""

from __future__ import annotations

import array
import ctypes
import hashlib
import random
import sys

import torch

LENGTH = 32
"""Hexadecimal characters kept: enough to compare, half the trace."""


def rng_digests() -> dict[str, str]:
    """State digests of python, torch, numpy (only if imported) and cuda (only if initialised)."""
    digests = {"python": _python(), "torch": _state(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, position, *gauss = numpy.random.get_state()
        digests["numpy"] = _hash(keys.tobytes() + f"{kind}{position}{gauss}".encode())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        digests["cuda"] = _state(torch.cuda.get_rng_state())
    return digests


def _python() -> str:
    version, internal, gauss = random.getstate()
    return _hash(array.array("Q", internal).tobytes() + f"{version}{gauss}".encode())


def _state(state: torch.Tensor) -> str:
    return _hash((ctypes.c_char * state.numel()).from_address(state.data_ptr()))


def _hash(content: object) -> str:
    return hashlib.sha256(content).hexdigest()[:LENGTH]  # type: ignore[arg-type]
