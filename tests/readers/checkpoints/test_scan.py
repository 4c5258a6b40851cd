"""Are the statistics of a scan right for every bit pattern, and does no flipped bit go unnoticed?"""

import math
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import save_file
from tests.readers.checkpoints.made import nanogpt

from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints import find_checkpoints, inspect_checkpoint, scan_checkpoint
from spike.readers.checkpoints._bytes import Boxes, FileRange, Joined, assemble, load
from spike.readers.checkpoints._numbers import decode, float8_values
from spike.readers.checkpoints._statistics import Statistics, counter

FLOATS = {"float64": np.uint64, "float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
LARGEST = {name: torch.finfo(getattr(torch, name)).max for name in FLOATS}
TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


def count(bits, dtype):
    totals = Statistics()
    raw = np.ascontiguousarray(bits).view(np.uint8)
    scratch = np.empty(raw.size, dtype=np.uint8), np.empty(raw.size, dtype=np.uint8)
    counter(dtype, scratch)(raw, totals)
    return totals


def decode_bits(value, dtype):
    """The bit pattern of a number, by torch."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[getattr(torch, dtype).itemsize]
    return int(torch.tensor(value, dtype=torch.float64).to(getattr(torch, dtype)).view(kind))


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_statistics_of_any_bits_equal_those_of_their_values(dtype, data):
    bits = data.draw(hnp.arrays(FLOATS[dtype], st.integers(0, 40)))
    if data.draw(st.booleans()):
        bits = bits & FLOATS[dtype](0x00FF)  # subnormals and zeros
    if data.draw(st.booleans()):
        largest = decode_bits(LARGEST[dtype], dtype)
        bits = np.concatenate([bits, np.array([largest, largest | 1 << (8 * bits.itemsize - 1)], dtype=bits.dtype)])
    with np.errstate(over="ignore", invalid="ignore"):
        values = decode(bits, dtype).astype(np.float64)
        finite = np.abs(values[np.isfinite(values)])
        squares = float(np.square(finite).sum())
    with np.errstate(over="ignore"):
        found = count(bits, dtype)
    assert found.num_nonfinite == values.size - finite.size
    assert found.absmax == (finite.max() if finite.size else 0.0)
    assert found.num_zeros == int((values == 0).sum())
    assert found.num_subnormal == int(((finite > 0) & (finite < TINY[dtype])).sum())
    assert found.num_saturated == int((finite == LARGEST[dtype]).sum())
    assert math.isclose(found.sum_squares, squares, rel_tol=1e-5) or (
        math.isinf(squares) and math.isinf(found.sum_squares)
    )


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_decodes_and_counts_as_torch_does(dtype):
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes.copy()).view(getattr(torch, dtype)).to(torch.float32).numpy()
    assert np.array_equal(float8_values(dtype), expected, equal_nan=True)
    found = count(np.concatenate([codes, codes[:1]]), dtype)
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    assert found.num_nonfinite == 256 - finite.size
    assert found.absmax == finite.max()
    assert found.num_zeros == int((expected == 0).sum()) + 1
    assert found.num_saturated == int((finite == finite.max()).sum())
    smallest_normal = {"4": 2.0**-6, "5": 2.0**-14}[dtype[8]] / (2 if dtype.endswith("uz") else 1)
    assert found.num_subnormal == int(((finite > 0) & (finite < smallest_normal)).sum())


@pytest.mark.parametrize("dtype", FLOAT8)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_float8_tensors_of_ordinary_weights_are_counted_as_exactly_as_any_others(dtype, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    size, scale = data.draw(st.integers(0, 3000)), data.draw(st.sampled_from([1e-3, 0.3, 40.0, 1000.0]))
    values = torch.from_numpy(rng.normal(0, scale, size)).float()
    largest = torch.finfo(getattr(torch, dtype)).max
    codes = values.clamp(-largest, largest).to(getattr(torch, dtype))
    found = count(codes.view(torch.uint8).numpy(), dtype)
    exact = codes.double().abs()
    assert (found.num_nonfinite, found.num_zeros) == (0, int((exact == 0).sum()))
    assert found.absmax == (exact.max().item() if size else 0.0)
    assert found.num_saturated == int((exact == largest).sum())
    smallest_normal = torch.finfo(getattr(torch, dtype)).smallest_normal
    assert found.num_subnormal == int(((exact > 0) & (exact < smallest_normal)).sum())
    assert math.isclose(found.sum_squares, float(exact.square().sum()), rel_tol=1e-5)


def test_types_that_do_not_saturate_say_so_and_the_others_count(tmp_path):
    big = torch.tensor([torch.finfo(torch.bfloat16).max, 1.0, -torch.finfo(torch.bfloat16).max], dtype=torch.bfloat16)
    save_file({"ids": torch.tensor([255], dtype=torch.uint8), "w": big}, tmp_path / "model.safetensors")
    found = {t.name: t for t in scan_checkpoint(inspect_checkpoint(tmp_path / "model.safetensors")).tensors}
    assert "saturate" in str(found["ids"].num_saturated)
    assert found["w"].num_saturated == 2


def test_tiny_second_moments_keep_their_norm():
    values = torch.full((100_000,), 1e-30)
    found = count(values.numpy().view(np.uint32), "float32")
    assert math.isclose(math.sqrt(found.sum_squares), float(values.double().norm()), rel_tol=1e-6)


def test_huge_values_do_not_overflow_their_norm():
    values = torch.full((1000,), 1e30)
    found = count(values.numpy().view(np.uint32), "float32")
    assert math.isclose(math.sqrt(found.sum_squares), float(values.double().norm()), rel_tol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_of_several_megabytes_and_an_odd_length_is_scanned_whole(tmp_path, dtype):
    torch.manual_seed(0)
    tensor = torch.randn(1_300_001).to(dtype)
    tensor[-1] = float("inf")
    tensor[7] = 0
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    seen = []
    (found,) = scan_checkpoint(inspect_checkpoint(tmp_path / "model.safetensors"), seen.append).tensors
    finite = tensor[tensor.isfinite()].double()
    assert (found.num_nonfinite, found.absmax) == (1, finite.abs().max().item())
    assert found.num_zeros == (finite == 0).sum().item()
    assert math.isclose(found.l2, finite.norm().item(), rel_tol=1e-5)
    assert sum(seen) == tensor.nbytes


def test_a_file_that_shrinks_before_the_scan_is_reported_and_its_statistics_are_not_measured(tmp_path):
    save_file({"a": torch.ones(100), "b": torch.ones(100_000)}, tmp_path / "model.safetensors")
    found = inspect_checkpoint(tmp_path / "model.safetensors")
    from spike.readers.checkpoints import lazy_tensors
    from spike.readers.checkpoints._scan import scan_tensors

    tensors = list(lazy_tensors(found))
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-1000])
    result = scan_tensors(tensors)
    assert len(result.unreadable) == 1
    assert "1,000 bytes short" in result.unreadable[0][1]
    facts = {t.name: t for t in result.facts}
    assert facts["a"].num_nonfinite == 0
    assert "could not be read" in str(facts["b"].digest)


SLOW = [HealthCheck.function_scoped_fixture]


@settings(max_examples=80, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_no_flipped_bit_of_a_torch_file_goes_unnoticed(tmp_path, data):
    path = tmp_path / "ckpt.pt"
    if not path.exists():
        nanogpt(path)
        (tmp_path / "whole").write_bytes(path.read_bytes())
    whole = (tmp_path / "whole").read_bytes()
    path.write_bytes(whole)
    clean = scan_checkpoint(inspect_checkpoint(path))
    damaged = bytearray(whole)
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    found = find_checkpoints(tmp_path, "ckpt.pt")[0]
    if found.is_whole and not (scan := scan_checkpoint(found)).unreadable:
        # Alignment padding and time stamps carry no content.
        assert {t.digest for t in scan.tensors} == {t.digest for t in clean.tensors}
        assert (found.step, found.config, found.scalars) == (3, *_stored(whole, tmp_path))


def _stored(whole, tmp_path):
    (tmp_path / "again.pt").write_bytes(whole)
    found = inspect_checkpoint(tmp_path / "again.pt")
    return found.config, found.scalars


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(st.lists(st.tuples(st.integers(0, 5000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_damaged_files_of_any_kind_are_verdicts_and_never_crashes(tmp_path, edits):
    if not (tmp_path / "a.pt").exists():
        torch.save({"model": {"w": torch.ones(9)}, "step": 1}, tmp_path / "a.pt")
        torch.save({"model": {"w": torch.ones(9)}}, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
        save_file({"w": torch.ones(9), "v": torch.ones(3)}, tmp_path / "c.safetensors")
    for name in ("a.pt", "b.pt", "c.safetensors"):
        whole = (tmp_path / name).read_bytes()
        data = bytearray(whole)
        for place, piece in edits:
            data[place % len(data) : place % len(data) + len(piece)] = piece
        target = tmp_path / f"damaged-{name}"
        target.write_bytes(data)
        for found in find_checkpoints(tmp_path, target.name):
            scan_checkpoint(found)
            assert found.reason or found.is_whole


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(st.binary(max_size=400))
def test_a_pickle_of_random_bytes_inside_a_sound_archive_is_a_verdict(tmp_path, body):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", body)
        archive.writestr("x/byteorder", b"little")
    found = inspect_checkpoint(tmp_path / "x.pt")
    scan_checkpoint(found)
    assert found.is_whole or found.reason


# -- assembling ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9), st.randoms())
def test_boxes_in_any_order_give_the_whole_tensor(tmp_path, rows, columns, row, column, random):
    row, column = min(row, rows), min(column, columns)
    whole = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    boxes = []
    for r0, r1 in ((0, row), (row, rows)):
        for c0, c1 in ((0, column), (column, columns)):
            path = tmp_path / f"{r0}-{r1}-{c0}-{c1}"
            path.write_bytes(whole[r0:r1, c0:c1].tobytes())
            boxes.append(((r0, c0), (r1 - r0, c1 - c0), FileRange(path, 0, 4 * (r1 - r0) * (c1 - c0))))
    random.shuffle(boxes)
    boxes = [box for box in boxes if box[2].nbytes]
    source = assemble((rows, columns), 4, boxes)
    assert load(source) == whole.tobytes()
    assert source.nbytes == whole.nbytes


def test_shards_along_the_first_dimension_are_streamed_and_not_assembled(tmp_path):
    (tmp_path / "x").write_bytes(bytes(24))
    boxes = [((2, 0), (4, 1), FileRange(tmp_path / "x", 8, 16)), ((0, 0), (2, 1), FileRange(tmp_path / "x", 0, 8))]
    assert isinstance(assemble((6, 1), 4, boxes), Joined)
    tall = [((0, 0), (6, 1), FileRange(tmp_path / "x", 0, 6)), ((0, 1), (6, 1), FileRange(tmp_path / "x", 6, 6))]
    assert isinstance(assemble((6, 2), 1, tall), Boxes)


@pytest.mark.parametrize(
    "boxes",
    [
        [((0,), (3,))],
        [((0,), (2,)), ((1,), (2,))],
        [((0,), (2,)), ((3,), (2,))],
        [((-1,), (4,))],
        [((0, 0), (2, 2))],
    ],
)
def test_shards_that_do_not_tile_the_tensor_are_refused(tmp_path, boxes):
    (tmp_path / "x").write_bytes(bytes(100))
    ranges = [(at, size, FileRange(tmp_path / "x", 0, 4 * math.prod(size))) for at, size in boxes]
    with pytest.raises(InputUnreadable):
        assemble((4,), 4, ranges)
