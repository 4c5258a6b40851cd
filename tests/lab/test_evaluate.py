"""Are the held-out numbers those of the trial's own start and end, measured without touching the run?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spike.domain.measured import NotMeasured
from spike.domain.run import Run
from spike.lab.evaluate import newest_checkpoint
from spike.lab.guards.choice import Guard
from spike.lab.guards.entry import Entry
from spike.lab.holdout import read_holdout
from spike.lab.runner import TrialRequest, run_trial
from spike.lab.tree_state import tree_state
from spike.lab.view import View

EVALUATION = """\
import json, sys, torch
state = torch.load(sys.argv[1], weights_only=True)
open("evaluated.txt", "a").write("x")
print("evaluated", sys.argv[1])
print("loss", state["step"] + 0.5)
"""


@pytest.mark.process
@pytest.mark.parametrize("guard", [Guard.OVERLAY, Guard.LANDLOCK])
def test_a_gate_trial_measures_before_and_after(
    guard: Guard, run: Run, request_for: Callable[..., TrialRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    directory = Path(run.directory)
    (directory / "eval.py").write_text(EVALUATION)
    for later in ("step-8.pt", "step-12.pt"):
        (directory / "out" / later).unlink()
    run = replace(run, checkpoints="out/step-{step}.pt", holdout=run.launch.split()[0] + " eval.py {checkpoint}")
    request = request_for(run)
    request = replace(request, spec=replace(request.spec, role="gate", stop_after=9))
    before = tree_state(directory)
    found = run_trial(request)
    assert found.ended == "window-complete", found.stderr_tail
    assert read_holdout(Path(found.directory)) == (4.5, 8.5)
    assert tree_state(directory) == before
    assert not (Path(found.directory) / "view").exists()


@pytest.mark.process
def test_an_evaluation_that_fails_says_so_and_no_number(run: Run, request_for: Callable[..., TrialRequest]) -> None:
    run = replace(run, checkpoints="out/step-{step}.pt", holdout="python3 -c 'import sys; sys.exit(\"no such split\")'")
    request = request_for(run)
    found = run_trial(replace(request, spec=replace(request.spec, role="gate")))
    before, after = read_holdout(Path(found.directory))
    assert before == NotMeasured("the holdout command ended with exit 1; it last said: no such split")
    assert isinstance(after, NotMeasured)
    assert json.loads((Path(found.directory) / "holdout.json").read_text())["schema"] == "spike.holdout/1"


def _view(tmp_path: Path, root: str) -> View:
    (tmp_path / "a" / "upper").mkdir(parents=True)
    (tmp_path / "a" / "root").write_text(root)
    return View(Guard.OVERLAY, Entry("overlay", 0, -1, [], "/", {}), tmp_path)


def test_the_newest_checkpoint_is_the_one_with_the_highest_step(tmp_path: Path) -> None:
    view = _view(tmp_path, "/data")
    for name in ("step-0009", "step-0010", "step-x", "other-0011"):
        (tmp_path / "a" / "upper" / "run" / "out" / name).mkdir(parents=True)
    run = Run(directory="/data/run", checkpoints="out/step-{step}")
    assert newest_checkpoint(view, run) == ("/data/run/out/step-0010", 10)


def test_a_step_in_the_middle_of_the_path_needs_the_whole_path(tmp_path: Path) -> None:
    view = _view(tmp_path, "/data/run")
    out = tmp_path / "a" / "upper" / "out"
    (out / "7").mkdir(parents=True)
    (out / "6").mkdir()
    (out / "6" / "model.pt").write_text("x")
    assert newest_checkpoint(view, Run(directory="/data/run", checkpoints="out/{step}/model.pt")) == (
        "/data/run/out/6/model.pt",
        6,
    )


def test_without_a_pattern_or_a_checkpoint_nothing_is_measured(tmp_path: Path) -> None:
    view = _view(tmp_path, "/data/run")
    for pattern, reason in (("", "no `checkpoints:` pattern"), ("out/{step}", "wrote no checkpoint")):
        found = newest_checkpoint(view, Run(directory="/data/run", checkpoints=pattern))
        assert isinstance(found, NotMeasured)
        assert reason in found.not_measured
