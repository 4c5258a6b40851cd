"""Which checkpoint goes next, and which would be loaded: each stack's rule on directories as that stack leaves them."""

import argparse
import json
import os
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.readers.checkpoints import stacks

from spike.domain.rotation import beyond, inferred_keep
from spike.readers.checkpoints import find_checkpoints, next_deleted, readers, resumed_from

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def only(found):
    (one,) = found
    return one


def going(root):
    """(names of what goes next, the whole answer)."""
    found = only(next_deleted(find_checkpoints(root)))
    return [os.path.basename(path) for path in found.paths], found


# -- the pure rules --


@given(st.lists(st.integers(0, 50), unique=True, max_size=12), st.integers(1, 12), st.data())
def test_as_many_go_as_are_too_many_and_no_protected_one(ages, keep, data):
    oldest_first = [str(age) for age in sorted(ages)]
    protected = set(data.draw(st.lists(st.sampled_from(oldest_first), max_size=3))) if oldest_first else set()
    gone = beyond(oldest_first, keep, protected)
    assert not set(gone) & protected
    assert len(oldest_first) - len(gone) == min(len(oldest_first), max(keep, len(protected)))
    assert list(gone) == [path for path in oldest_first if path not in protected][: len(gone)]


@pytest.mark.parametrize(
    ("numbers", "first", "keep"),
    [
        ([7, 8, 9], 0, 3),
        ([0, 1, 2], 0, None),
        ([7, 9], 0, None),
        ([], 0, None),
        ([300, 400, 500], None, 3),
        ([100, 200], None, None),
        ([300, 400], None, None),
        ([250, 350], None, None),
        ([300, 400, 700], None, None),
        ([300], None, None),
    ],
)
def test_a_limit_is_inferred_only_from_a_regular_rest_whose_beginning_is_gone(numbers, first, keep):
    assert inferred_keep(numbers, first) == keep


# -- the stacks --


@pytest.fixture
def trainer(samples, tmp_path):
    """Three Trainer checkpoints an hour apart."""
    for number, step in enumerate((3, 30, 300)):
        folder = tmp_path / f"checkpoint-{step}"
        shutil.copytree(samples / "hf_trainer" / "checkpoint-3", folder)
        os.utime(folder, (1_700_000_000 + 3600 * number,) * 2)
    return tmp_path


def limit(root, number, best=None):
    for folder in root.glob("checkpoint-*"):
        times = folder.stat()
        torch.save(argparse.Namespace(save_total_limit=number), folder / "training_args.bin")
        state = json.loads((folder / "trainer_state.json").read_text())
        (folder / "trainer_state.json").write_text(json.dumps({**state, "best_model_checkpoint": best}))
        os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_trainer_without_a_limit_keeps_all_and_without_its_arguments_nobody_knows(trainer):
    limit(trainer, None)
    assert going(trainer)[0] == []
    assert "keeps all" in going(trainer)[1].rule
    for folder in trainer.glob("checkpoint-*"):
        (folder / "training_args.bin").unlink()
    names, found = going(trainer)
    assert names == []
    assert "training_args.bin" in found.unknown


def test_a_trainer_deletes_by_time_and_spares_the_best(trainer):
    limit(trainer, 3)
    assert going(trainer)[0] == ["checkpoint-3"]
    limit(trainer, 2, best="out/checkpoint-3")
    assert going(trainer)[0] == ["checkpoint-30", "checkpoint-300"]
    os.utime(trainer / "checkpoint-3", (1_700_100_000,) * 2)  # touched: by time the youngest now
    limit(trainer, 3)
    assert going(trainer)[0] == ["checkpoint-30"]


def test_a_trainer_whose_times_say_nothing_deletes_by_number(trainer):
    limit(trainer, 3)
    for number, step in enumerate((300, 30, 3)):
        os.utime(trainer / f"checkpoint-{step}", ns=(1_700_000_000 * 10**9 + number,) * 2)
    assert going(trainer)[0] == ["checkpoint-3"]


def test_an_unfinished_trainer_directory_counts(trainer):
    limit(trainer, 4)
    assert going(trainer)[0] == []
    (trainer / "checkpoint-400").mkdir()
    assert going(trainer)[0] == ["checkpoint-3"]


def test_accelerate_deletes_before_it_saves_and_its_limit_is_read_off_the_gap(samples, tmp_path):
    for number in (4, 5, 6):
        shutil.copytree(samples / "accelerate" / "checkpoint_2", tmp_path / f"checkpoint_{number}")
    names, found = going(tmp_path)
    assert names == ["checkpoint_4"]
    assert "BEFORE the next save" in found.rule
    assert "total_limit is 3" in found.assumes
    shutil.copytree(samples / "accelerate" / "checkpoint_2", tmp_path / "checkpoint_0")
    assert "set and reached" in going(tmp_path)[1].assumes


def test_torchtitan_deletes_by_name_and_counts_unfinished_directories(tmp_path):
    stacks.torchtitan(tmp_path)
    for step in (1, *range(4, 10)):
        (tmp_path / "checkpoint" / f"step-{step}").mkdir()
    names, found = going(tmp_path)
    assert names == []
    assert "default of 10" in found.assumes
    (tmp_path / "checkpoint" / "step-10").mkdir()
    assert going(tmp_path)[0] == ["step-1"]
    shutil.rmtree(tmp_path / "checkpoint" / "step-1")
    names, found = going(tmp_path)
    assert names == ["step-2"]
    assert "keep_latest_k is 9" in found.assumes


def test_megatron_deletes_the_tracked_one_unless_it_is_a_multiple_or_a_link(tmp_path):
    _, later = stacks.megatron(tmp_path)
    assert "keeps all" in going(tmp_path)[1].rule
    for file in later.rglob("*.pt"):
        state = torch.load(file, weights_only=False)
        state["args"].save_retain_interval = 2
        torch.save(state, file)
    assert going(tmp_path)[0] == ["iter_0000003"]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
    assert going(tmp_path)[0] == []


def test_olmo_deletes_what_calls_itself_ephemeral(tmp_path):
    earlier, _ = stacks.olmo_core(tmp_path)
    assert going(tmp_path)[0] == []
    (earlier / ".metadata.json").write_text(json.dumps({"ephemeral": True}))
    assert going(tmp_path)[0] == ["step2"]


def test_nanogpt_writes_over_its_only_file(tmp_path):
    stacks.nanogpt(tmp_path)
    shutil.rmtree(tmp_path / "out-2")
    names, found = going(tmp_path)
    assert (names, found.fate, found.assumes) == (["ckpt.pt"], "overwritten", "")


def test_numbered_files_of_a_script_and_bare_weights_are_not_known(tmp_path):
    torch.save({"model": {"w": torch.ones(3)}, "step": 5}, tmp_path / "step-5.pt")
    names, found = going(tmp_path)
    assert names == []
    assert "script decides" in found.rule
    assert found.unknown


def test_every_layout_has_a_rule_or_says_that_none_is_known():
    without = {reader.layout for reader in readers() if not hasattr(reader, "rotation")}
    assert without == {"safetensors", "torch-parts"}


# -- which one would be loaded --


@pytest.mark.parametrize(
    ("make", "marker"),
    [(stacks.olmo_core, ".metadata.json"), (stacks.torchtitan, ".metadata"), (stacks.megatron, ""), (None, "")],
    ids=["olmo-core", "torchtitan", "megatron", "hf-trainer"],
)
def test_what_the_stack_loads_and_the_newest_whole_one_are_told_apart(make, marker, tmp_path, samples):
    if make is None:
        for step in (2, 3):
            shutil.copytree(samples / "hf_trainer" / "checkpoint-3", tmp_path / f"checkpoint-{step}")
        earlier, later = tmp_path / "checkpoint-2", tmp_path / "checkpoint-3"
    else:
        earlier, later = make(tmp_path)
    found = only(resumed_from(find_checkpoints(tmp_path)))
    assert (found.path, found.newest_whole, found.differs) == (str(later), str(later), False)
    torn = next(p for p in sorted(later.rglob("*")) if p.suffix in (".distcp", ".pt"))
    torn.write_bytes(torn.read_bytes()[:100])
    found = only(resumed_from(find_checkpoints(tmp_path)))
    assert (found.path, found.newest_whole, found.differs) == (str(later), str(earlier), True)
    if marker:
        (later / marker).unlink()
        assert only(resumed_from(find_checkpoints(tmp_path))).path == str(earlier)
