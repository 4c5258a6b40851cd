"""Are digests those of docs/FORMATS.md, for every type and layout of tensor?"""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spike_probe.digests import batch_digest, scalar_tensor, tensor_digest

TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip


def reference(dtype: str, shape: tuple[int, ...], content: bytes) -> str:
    return hashlib.sha256(f"{dtype}:{'x'.join(map(str, shape))}:".encode() + content).hexdigest()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_is_digested_as_its_bytes(dtype: torch.dtype) -> None:
    content = bytes(range(48)) if dtype is not torch.bool else bytes([0, 1]) * 24
    flat = torch.frombuffer(bytearray(content), dtype=dtype)
    tensor = flat.reshape(2, -1)
    assert tensor_digest(tensor) == reference(str(dtype)[6:], tuple(tensor.shape), content)


def test_a_scalar_has_no_dimensions() -> None:
    assert tensor_digest(torch.tensor(1.5)) == reference("float32", (), torch.tensor([1.5]).numpy().tobytes())


def test_an_empty_tensor_is_its_shape() -> None:
    assert tensor_digest(torch.empty(0, 3)) == reference("float32", (0, 3), b"")


def test_the_layout_in_memory_does_not_count() -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert tensor_digest(tensor.t().contiguous().t()) == tensor_digest(tensor)
    assert tensor_digest(tensor[:, ::2]) == tensor_digest(tensor[:, ::2].clone())
    assert tensor_digest(torch.view_as_complex(torch.ones(2, 2)).conj()) == tensor_digest(
        torch.tensor([1 - 1j, 1 - 1j], dtype=torch.complex64)
    )


def test_type_and_shape_count() -> None:
    digests = {
        tensor_digest(torch.zeros(4)),
        tensor_digest(torch.zeros(2, 2)),
        tensor_digest(torch.zeros(4, dtype=torch.int32)),
        tensor_digest(-torch.zeros(4)),
    }
    assert len(digests) == 4


@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.integers(0, 31), st.data())
@settings(max_examples=60, deadline=None)
def test_one_flipped_bit_changes_the_digest(values: list[float], bit: int, data: st.DataObject) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    position = data.draw(st.integers(0, len(values) - 1))
    flipped = tensor.clone()
    flipped.view(torch.int32)[position] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
    assert tensor_digest(flipped) != tensor_digest(tensor)


def test_numbers_of_an_optimizer_state_are_tensors_of_one_type_each() -> None:
    assert tensor_digest(scalar_tensor(3)) == tensor_digest(torch.tensor(3, dtype=torch.int64))
    assert tensor_digest(scalar_tensor(0.5)) == tensor_digest(torch.tensor(0.5, dtype=torch.float64))
    assert tensor_digest(scalar_tensor(True)) == tensor_digest(torch.tensor(True))


def test_a_batch_is_the_order_of_its_tensors() -> None:
    first, second = "a" * 64, "b" * 64
    assert batch_digest([first, second]) == hashlib.sha256(f"{first}\n{second}".encode()).hexdigest()
    assert batch_digest([first, second]) != batch_digest([second, first])
