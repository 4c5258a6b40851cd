"""Does the reader of single torch files say what torch put in, and refuse what torch never writes?"""

import os
import struct
import zipfile

import numpy as np
import pytest
import torch
from tests.readers.checkpoints.made import digest, nanogpt, trained
from torch.utils.serialization import config as serialization

from spike.domain.checkpoint import Integrity, Role
from spike.domain.measured import NotMeasured
from spike.readers.checkpoints import checksums, inspect_checkpoint, lazy_tensors, scan_checkpoint, write_donor
from spike.readers.checkpoints._numbers import decode

EVERY_TYPE = {
    "float64": torch.randn(7, dtype=torch.float64),
    "float32": torch.randn(3, 5),
    "float16": torch.randn(9).half(),
    "bfloat16": torch.randn(2, 3, 4).bfloat16(),
    "float8_e4m3fn": torch.randn(33).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.randn(33).to(torch.float8_e5m2),
    "float8_e4m3fnuz": torch.randn(33).to(torch.float8_e4m3fnuz),
    "float8_e5m2fnuz": torch.randn(33).to(torch.float8_e5m2fnuz),
    "int64": torch.arange(-4, 4),
    "int32": torch.arange(4, dtype=torch.int32),
    "int16": torch.arange(4, dtype=torch.int16),
    "int8": torch.arange(-2, 2, dtype=torch.int8),
    "uint8": torch.arange(4, dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "complex64": torch.randn(4, dtype=torch.complex64),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "part of a storage": torch.arange(10.0)[3:7],
    "expanded": torch.ones(1).expand(5, 3),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(3.0),
    "parameter": torch.nn.Parameter(torch.randn(4)),
}


def rewrite(path, change):
    """The archive again, with `change(name, data) -> (name, data, compression)` on each member."""
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in members:
            name, content, method = change(info.filename, data)
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)


def flip(path, wanted, byte):
    """Flip a bit of the first member that `wanted` accepts."""
    with zipfile.ZipFile(path) as archive:
        head = next(info for info in archive.infolist() if wanted(info)).header_offset
    data = bytearray(path.read_bytes())
    data[head + 30 + sum(struct.unpack_from("<HH", data, head + 26)) + byte] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "legacy"])
def test_every_type_shape_and_stride_has_the_digest_that_torch_gives_it(tmp_path, is_new):
    torch.save(EVERY_TYPE, tmp_path / "a.pt", _use_new_zipfile_serialization=is_new)
    scan = scan_checkpoint(inspect_checkpoint(tmp_path / "a.pt"))
    assert scan.unreadable == ()
    found = {t.name: t for t in scan.tensors}
    assert found.keys() == EVERY_TYPE.keys()
    for name, tensor in EVERY_TYPE.items():
        assert found[name].digest == digest(tensor), name
        assert found[name].shape == tuple(tensor.shape)
        assert found[name].dtype == str(tensor.dtype).removeprefix("torch.")


def test_values_of_every_float_type_decode_to_what_torch_says(tmp_path):
    torch.save(EVERY_TYPE, tmp_path / "a.pt")
    for lazy in lazy_tensors(inspect_checkpoint(tmp_path / "a.pt")):
        tensor = EVERY_TYPE[lazy.name].detach()
        if tensor.is_complex() or not tensor.is_floating_point():
            continue
        expected = tensor.to(torch.float64).numpy()
        assert np.array_equal(decode(lazy.read(), lazy.dtype).astype(np.float64), expected), lazy.name
        flat = np.concatenate([*lazy.blocks(), np.empty(0)])
        assert np.array_equal(flat, expected.reshape(-1)), lazy.name


def test_a_nanogpt_checkpoint_is_understood_in_all_its_parts(tmp_path):
    model, optimizer = nanogpt(tmp_path / "ckpt.pt", step=4)
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    assert (found.layout, found.step, found.integrity, found.reason) == ("torch-zip", 4, Integrity.COMPLETE, "")
    assert found.missing == ("scheduler", "rng", "data-cursor")
    config, scalars = dict(found.config), dict(found.scalars)
    assert config["config.learning_rate"] == "0.002"
    assert config["model_args.bias"] == "false"
    assert scalars["optimizer.param_groups.0.lr"] == 2e-3
    assert scalars["optimizer.param_groups.1.weight_decay"] == 0.0
    assert scalars["optimizer.param_groups.0.betas.1"] == 0.95
    assert scalars["optimizer.step"] == 4
    tensors = list(lazy_tensors(found))
    assert {t.name for t in tensors if t.role is Role.PARAMETER} == set(model.state_dict())
    order = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {(t.index, t.key): t for t in tensors if t.role is Role.MOMENT}
    assert len(moments) == 3 * len(order)
    for index, parameter in enumerate(order):
        stored = optimizer.state[parameter]["exp_avg_sq"]
        assert moments[index, "exp_avg_sq"].shape == tuple(parameter.shape)
        assert np.array_equal(decode(moments[index, "exp_avg_sq"].read(), "float32"), stored.numpy())


def test_moments_carry_the_names_of_their_parameters_where_the_optimizer_knows_them(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD([*model.named_parameters()], lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}, tmp_path / "a.pt")
    moments = [t for t in lazy_tensors(inspect_checkpoint(tmp_path / "a.pt")) if t.role is Role.MOMENT]
    assert [(t.name, t.index, t.key) for t in moments] == [
        ("weight", 0, "momentum_buffer"),
        ("bias", 1, "momentum_buffer"),
    ]


def test_two_optimizers_share_one_numbering_and_several_models_keep_their_names_apart(tmp_path):
    one, first = trained(1)
    two, second = trained(2, seed=1)
    state = {
        "model": one.state_dict(),
        "network": two.state_dict(),
        "optimizers": [first.state_dict(), second.state_dict()],
        "global_step": 2,
    }
    torch.save(state, tmp_path / "a.pt")
    tensors = list(lazy_tensors(inspect_checkpoint(tmp_path / "a.pt")))
    assert sorted({t.index for t in tensors if t.role is Role.MOMENT}) == list(range(12))
    assert {t.name.partition(".")[0] for t in tensors if t.role is Role.PARAMETER} == {"model", "network"}


@pytest.mark.parametrize(
    ("state", "step"),
    [
        ({"step": 7}, 7),
        ({"iteration": 8, "epoch": 1}, 8),
        ({"train_state": {"step": 9}}, 9),
        ({"global_step": 10, "step": 99}, 10),
        ({"epoch": 3}, None),
        ({"step": True}, None),
    ],
)
def test_the_step_comes_from_the_contents_and_an_epoch_is_none(tmp_path, state, step):
    torch.save({"model": {"w": torch.ones(2)}, **state}, tmp_path / "model.pt")
    found = inspect_checkpoint(tmp_path / "model.pt").step
    assert found == step if step is not None else isinstance(found, NotMeasured)


def test_recovery_state_that_is_there_is_not_reported_missing(tmp_path):
    model, optimizer = trained(1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": {"scale": 65536.0, "_growth_tracker": 3},
        "rng_state": torch.get_rng_state(),
        "data": {"cursor": 12},
        "step": 1,
    }
    torch.save(state, tmp_path / "a.pt")
    found = inspect_checkpoint(tmp_path / "a.pt")
    assert found.missing == ()
    scalars = dict(found.scalars)
    assert (scalars["scaler.scale"], scalars["scheduler.last_epoch"], scalars["scheduler.base_lrs.0"]) == (
        65536,
        0,
        2e-3,
    )


def test_a_scaler_is_missed_only_where_the_configuration_says_float16(tmp_path):
    for dtype in ("float16", "bfloat16", "float32"):
        torch.save({"model": {"w": torch.ones(2)}, "config": {"dtype": dtype}}, tmp_path / "a.pt")
        assert ("scaler" in inspect_checkpoint(tmp_path / "a.pt").missing) == (dtype == "float16")


def test_secrets_in_a_stored_configuration_are_withheld(tmp_path):
    config = {"hub_token": "hf_abc", "api_key": "k", "num_tokens": 5, "pad_token": "<pad>"}
    torch.save({"model": {"w": torch.ones(2)}, "config": config}, tmp_path / "a.pt")
    found = dict(inspect_checkpoint(tmp_path / "a.pt").config)
    assert found["config.hub_token"] == found["config.api_key"] == '"<withheld>"'
    assert (found["config.num_tokens"], found["config.pad_token"]) == ("5", '"<pad>"')


def test_a_whole_pickled_module_is_read_by_its_qualified_names(tmp_path):
    model, _ = trained(1)
    torch.save(model, tmp_path / "model.pt")
    tensors = list(lazy_tensors(inspect_checkpoint(tmp_path / "model.pt")))
    assert {t.name for t in tensors} == set(model.state_dict())


# -- damage ---------------------------------------------------------------------------------------------------


def test_a_truncated_file_is_torn_at_every_length(tmp_path):
    nanogpt(tmp_path / "whole.pt")
    data = (tmp_path / "whole.pt").read_bytes()
    for share in (0.0, 0.01, 0.5, 0.9, 0.999):
        (tmp_path / "ckpt.pt").write_bytes(data[: int(len(data) * share)])
        found = inspect_checkpoint(tmp_path / "ckpt.pt")
        assert found.integrity is Integrity.TORN, share
        assert "ckpt.pt" in found.reason
        assert scan_checkpoint(found).unreadable


def test_one_flipped_bit_of_a_weight_is_found_though_torch_loads_it(tmp_path):
    nanogpt(tmp_path / "ckpt.pt")
    flip(tmp_path / "ckpt.pt", lambda info: info.file_size == 8 * 16 * 4, 100)
    torch.load(tmp_path / "ckpt.pt", weights_only=True)  # the control: torch does not notice
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    assert found.is_whole, "the structure is sound"
    ((place, reason),) = scan_checkpoint(found).unreadable
    assert place.startswith("ckpt.pt!data/")
    assert "CRC" in reason


def test_a_flipped_bit_outside_the_tensors_is_found_too(tmp_path):
    nanogpt(tmp_path / "ckpt.pt", note=torch.arange(1000))
    flip(tmp_path / "ckpt.pt", lambda info: info.filename.endswith("serialization_id"), 3)
    assert scan_checkpoint(inspect_checkpoint(tmp_path / "ckpt.pt")).unreadable


def test_a_file_without_checksums_is_unverifiable_and_not_bad(tmp_path):
    serialization.save.compute_crc32 = False
    try:
        nanogpt(tmp_path / "ckpt.pt")
    finally:
        serialization.save.compute_crc32 = True
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    assert found.integrity is Integrity.UNVERIFIABLE
    assert "without CRCs" in found.reason
    assert found.step == 3
    assert scan_checkpoint(found).unreadable == ()


def test_a_legacy_file_is_read_and_called_unverifiable(tmp_path):
    model, optimizer = trained(2)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
    torch.save(state, tmp_path / "ckpt.pt", _use_new_zipfile_serialization=False)
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    assert (found.integrity, found.step) == (Integrity.UNVERIFIABLE, 2)
    scan = scan_checkpoint(found)
    assert {t.digest for t in scan.tensors if t.role is Role.PARAMETER} == {digest(t) for t in state["model"].values()}
    data = (tmp_path / "ckpt.pt").read_bytes()
    (tmp_path / "ckpt.pt").write_bytes(data[:-10])
    assert inspect_checkpoint(tmp_path / "ckpt.pt").integrity is Integrity.TORN


def test_a_compressed_member_is_refused(tmp_path):
    torch.save({"model": {"w": torch.zeros(1 << 20)}}, tmp_path / "bomb.pt")
    rewrite(tmp_path / "bomb.pt", lambda name, data: (name, data, zipfile.ZIP_DEFLATED))
    assert (tmp_path / "bomb.pt").stat().st_size < 1 << 16
    found = inspect_checkpoint(tmp_path / "bomb.pt")
    assert found.integrity is Integrity.CORRUPT
    assert "compressed" in found.reason


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_members_are_refused(tmp_path):
    nanogpt(tmp_path / "ckpt.pt")
    rewrite(tmp_path / "ckpt.pt", lambda name, data: (name.replace("data/1", "data/0"), data, zipfile.ZIP_STORED))
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    assert found.integrity is Integrity.CORRUPT
    assert "twice" in found.reason


def test_bytes_before_the_archive_are_refused(tmp_path):
    nanogpt(tmp_path / "ckpt.pt")
    data = (tmp_path / "ckpt.pt").read_bytes()
    (tmp_path / "ckpt.pt").write_bytes(b"PK\x03\x04 something else " + data)
    assert inspect_checkpoint(tmp_path / "ckpt.pt").integrity is Integrity.CORRUPT


def test_a_missing_storage_is_torn_and_a_storage_of_another_size_is_corrupt(tmp_path):
    nanogpt(tmp_path / "a.pt")
    rewrite(tmp_path / "a.pt", lambda n, d: (n.replace("data/2", "data/gone"), d, zipfile.ZIP_STORED))
    assert inspect_checkpoint(tmp_path / "a.pt").integrity is Integrity.TORN
    nanogpt(tmp_path / "b.pt")
    rewrite(tmp_path / "b.pt", lambda n, d: (n, d[:-4] if n.endswith("data/2") else d, zipfile.ZIP_STORED))
    assert inspect_checkpoint(tmp_path / "b.pt").integrity is Integrity.CORRUPT


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_hostile_file_is_never_run_and_never_called_whole(tmp_path):
    marker = tmp_path / "was-run"
    torch.save({"model": {"w": torch.ones(2)}, "step": 3, "x": Hostile(marker)}, tmp_path / "ckpt.pt")
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    scan = scan_checkpoint(found)
    assert not marker.exists()
    assert found.integrity is Integrity.CORRUPT
    assert "posix.system" in found.reason
    assert scan.unreadable
    assert checksums(found) == {}
    torch.load(tmp_path / "ckpt.pt", weights_only=False)  # the control
    assert marker.exists()


def test_classes_of_the_trainer_are_mentioned_since_a_loader_would_import_them(tmp_path):
    torch.save({"model": {"w": torch.ones(2)}, "x": Stranger()}, tmp_path / "ckpt.pt")
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    assert found.is_whole
    assert "Stranger" in found.reason


class Stranger:
    pass


def test_a_tensor_that_reaches_outside_its_storage_is_refused(tmp_path):
    torch.save({"w": torch.arange(10.0)}, tmp_path / "ckpt.pt")
    # The pickled shape (BININT1 10, TUPLE1) becomes 200.
    rewrite(tmp_path / "ckpt.pt", lambda n, d: (n, d.replace(b"K\x00K\n\x85", b"K\x00K\xc8\x85"), zipfile.ZIP_STORED))
    found = inspect_checkpoint(tmp_path / "ckpt.pt")
    assert found.integrity is Integrity.CORRUPT


# -- donors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parameters", "moments"), [(True, False), (False, True), (True, True)])
def test_a_donor_holds_the_tensors_bit_by_bit_under_names_and_positions(tmp_path, parameters, moments):
    model, optimizer = nanogpt(tmp_path / "ckpt.pt")
    write_donor(inspect_checkpoint(tmp_path / "ckpt.pt"), tmp_path / "d.pt", parameters=parameters, moments=moments)
    donor = torch.load(tmp_path / "d.pt", weights_only=True)
    assert donor["schema"] == "spike.donor/1"
    assert donor["parameters"].keys() == (set(model.state_dict()) if parameters else set())
    for name, tensor in donor["parameters"].items():
        assert torch.equal(tensor, model.state_dict()[name])
    order = [p for group in optimizer.param_groups for p in group["params"]]
    assert sorted(donor["moments"]) == (list(range(len(order))) if moments else [])
    for index, state in donor["moments"].items():
        assert all(
            torch.equal(state[key], optimizer.state[order[index]][key]) for key in ("exp_avg", "exp_avg_sq", "step")
        )


def test_checksums_tell_equal_tensors_without_reading_them(tmp_path):
    model, _ = nanogpt(tmp_path / "a.pt", step=3)
    nanogpt(tmp_path / "b.pt", step=3)
    nanogpt(tmp_path / "c.pt", step=4)
    first, same, other = (checksums(inspect_checkpoint(tmp_path / f"{n}.pt")) for n in "abc")
    assert first == same
    assert len(first) == len(model.state_dict()) + 3 * 6 + 1
    weights = [key for key in first if key[0] == "parameter"]
    assert all(first[key] != other[key] for key in weights)
