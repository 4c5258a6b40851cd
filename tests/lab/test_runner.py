"""Does a trial of a real training command bring back facts, and leave the run alone?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.domain.trial import Factor, Intervention
from spike.lab.runner import TrialRequest, run_trial
from spike.lab.tree_state import tree_state

pytestmark = pytest.mark.process


@pytest.mark.parametrize("guard", ["overlay", "worktree+landlock", "audit-hook"])
def test_a_replay_repeats_the_logged_losses_and_changes_nothing(
    guard: str, run: Run, request_for: Callable[..., TrialRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    logged = [json.loads(line) for line in (Path(run.directory) / "log.jsonl").read_text().splitlines()]
    before = tree_state(Path(run.directory))
    heard: list[tuple[int, int]] = []
    found = run_trial(request_for(run), on_step=lambda done, total: heard.append((done, total)))
    assert (found.ended, found.guard) == ("window-complete", guard), found.stderr_tail
    assert tree_state(Path(run.directory)) == before
    (trace,) = found.traces
    assert [step.step for step in trace.steps] == [5, 6, 7]
    assert [step.loss for step in trace.steps] == [row["loss"] for row in logged if row["step"] in (5, 6, 7)]
    assert not trace.errors
    assert trace.process.opened == (found.spec.checkpoint,) or guard != "overlay"
    assert heard[-1] == (3, 3)
    own = [json.loads(line) for line in (Path(found.metrics_dir) / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in own][:2] == [5, 6]
    assert [row["step"] for row in own if row["step"] <= 4] == []
    assert "step 5" in (Path(found.metrics_dir) / "stdout.log").read_text()


def test_a_checkpoint_that_is_gone_is_seen_at_its_original_path(
    run: Run, request_for: Callable[..., TrialRequest]
) -> None:
    request = request_for(run)
    original = Path(request.spec.checkpoint)
    original.unlink()
    found = run_trial(request)
    assert found.ended == "window-complete", found.stderr_tail
    assert found.traces[0].process.opened == (str(original),)
    assert not original.exists()


def test_a_checkpoint_overwritten_in_place_is_replaced_by_the_pinned_bytes(
    run: Run, request_for: Callable[..., TrialRequest]
) -> None:
    request = request_for(run)
    later = (Path(run.directory) / "out" / "step-8.pt").read_bytes()
    Path(request.spec.checkpoint).write_bytes(later)
    found = run_trial(request)
    assert [step.step for step in found.traces[0].steps] == [5, 6, 7]
    logged = [json.loads(line) for line in (Path(run.directory) / "log.jsonl").read_text().splitlines()]
    assert found.traces[0].steps[0].loss == logged[4]["loss"]
    assert Path(request.spec.checkpoint).read_bytes() == later


def test_a_knob_changes_the_command_and_spares_the_probe(run: Run, request_for: Callable[..., TrialRequest]) -> None:
    run = replace(run, knobs=(("learning-rate", "--lr {value}"),))
    change = Intervention("learning-rate", Factor.LEARNING_RATE, parameters=(("lr", 0.001),))
    found = run_trial(request_for(run, "T002-learning-rate", change))
    assert {step.lr for step in found.traces[0].steps} == {(0.001,)}
    directory = Path(found.directory)
    assert json.loads((directory / "plan.json").read_text())["intervention"] is None
    assert json.loads((directory / "knob.json").read_text())["arguments"] == "--lr 0.001"


def test_no_launch_command_is_said_before_anything_is_written(
    run: Run, request_for: Callable[..., TrialRequest]
) -> None:
    request = request_for(replace(run, launch=""))
    with pytest.raises(SpikeError, match="names no launch command"):
        run_trial(request)
    assert not Path(request.directory).exists()
