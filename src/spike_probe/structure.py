"""Which tensors hide in the arguments of a call? Walks nested containers, and rebuilds them with others."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import MutableMapping
from typing import Any, Callable

import torch

MAX_DEPTH = 6
MAPPINGS = (MutableMapping, UserDict)
"""transformers.BatchEncoding is a UserDict. By type alone: a tracer's proxy answers to every attribute."""


def find_tensors(value: Any, found: list[torch.Tensor], depth: int = MAX_DEPTH) -> None:
    """Append every tensor inside `value` (dict, list, tuple, dataclass, nested) in order of appearance."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif depth == 0 or isinstance(value, (str, bytes, int, float, type(None), torch.nn.Module)):
        return
    elif isinstance(value, MAPPINGS):
        for item in value.values():
            find_tensors(item, found, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            find_tensors(item, found, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            find_tensors(getattr(value, field.name, None), found, depth - 1)


def replace_tensors(value: Any, swap: Callable[[torch.Tensor], torch.Tensor], depth: int = MAX_DEPTH) -> Any:
    """`value` with `swap` applied to every tensor; containers are copied, never changed in place."""
    if isinstance(value, torch.Tensor):
        return swap(value)
    if depth == 0 or isinstance(value, (str, bytes, int, float, type(None), torch.nn.Module)):
        return value
    if isinstance(value, MAPPINGS):
        changed = copy.copy(value)
        for key in list(value.keys()):
            changed[key] = replace_tensors(value[key], swap, depth - 1)
        return changed
    if isinstance(value, (list, tuple)):
        items = [replace_tensors(item, swap, depth - 1) for item in value]
        return _same_sequence(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        filled = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(filled, field.name, replace_tensors(getattr(value, field.name), swap, depth - 1))
        return filled
    return value


def _same_sequence(value: Any, items: list[Any]) -> Any:
    kind = type(value)
    if hasattr(value, "_fields"):
        return kind(*items)
    return kind(items)
