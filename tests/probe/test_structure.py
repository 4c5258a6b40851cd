"""Are tensors found, and replaced, wherever a call may hide them?"""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from spike_probe.structure import find_tensors, replace_tensors

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Frozen:
    ids: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Output(OrderedDict):
    """In the manner of transformers.ModelOutput: a mapping and a dataclass at once."""

    loss: torch.Tensor | None = None


A, B = torch.tensor([1]), torch.tensor([2])
SHAPES: dict[str, Any] = {
    "dict": {"a": A, "n": 3, "inner": {"b": B}},
    "list and tuple": [A, (B, "text", None)],
    "named tuple": Pair(A, B),
    "user dict": UserDict({"a": A, "b": [B]}),
    "dataclass": Frozen(A, {"b": B}),
    "ordered dict": OrderedDict(a=A, b=B),
}


@pytest.mark.parametrize("name", SHAPES)
def test_tensors_are_found_in_order(name: str) -> None:
    found: list[torch.Tensor] = []
    find_tensors(SHAPES[name], found)
    assert [tensor is original for tensor, original in zip(found, (A, B), strict=True)] == [True, True]


@pytest.mark.parametrize("name", SHAPES)
def test_replacing_keeps_the_container_and_leaves_the_original_alone(name: str) -> None:
    changed = replace_tensors(SHAPES[name], lambda tensor: tensor * 10)
    assert type(changed) is type(SHAPES[name])
    found: list[torch.Tensor] = []
    find_tensors(changed, found)
    assert [int(tensor) for tensor in found] == [10, 20]
    untouched: list[torch.Tensor] = []
    find_tensors(SHAPES[name], untouched)
    assert [int(tensor) for tensor in untouched] == [1, 2]


def test_modules_and_deep_nests_are_left_alone() -> None:
    nest: Any = A
    for _ in range(40):
        nest = [nest]
    found: list[torch.Tensor] = []
    find_tensors([torch.nn.Linear(2, 2), nest], found)
    assert found == []
