"""Does a trial end when its window does? Exit code 0, every line on disk, whatever the script tries."""

from __future__ import annotations

import sys
import time

import pytest
import torch

from .conftest import Ran, Training
from .test_recording import digest, same

pytestmark = pytest.mark.process

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def ddp(training: Training) -> dict[str, Ran]:
    """Two ranks under torchrun with DataLoader workers: bare, recorded, and stopped after step 3."""
    return {
        "bare": training.run("ddp.py", "--out", "ddp-bare", launcher=TORCHRUN),
        "recorded": training.run(
            "ddp.py", "--out", "ddp-recorded", launcher=TORCHRUN, name="recorded", fingerprint_steps=[0, 6],
            capture_steps=[4],
        ),
        "stopped": training.run(
            "ddp.py", "--out", "ddp-stopped", "--steps", "500", launcher=TORCHRUN, name="stopped", stop_after=3
        ),
    }  # fmt: skip


def test_two_ranks_train_bit_identically_with_and_without_the_probe(training: Training, ddp: dict[str, Ran]) -> None:
    assert ddp["bare"].code == ddp["recorded"].code == 0, ddp["recorded"].err
    for rank in (0, 1):
        bare, recorded = (
            torch.load(training.directory / f"ddp-{name}" / f"rank{rank}.pt", weights_only=True)
            for name in ("bare", "recorded")
        )
        assert same(bare, recorded)


def test_only_the_ranks_leave_a_trace(ddp: dict[str, Ran]) -> None:
    ran = ddp["recorded"]
    files = sorted(path.name for path in (ran.directory / "trace").iterdir())
    # Neither torchrun's agent nor the two DataLoader workers have one.
    assert files == ["rank00000.jsonl", "rank00001.jsonl"]
    for rank in (0, 1):
        assert ran.lines("error", rank) == []
        (start,) = ran.lines("start", rank)
        assert (start["rank"], start["world"]) == (rank, 2)
        assert [len(step["micro"]) for step in ran.lines("step", rank)] == [2] * 6


def test_ranks_see_their_own_batches_and_the_same_parameters(ddp: dict[str, Ran]) -> None:
    ran = ddp["recorded"]
    for step in range(1, 7):
        mine, theirs = ran.step(step, 0), ran.step(step, 1)
        assert {m["batch"] for m in mine["micro"]}.isdisjoint(m["batch"] for m in theirs["micro"])
        assert mine["grad_norm"] == theirs["grad_norm"]
        assert mine["clip"] is None
        assert [m["targets"] for m in mine["micro"]] == [4, 4]
    for step in (0, 6):
        parameters = ran.fingerprint(step, "parameter", 0)
        assert set(parameters) == {("0.weight", ""), ("0.bias", ""), ("3.weight", ""), ("3.bias", "")}
        assert parameters == ran.fingerprint(step, "parameter", 1)
    assert ran.fingerprint(6, "moment", 0) == ran.fingerprint(6, "moment", 1) != {}


def test_every_rank_ends_at_the_same_step_and_torchrun_succeeds(ddp: dict[str, Ran]) -> None:
    ran = ddp["stopped"]
    assert ran.code == 0, ran.err
    for rank in (0, 1):
        assert [step["step"] for step in ran.lines("step", rank)] == [1, 2, 3]
        assert ran.lines("end", rank) == [{"t": "end", "reason": "window-complete", "steps": 3}]
        assert ran.step(3, rank)["micro"] == ddp["recorded"].step(3, rank)["micro"]


def test_each_rank_gets_its_own_donor(training: Training, ddp: dict[str, Ran]) -> None:
    saved = ddp["recorded"]
    donors = [
        f"2:{line['micro']}:{rank}:{saved.directory / line['path']}"
        for rank in (0, 1)
        for line in saved.lines("batch", rank)
    ]
    change = {"name": "control-batch", "steps": [2], "parameters": {"donors": donors}}
    ran = training.run(
        "ddp.py", "--out", "ddp-control", launcher=TORCHRUN, name="control", stop_after=2, intervention=change
    )
    assert ran.code == 0, ran.err
    for rank in (0, 1):
        assert [line["took_effect"] for line in ran.lines("effect", rank)] == [True, True]
        assert [m["batch"] for m in ran.step(2, rank)["micro"]] == [m["batch"] for m in saved.step(4, rank)["micro"]]


def test_what_the_script_wrote_and_did_not_flush_is_on_disk(training: Training) -> None:
    ran = training.run("nano.py", "--steps", "50", "--out", "nano", name="nano", stop_after=3)
    assert ran.code == 0, ran.err
    assert len((training.directory / "nano" / "log.jsonl").read_text().splitlines()) == 3
    # The step is whole: its checkpoint and its line were written before the next one began.
    assert (training.directory / "nano" / "step-3.pt").exists()
    assert not (training.directory / "nano" / "step-4.pt").exists()
    assert ran.lines("end")[0]["reason"] == "window-complete"


def test_a_script_that_ends_with_the_window_completes_it(training: Training) -> None:
    ran = training.run("nano.py", "--steps", "2", "--out", "exact", name="exact", stop_after=2)
    assert ran.lines("end") == [{"t": "end", "reason": "window-complete", "steps": 2}]


def test_a_script_that_swallows_the_exit_is_ended_at_its_next_backward(training: Training) -> None:
    log = training.directory / "swallowed.log"
    ran = training.run("loops.py", "swallowed", str(log), name="swallowed", stop_after=4)
    assert ran.code == 0, ran.err
    assert ran.rows() == [{"caught": "SystemExit"}]
    # Steps 1 to 4, the one that was refused, and the one that ended the process.
    assert log.read_text().split() == ["1", "2", "3", "4", "5", "6"]
    assert [step["step"] for step in ran.lines("step")] == [1, 2, 3, 4]


@pytest.mark.long
def test_a_process_that_cannot_exit_is_ended_after_the_grace_period(training: Training) -> None:
    begun = time.monotonic()
    ran = training.run("loops.py", "stuck", name="stuck", stop_after=2)
    assert ran.code == 0, ran.err
    assert time.monotonic() - begun > 20
    assert ran.lines("end") == [{"t": "end", "reason": "window-complete", "steps": 2}]


def test_exit_handlers_of_the_script_run_before_the_process_is_ended(training: Training) -> None:
    ran = training.run("loops.py", "last-words", name="words", stop_after=2)
    assert ran.code == 0, ran.err
    assert ran.rows()[-1] == {"words": "last"}
    assert ran.lines("end")[0]["reason"] == "window-complete"


def test_a_script_that_crashes_keeps_its_exit_code_and_its_steps(training: Training) -> None:
    text = (training.script("loops.py")).read_text().replace("LOOPS[kind]()", "LOOPS[kind]()\nraise RuntimeError('no')")
    ran = training.run(training.write("crash.py", text), "two-optimizers", name="crash", stop_after=9)
    assert ran.code == 1
    assert "RuntimeError: no" in ran.err
    assert ran.lines("end") == [{"t": "end", "reason": "exited", "steps": 3}]


def test_sharded_parameters_are_digested_shard_by_shard_and_forced_without_a_collective(training: Training) -> None:
    bare = training.run("fsdp.py", "--out", "fsdp-bare", launcher=TORCHRUN)
    if "fully_shard" in bare.err:
        pytest.skip("this torch does not shard on the CPU")
    assert bare.code == 0, bare.err
    weight = torch.arange(16 * 12, dtype=torch.float32).reshape(16, 12) / 1000
    donor = {"0.weight": weight, "0.bias": torch.ones(16), "2.weight": torch.ones(6, 16), "2.bias": torch.ones(6)}
    path = training.directory / "fsdp-donor.pt"
    torch.save({"schema": "spike.donor/1", "parameters": donor, "moments": {}}, path)
    change = {"name": "donor-parameters", "steps": [], "parameters": {"donor": str(path)}}
    plain = training.run("fsdp.py", "--out", "fsdp", launcher=TORCHRUN, name="fsdp", fingerprint_steps=[4])
    forced = training.run(
        "fsdp.py", "--out", "fsdp-forced", launcher=TORCHRUN, name="fsdp-forced", fingerprint_steps=[0],
        intervention=change, stop_after=2,
    )  # fmt: skip
    assert plain.code == forced.code == 0, (plain.err, forced.err)
    for rank in (0, 1):
        paths = (training.directory / name / f"rank{rank}.pt" for name in ("fsdp-bare", "fsdp"))
        kept, probed = (torch.load(path, weights_only=True) for path in paths)
        assert same(kept, probed)
        live = plain.fingerprint(4, "parameter", rank)
        assert live == {(name, ""): digest(shard) for name, shard in probed["shards"].items()}
        assert [step["grad_norm"] for step in plain.lines("step", rank)] == pytest.approx(probed["norms"], rel=1e-6)
        assert [line["took_effect"] for line in forced.lines("effect", rank)] == [True]
        rows = slice(8 * rank, 8 * rank + 8)
        assert forced.fingerprint(0, "parameter", rank)["0.weight", ""] == digest(weight[rows])
        assert plain.lines("error", rank) == forced.lines("error", rank) == []
