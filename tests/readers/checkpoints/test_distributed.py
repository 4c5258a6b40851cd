"""Are distributed checkpoints put together from their slices, and is every way to damage one found?"""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.readers.checkpoints.made import digest, trained

from spike.domain.checkpoint import Integrity, Role
from spike.readers.checkpoints import checksums, find_checkpoints, inspect_checkpoint, lazy_tensors, scan_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def state(step=3):
    """A state dictionary as distributed trainers save it: moments by parameter name."""
    model, optimizer = trained(step)
    names = {id(p): n for n, p in model.named_parameters()}
    params = [p for g in optimizer.param_groups for p in g["params"]]
    return {
        "model": model.state_dict(),
        "optimizer": {
            "state": {names[id(p)]: optimizer.state[p] for p in params},
            "param_groups": [{"lr": 2e-3, "betas": (0.9, 0.95), "params": [names[id(p)] for p in params]}],
        },
        "train_state": {"step": torch.tensor(step), "ntokens": 1234},
        "dataloader": {"cursor": 7},
    }


def save(folder, step=3):
    made = state(step)
    dcp.save(made, checkpoint_id=str(folder))
    return made


def test_a_saved_state_dictionary_comes_back_bit_by_bit_with_names_and_places(tmp_path):
    made = save(tmp_path / "step-3")
    found = inspect_checkpoint(tmp_path / "step-3")
    assert (found.layout, found.step, found.integrity, found.reason) == ("dcp", 3, Integrity.COMPLETE, "")
    assert found.missing == ("scheduler", "rng")
    scalars = dict(found.scalars)
    assert scalars["optimizer.param_groups.0.lr"] == 2e-3
    assert scalars["optimizer.param_groups.0.betas.1"] == 0.95
    assert scalars["train_state.ntokens"] == 1234
    scan = scan_checkpoint(found)
    assert scan.unreadable == ()
    weights = {t.name: t.digest for t in scan.tensors if t.role is Role.PARAMETER}
    assert weights == {name: digest(tensor) for name, tensor in made["model"].items()}
    moments = {(t.name, t.key): t.digest for t in scan.tensors if t.role is Role.MOMENT}
    expected = made["optimizer"]["state"]
    assert moments == {(n, k): digest(v) for n, by in expected.items() for k, v in by.items()}
    order = made["optimizer"]["param_groups"][0]["params"]
    places = {t.name: t.index for t in lazy_tensors(found) if t.role is Role.MOMENT}
    assert places == {name: place for place, name in enumerate(order)}


def test_flat_keys_without_a_model_group_are_the_models(tmp_path):
    model, _ = trained(1)
    flat = dict(model.state_dict()) | {
        "optimizer.state.0.weight.exp_avg": torch.ones(2),
        "train_state.step": torch.tensor(9),
    }
    dcp.save(flat, checkpoint_id=str(tmp_path / "step-9"))
    found = inspect_checkpoint(tmp_path / "step-9")
    assert found.step == 9
    tensors = list(lazy_tensors(found))
    assert {t.name for t in tensors if t.role is Role.PARAMETER} == set(model.state_dict())
    assert [(t.name, t.key) for t in tensors if t.role is Role.MOMENT] == [("0.weight", "exp_avg")]
    assert [t.name for t in tensors if t.role is Role.OTHER] == ["train_state.step"]


def test_the_directory_is_found_whole_and_its_data_files_are_not_found_apart(tmp_path):
    for step in (3, 4):
        save(tmp_path / "checkpoint" / f"step-{step}", step)
    assert [(c.layout, c.step) for c in find_checkpoints(tmp_path)] == [("dcp", 3), ("dcp", 4)]


def test_stored_checksums_tell_generations_apart_without_reading_tensors(tmp_path):
    save(tmp_path / "a", 3)
    save(tmp_path / "b", 3)
    save(tmp_path / "c", 4)
    first, same, other = (checksums(inspect_checkpoint(tmp_path / name)) for name in "abc")
    weights = [key for key in first if key[0] == "parameter"]
    assert len(weights) == 6
    assert all(first[key] == same[key] != other[key] for key in weights)


# -- damage ---


def data_file(folder):
    return next(folder.glob("*.distcp"))


def test_a_save_without_its_index_is_torn(tmp_path):
    save(tmp_path / "step-3")
    (tmp_path / "step-3" / ".metadata").unlink()
    found = inspect_checkpoint(tmp_path / "step-3")
    assert (found.integrity, found.step) == (Integrity.TORN, 3)
    assert scan_checkpoint(found).unreadable


def test_a_missing_data_file_and_a_short_one_are_torn(tmp_path):
    save(tmp_path / "a")
    data = data_file(tmp_path / "a")
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    found = inspect_checkpoint(tmp_path / "a")
    assert found.integrity is Integrity.TORN
    assert data.name in found.reason
    data.unlink()
    assert inspect_checkpoint(tmp_path / "a").integrity is Integrity.TORN


def test_more_bytes_than_the_index_knows_mean_that_a_later_save_was_cut_off(tmp_path):
    save(tmp_path / "a")
    with data_file(tmp_path / "a").open("ab") as file:
        file.write(b"more")
    assert inspect_checkpoint(tmp_path / "a").integrity is Integrity.OVERWRITTEN


def test_new_bytes_under_an_old_index_are_called_overwritten(tmp_path):
    """What `dcp.save` leaves when it is killed in a directory that holds an older save."""
    save(tmp_path / "a", 3)
    index = (tmp_path / "a" / ".metadata").read_bytes()
    marker = (tmp_path / "a" / ".metadata").stat().st_mtime_ns
    save(tmp_path / "a", 4)
    (tmp_path / "a" / ".metadata").write_bytes(index)
    os.utime(tmp_path / "a" / ".metadata", ns=(marker, marker))
    later = marker + 60 * 10**9
    os.utime(data_file(tmp_path / "a"), ns=(later, later))
    found = inspect_checkpoint(tmp_path / "a")
    assert found.integrity is Integrity.OVERWRITTEN
    dcp.load(
        {"train_state": {"step": torch.tensor(0)}}, checkpoint_id=str(tmp_path / "a")
    )  # the control: torch loads it


def test_a_flipped_bit_in_a_slice_is_found_though_torch_loads_it(tmp_path):
    made = save(tmp_path / "a")
    data = data_file(tmp_path / "a")
    content = bytearray(data.read_bytes())
    content[content.index(made["model"]["0.weight"].numpy().tobytes()) + 9] ^= 2
    data.write_bytes(content)
    os.utime(data, ns=((tmp_path / "a" / ".metadata").stat().st_mtime_ns,) * 2)
    target = {"model": {"0.weight": torch.zeros(16, 8)}}
    dcp.load(target, checkpoint_id=str(tmp_path / "a"))
    assert not torch.equal(target["model"]["0.weight"], made["model"]["0.weight"])  # the control
    found = inspect_checkpoint(tmp_path / "a")
    assert found.is_whole, "sizes and times are right"
    assert any("CRC" in reason for _, reason in scan_checkpoint(found).unreadable)


def test_a_flipped_bit_in_an_object_is_found(tmp_path):
    save(tmp_path / "a")
    data = data_file(tmp_path / "a")
    content = bytearray(data.read_bytes())
    content[content.index(b"M\xd2\x04") + 1] ^= 1  # the number 1234 in the pickle of `ntokens`
    data.write_bytes(content)
    found = inspect_checkpoint(tmp_path / "a")
    assert not found.is_whole or scan_checkpoint(found).unreadable


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_hostile_index_is_never_run_and_never_called_whole(tmp_path):
    save(tmp_path / "a")
    marker = tmp_path / "was-run"
    honest = pickle.loads((tmp_path / "a" / ".metadata").read_bytes())
    honest.planner_data["x"] = Hostile(marker)
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(honest))
    found = inspect_checkpoint(tmp_path / "a")
    scan = scan_checkpoint(found)
    assert not marker.exists()
    assert found.integrity is Integrity.CORRUPT
    assert "posix.system" in found.reason
    assert scan.unreadable
    dcp.FileSystemReader(str(tmp_path / "a")).read_metadata()  # the control: torch runs it
    assert marker.exists()


@pytest.mark.parametrize(
    "name", ["torch.load", "torch.hub.load", "torch.distributed.checkpoint.format_utils.dcp_to_torch_save"]
)
def test_functions_of_torch_have_no_place_in_an_index(tmp_path, name):
    save(tmp_path / "a")
    module, _, function = name.rpartition(".")
    body = b"\x80\x04" + b"c" + module.encode() + b"\n" + function.encode() + b"\n)R."
    (tmp_path / "a" / ".metadata").write_bytes(body)
    found = inspect_checkpoint(tmp_path / "a")
    assert found.integrity is Integrity.CORRUPT
    assert name in found.reason


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a\0b"])
def test_an_index_that_points_outside_of_the_checkpoint_is_refused(tmp_path, path):
    save(tmp_path / "a")
    honest = pickle.loads((tmp_path / "a" / ".metadata").read_bytes())
    for info in honest.storage_data.values():
        info.relative_path = path
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(honest))
    found = inspect_checkpoint(tmp_path / "a")
    assert found.integrity is Integrity.CORRUPT
    assert "outside" in found.reason


def test_shards_that_leave_a_hole_are_refused(tmp_path):
    save(tmp_path / "a")
    honest = pickle.loads((tmp_path / "a" / ".metadata").read_bytes())
    honest.state_dict_metadata["model.0.weight"].size = torch.Size([32, 8])
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(honest))
    assert inspect_checkpoint(tmp_path / "a").integrity is Integrity.CORRUPT


# -- several ranks ---


@pytest.mark.process
def test_tensors_sharded_over_two_ranks_have_the_digests_of_the_whole_tensors(written):
    _, later = written("fsdp2")
    whole = torch.load(later.parents[1] / "whole-3.bin", weights_only=True)
    found = inspect_checkpoint(later)
    assert (found.step, found.integrity) == (3, Integrity.COMPLETE)
    assert len(list(later.glob("*.distcp"))) == 2
    scan = scan_checkpoint(found)
    assert scan.unreadable == ()
    weights = {t.name: t.digest for t in scan.tensors if t.role is Role.PARAMETER}
    assert weights == {name: digest(tensor) for name, tensor in whole.items()}
    loaded = {"optimizer": {"state": {"0.weight": {"exp_avg": torch.zeros(16, 8)}}}}
    dcp.load(loaded, checkpoint_id=str(later))
    moments = {(t.name, t.key): t.digest for t in scan.tensors if t.role is Role.MOMENT}
    assert moments["0.weight", "exp_avg"] == digest(loaded["optimizer"]["state"]["0.weight"]["exp_avg"])


@pytest.mark.process
def test_the_safetensors_writer_of_two_ranks_has_the_digests_of_the_whole_tensors(written):
    _, later = written("dcp-safetensors")
    whole = torch.load(later.parents[1] / "whole-3.bin", weights_only=True)
    found = inspect_checkpoint(later)
    assert (found.integrity, "how many ranks" in found.reason) == (Integrity.UNVERIFIABLE, True)
    assert {t.name: t.digest for t in scan_checkpoint(found).tensors} == {n: digest(t) for n, t in whole.items()}


def test_a_real_checkpoint_of_two_ranks_is_read(samples):
    found = inspect_checkpoint(samples / "dcp_fsdp2_2rank" / "step-3")
    assert (found.layout, found.step, found.num_tensors, found.integrity) == ("dcp", 3, 18, Integrity.COMPLETE)
    scan = scan_checkpoint(found)
    assert scan.unreadable == ()
    assert {t.shape for t in scan.tensors if t.name == "0.weight" and t.key != "step"} == {(32, 16)}


def test_shards_in_safetensors_are_put_together(samples, tmp_path):
    source = samples / "dcp_hf_safetensors" / "hf-3"
    found = inspect_checkpoint(source)
    shapes = {t.name: t.shape for t in lazy_tensors(found)}
    assert shapes == {"0.weight": (32, 16), "0.bias": (32,), "2.weight": (16, 32), "2.bias": (16,)}
    assert scan_checkpoint(found).unreadable == ()
    copy = Path(shutil.copytree(source, tmp_path / "hf-3"))
    sorted(copy.glob("*.safetensors"))[0].unlink()
    assert inspect_checkpoint(copy).integrity is Integrity.TORN
