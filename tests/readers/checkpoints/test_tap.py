"""Do bytes that pass by once tell the same of every tensor as a scan that reads them itself?"""

import json
import math
import os
import random
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.readers.checkpoints.made import nanogpt, trained
from torch.distributed import checkpoint as dcp

from spike.domain.measured import NotMeasured
from spike.readers.checkpoints import inspect_checkpoint, open_tap, scan_checkpoint, tensor_digests

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int8,
    torch.bool,
]
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
chunkings = st.lists(st.integers(1, 97), min_size=1, max_size=5)


def pieces_of(path, sizes):
    """The file's bytes in pieces whose sizes repeat, as (offset, memoryview)."""
    data, at, turn = path.read_bytes(), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        yield at, memoryview(data)[at : at + size]
        at, turn = at + size, turn + 1


def files_of(root):
    return [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())


def tapped(checkpoint, sizes, *, shuffle=None, leave_out=()):
    """What a tap says after the files have passed, interleaved in a random way where `shuffle` is given."""
    root = Path(checkpoint.path)
    tap = open_tap(checkpoint)
    passing = []
    for path in files_of(root):
        name = path.name if path == root else path.relative_to(root).as_posix()
        if name not in leave_out:
            passing.append((name, pieces_of(path, sizes)))
    while passing:
        turn = shuffle.randrange(len(passing)) if shuffle else 0
        name, pieces = passing[turn]
        piece = next(pieces, None)
        if piece is None:
            del passing[turn]
        else:
            tap.feed(name, *piece)
    return tap.result()


def same(found, expected, tolerance=1e-5):
    """Equal facts, apart from digests and the rounding of norms; the number of tensors compared."""
    assert found.unreadable == expected.unreadable
    assert len(found.tensors) == len(expected.tensors)
    for one, other in zip(found.tensors, expected.tensors, strict=True):
        assert replace(one, digest="", l2=0.0) == replace(other, digest="", l2=0.0)
        if isinstance(other.l2, NotMeasured):
            assert one.l2 == other.l2
        else:
            assert math.isclose(one.l2, other.l2, rel_tol=tolerance) or one.l2 == other.l2
    return len(found.tensors)


def random_tensor(draw):
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    size = math.prod(shape) * dtype.itemsize
    raw = bytearray(random.Random(draw(st.integers(0, 1 << 30))).randbytes(size))
    if dtype is torch.bool:
        raw = bytearray(byte & 1 for byte in raw)
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)


def random_layout(draw, tensor):
    """The tensor itself, transposed, cut out with gaps, or spread over a dimension that it does not have."""
    kind = draw(st.sampled_from(["plain", "plain", "transposed", "cut", "spread"]))
    if kind == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if kind == "cut" and tensor.dim():
        return tensor[::2]
    return tensor.expand(3, *tensor.shape) if kind == "spread" else tensor


def write(draw, folder):
    """A random checkpoint of one of three formats; its path."""
    tensors = {f"t{n}": random_tensor(draw) for n in range(draw(st.integers(1, 5)))}
    kind = draw(st.sampled_from(["safetensors", "torch", "dcp"]))
    if kind == "safetensors":
        save_file(tensors, folder / "model.safetensors")
        return folder / "model.safetensors"
    if kind == "torch":
        laid = {name: random_layout(draw, tensor) for name, tensor in tensors.items()}
        torch.save({"model": {**laid, "tied": laid["t0"]}, "step": 3}, folder / "ckpt.pt")
        return folder / "ckpt.pt"
    dcp.save({"model": tensors, "step": 3}, checkpoint_id=str(folder / "step-3"))
    return folder / "step-3"


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_a_tap_says_what_a_scan_says_whatever_the_types_shapes_files_and_chunks(tmp_path_factory, data):
    path = write(data.draw, tmp_path_factory.mktemp("random"))
    checkpoint = inspect_checkpoint(path)
    sizes = data.draw(chunkings)
    found = tapped(checkpoint, sizes, shuffle=random.Random(data.draw(st.integers(0, 1 << 20))))
    expected = scan_checkpoint(checkpoint)
    assert same(found, expected) >= 1
    assert same(scan_checkpoint(checkpoint, digests=False), expected) >= 1
    keys = {(t.role.value, t.name, t.key): t.digest for t in expected.tensors}
    assert all(isinstance(t.digest, NotMeasured) for t in found.tensors)
    assert tensor_digests(checkpoint, set(keys)) == keys


def test_many_files_pass_in_several_threads_at_once(tmp_path):
    torch.manual_seed(0)
    weights = {}
    for shard in range(1, 7):
        name = f"model-{shard:05d}-of-00006.safetensors"
        save_file({f"w{shard}": torch.randn(300, 77)}, tmp_path / name)
        weights[f"w{shard}"] = name
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    checkpoint = inspect_checkpoint(tmp_path)
    tap = open_tap(checkpoint)

    def feed(names):
        for name in names:
            for piece in pieces_of(tmp_path / name, [4099]):
                tap.feed(name, *piece)

    names = sorted(weights.values())
    threads = [threading.Thread(target=feed, args=(names[start::3],)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(tap.result(), scan_checkpoint(checkpoint)) == 6


def test_nothing_that_passed_is_read_again(tmp_path, monkeypatch):
    nanogpt(tmp_path / "ckpt.pt")
    dcp.save({"model": trained()[0].state_dict()}, checkpoint_id=str(tmp_path / "step-3"))
    for path in (tmp_path / "ckpt.pt", tmp_path / "step-3"):
        checkpoint, seen = inspect_checkpoint(path), []
        tap = open_tap(checkpoint)
        for file in files_of(path):
            for piece in pieces_of(file, [1000]):
                tap.feed(file.name, *piece)
        assert tap.result(seen.append).unreadable == ()
        assert seen == []


def test_what_did_not_pass_or_not_in_order_is_read_afterwards(tmp_path):
    dcp.save({"model": trained()[0].state_dict()}, checkpoint_id=str(tmp_path / "step-3"))
    nanogpt(tmp_path / "ckpt.pt")
    checkpoint = inspect_checkpoint(tmp_path / "step-3")
    expected = scan_checkpoint(checkpoint)
    assert same(tapped(checkpoint, [100], leave_out=("__0_0.distcp",)), expected) > 3
    checkpoint = inspect_checkpoint(tmp_path / "ckpt.pt")
    tap = open_tap(checkpoint)
    for offset, piece in list(pieces_of(tmp_path / "ckpt.pt", [500]))[:3]:
        tap.feed("ckpt.pt", offset * 2, piece)
    assert same(tap.result(), scan_checkpoint(checkpoint)) > 3


@pytest.mark.parametrize("format", ["torch", "dcp"])
def test_a_flipped_byte_is_found_by_its_checksum_while_it_passes(tmp_path, format):
    model, _ = trained()
    if format == "torch":
        whole = model[0].weight.detach().clone()
        torch.save({"model": {"w": whole, "half": whole[:7], "other": torch.ones(5)}}, tmp_path / "ckpt.pt")
        path = file = tmp_path / "ckpt.pt"
        with zipfile.ZipFile(path) as archive:
            place = archive.getinfo("ckpt/data/0").header_offset + 300
    else:
        path = tmp_path / "step-3"
        dcp.save({"model": model.state_dict()}, checkpoint_id=str(path))
        file = path / "__0_0.distcp"
        weight = model[0].weight.detach().numpy().tobytes()
        place = file.read_bytes().index(weight) + 40
    damaged = bytearray(file.read_bytes())
    damaged[place] ^= 0x10
    file.write_bytes(damaged)
    checkpoint = inspect_checkpoint(path)
    found = tapped(checkpoint, [333])
    assert any("CRC" in reason for _, reason in found.unreadable)
    assert same(found, scan_checkpoint(checkpoint)) > 2


def test_a_file_that_changes_between_is_unreadable_and_nothing_is_said_of_its_tensors(tmp_path):
    save_file({"a": torch.ones(100)}, tmp_path / "model.safetensors")
    checkpoint = inspect_checkpoint(tmp_path / "model.safetensors")
    tap = open_tap(checkpoint)
    for piece in pieces_of(tmp_path / "model.safetensors", [64]):
        tap.feed("model.safetensors", *piece)
    save_file({"a": torch.zeros(100)}, tmp_path / "model.safetensors")
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    found = tap.result()
    assert found.unreadable == (("model.safetensors", "changed while it was read"),)
    assert isinstance(found.tensors[0].num_nonfinite, NotMeasured)


def test_a_checkpoint_that_cannot_be_read_is_a_verdict_of_the_tap_too(tmp_path):
    nanogpt(tmp_path / "ckpt.pt")
    checkpoint = inspect_checkpoint(tmp_path / "ckpt.pt")
    (tmp_path / "ckpt.pt").write_bytes((tmp_path / "ckpt.pt").read_bytes()[:5000])
    found = open_tap(checkpoint).result()
    assert found.tensors == ()
    assert found.unreadable == scan_checkpoint(checkpoint).unreadable
