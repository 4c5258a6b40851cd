"""Two real ranks resume sharded state from a real DCP checkpoint: steps are counted right, and loads are proven."""

from pathlib import Path

import pytest

from spike.actions.experiment.live_shards import shard_digests
from spike.domain.receipt import Receipt, compare_rebuild, load_receipt
from spike.lab.traces import read_traces
from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint
from tests.probe.conftest import Ran, Training
from tests.probe.test_window import TORCHRUN

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def checkpoint(training: Training) -> Path:
    assert training.run("fsdp_dcp.py", launcher=TORCHRUN).code == 0
    return training.directory / "dcp/step-3"


def _resumed(training: Training, name: str, *arguments: str) -> Ran:
    ran = training.run(
        "fsdp_dcp.py", "--resume", *arguments, launcher=TORCHRUN, name=name, first_step=3, fingerprint_steps=[3]
    )
    assert ran.code == 0, ran.err
    return ran


def _receipt(ran: Ran, checkpoint: Path) -> Receipt:
    traces, found = read_traces(ran.directory), inspect_checkpoint(checkpoint)
    receipt = load_receipt(traces, scan_checkpoint(found), shard_digests(traces, found, step=3))
    assert isinstance(receipt, Receipt), receipt
    return receipt


def test_the_update_that_allocates_moments_before_the_load_is_no_step(training: Training, checkpoint: Path) -> None:
    ran = _resumed(training, "counted")
    for rank in (0, 1):
        assert [line["step"] for line in ran.lines("step", rank)] == [4, 5, 6]
        assert not ran.lines("error", rank)


def test_every_shard_of_every_rank_is_proven_to_be_the_checkpoints_box(training: Training, checkpoint: Path) -> None:
    receipt = _receipt(_resumed(training, "proven"), checkpoint)
    assert receipt.is_clean
    # four parameters on two ranks, three moments each
    assert (receipt.num_parameters, receipt.num_moments) == (8, 24)


def test_a_shard_that_one_rank_loaded_wrong_is_named_with_rank_and_place(training: Training, checkpoint: Path) -> None:
    receipt = _receipt(_resumed(training, "damaged", "--damage"), checkpoint)
    assert [(m.rank, m.name) for m in receipt.parameters] == [(1, "2.weight")]
    assert "its shard at 3x0 is not what the checkpoint holds there" in receipt.parameters[0].why
    assert not receipt.moments


def test_a_rebuilt_state_of_shards_is_compared_box_by_box(training: Training, checkpoint: Path) -> None:
    ran = _resumed(training, "rebuilt", "--damage")
    traces, found = read_traces(ran.directory), inspect_checkpoint(checkpoint)
    rebuild = compare_rebuild(traces, scan_checkpoint(found), step=3, shards=shard_digests(traces, found, step=3))
    assert rebuild.parameters == ("2.weight",)  # type: ignore[union-attr]
    unknown = compare_rebuild(traces, scan_checkpoint(found), step=3)
    assert "no counterpart" in unknown.not_measured  # type: ignore[union-attr]
