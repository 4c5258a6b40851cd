"""Which random numbers would come next? Digests of the generators' states, read without drawing."""

from __future__ import annotations

import array
import ctypes
import hashlib
import random
import sys
from typing import Any, Callable

import torch

LENGTH = 32
"""Hexadecimal characters kept: enough to compare, half the trace."""


_last: dict[str, tuple[Any, str]] = {}
"""State and digest of each generator when it was last read: most of them rest for the whole run."""


def rng_digests() -> dict[str, str]:
    """State digests of python, torch, numpy (only if imported) and cuda (only if initialised)."""
    digests = {"python": _remembered("python", random.getstate(), _python)}
    digests["torch"] = _remembered("torch", _bytes(torch.get_rng_state()), _hash)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, position, *gauss = numpy.random.get_state()
        digests["numpy"] = _remembered("numpy", keys.tobytes() + f"{kind}{position}{gauss}".encode(), _hash)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        digests["cuda"] = _remembered("cuda", _bytes(torch.cuda.get_rng_state()), _hash)
    return digests


def _remembered(name: str, state: Any, digest: Callable[[Any], str]) -> str:
    known = _last.get(name)
    if known is None or known[0] != state:
        known = _last[name] = (state, digest(state))
    return known[1]


def _python(state: tuple[Any, ...]) -> str:
    version, internal, gauss = state
    return _hash(array.array("Q", internal).tobytes() + f"{version}{gauss}".encode())


def _bytes(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:LENGTH]
