"""Does the safetensors reader accept what writers make and refuse what only an attacker or a full disk makes?"""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file
from tests.readers.checkpoints.made import digest, trained

from spike.domain.checkpoint import Integrity, Role
from spike.readers.checkpoints import inspect_checkpoint, lazy_tensors, scan_checkpoint

W = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path, header, body=b"\0" * 8, *, length=None):
    """A file with this header, given as an object or as bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)


def test_a_file_of_the_reference_writer_has_torchs_digests(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(5).bfloat16(),
        "c": torch.randn(6).to(torch.float8_e4m3fn),
        "d": torch.arange(4),
        "e": torch.tensor([True, False]),
        "f": torch.zeros(0, 2),
        "g": torch.tensor(1.5, dtype=torch.float64),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"step": "12"})
    found = inspect_checkpoint(tmp_path / "model.safetensors")
    assert (found.layout, found.step, found.integrity) == ("safetensors", 12, Integrity.COMPLETE)
    assert "no checksum" in found.reason
    scan = scan_checkpoint(found)
    assert scan.unreadable == ()
    assert {t.name: t.digest for t in scan.tensors} == {name: digest(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("header", "body", "integrity"),
    [
        (b'{"w":' + json.dumps(W).encode() + b',"w":' + json.dumps(W).encode() + b"}", b"\0" * 8, Integrity.CORRUPT),
        (b'{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"\0" * 8, Integrity.CORRUPT),
        ({"w": W, "v": W}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": W, "v": {**W, "data_offsets": [4, 12]}}, b"\0" * 12, Integrity.CORRUPT),
        ({"w": {**W, "data_offsets": [8, 16]}}, b"\0" * 16, Integrity.CORRUPT),
        ({"w": W}, b"\0" * 9, Integrity.CORRUPT),
        ({"w": W}, b"\0" * 7, Integrity.TORN),
        ({"w": {**W, "shape": [3]}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {**W, "shape": [-2]}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {**W, "shape": [2.0]}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {**W, "shape": [True, 2]}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {**W, "shape": [1 << 62, 1 << 62]}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {**W, "data_offsets": [0]}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {**W, "data_offsets": [8, 0]}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {"dtype": "F32"}}, b"\0" * 8, Integrity.CORRUPT),
        ({"w": {**W, "dtype": "F4"}}, b"\0" * 8, Integrity.UNVERIFIABLE),
        ({"w": W, "__metadata__": 5}, b"\0" * 8, Integrity.CORRUPT),
        (b"[1]", b"", Integrity.CORRUPT),
        (b'{"w": NaN}', b"", Integrity.CORRUPT),
        (b"{", b"", Integrity.CORRUPT),
        (b" {}", b"", Integrity.CORRUPT),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, b"", Integrity.CORRUPT),
        (b"{}" + b" " * 99_000_000, b"", Integrity.CORRUPT),
        (b"{" + b" " * 3_000_000 + b"}", b"", Integrity.CORRUPT),
        (b"\xff\xfe{}", b"", Integrity.CORRUPT),
    ],
)
def test_headers_that_no_writer_makes_are_refused(tmp_path, header, body, integrity):
    write(tmp_path / "model.safetensors", header, body)
    found = inspect_checkpoint(tmp_path / "model.safetensors")
    assert found.integrity is integrity
    assert "model.safetensors" in found.reason
    assert scan_checkpoint(found).unreadable


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_001])
def test_an_absurd_header_length_is_refused_without_reading(tmp_path, length):
    write(tmp_path / "model.safetensors", b"{}", length=length)
    assert inspect_checkpoint(tmp_path / "model.safetensors").integrity is Integrity.CORRUPT


@pytest.mark.parametrize("cut", [0, 4, 8, 20, -1])
def test_a_truncated_file_is_torn(tmp_path, cut):
    save_file({"w": torch.randn(64)}, tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:cut])
    assert inspect_checkpoint(tmp_path / "model.safetensors").integrity is Integrity.TORN


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a\x1b[31mred\nline", "\u202eevil", "a" * 5000])
def test_tensor_names_are_only_ever_names(tmp_path, name):
    write(tmp_path / "model.safetensors", {name: W})
    found = inspect_checkpoint(tmp_path / "model.safetensors")
    assert found.integrity is Integrity.COMPLETE
    assert [t.name for t in lazy_tensors(found)] == [name]
    assert [t.name for t in scan_checkpoint(found).tensors] == [name]
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_empty_tensors_may_share_an_offset(tmp_path):
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write(tmp_path / "model.safetensors", {"a": empty, "w": W, "b": {**empty, "data_offsets": [8, 8]}})
    assert inspect_checkpoint(tmp_path / "model.safetensors").integrity is Integrity.COMPLETE


def sharded(folder, *, with_index=True):
    folder.mkdir()
    parts = [{"a": torch.ones(4)}, {"b": torch.ones(5)}, {"c": torch.ones(6)}]
    weights = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-00003.safetensors"
        save_file(part, folder / name)
        weights |= dict.fromkeys(part, name)
    if with_index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return folder


@pytest.mark.parametrize("with_index", [True, False])
def test_shards_are_one_checkpoint_and_a_missing_one_tears_it(tmp_path, with_index):
    folder = sharded(tmp_path / "step-7", with_index=with_index)
    found = inspect_checkpoint(folder)
    assert (found.layout, found.step, found.num_tensors, found.integrity) == ("safetensors", 7, 3, Integrity.COMPLETE)
    (folder / "model-00002-of-00003.safetensors").unlink()
    found = inspect_checkpoint(folder)
    assert found.integrity is Integrity.TORN
    assert "model-00002-of-00003.safetensors" in found.reason
    assert scan_checkpoint(found).unreadable


def test_a_shard_without_one_of_the_tensors_of_the_index_tears_the_checkpoint(tmp_path):
    folder = sharded(tmp_path / "step-7")
    save_file({"x": torch.ones(5)}, folder / "model-00002-of-00003.safetensors")
    found = inspect_checkpoint(folder)
    assert found.integrity is Integrity.TORN
    assert "b" in found.reason


def test_an_optimizer_beside_the_weights_belongs_to_the_checkpoint(tmp_path):
    model, optimizer = trained(2)
    folder = tmp_path / "step-2"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    found = inspect_checkpoint(folder)
    assert "optimizer" not in found.missing
    roles = [t.role for t in lazy_tensors(found)]
    assert roles.count(Role.MOMENT) == 18
    assert roles.count(Role.PARAMETER) == 6
