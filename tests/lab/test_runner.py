"""Does a trial of a real training command bring back facts, and leave the run alone?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.domain.trial import Factor, Intervention
from spike.lab.guards.choice import Guard, choose_guard
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


@pytest.mark.parametrize("guard", ["overlay", "worktree+landlock"])
def test_a_checkpoint_whose_disk_is_gone_is_loaded_from_the_pin(
    guard: str, run: Run, request_for: Callable[..., TrialRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    request = request_for(run)
    gone = replace(request, spec=replace(request.spec, checkpoint="/no-such-disk/out/step-4.pt"))
    found = run_trial(gone)
    assert found.ended == "window-complete", found.stderr_tail
    assert found.traces[0].process.opened == (request.pinned,)


@pytest.mark.parametrize("guard", ["overlay", "worktree+landlock"])
def test_a_changed_checkpoint_outside_the_run_is_never_loaded(
    guard: str,
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    run = bare_run("import sys; print(open(sys.argv[1]).read())", launch="python3 train.py {checkpoint}")
    original, pinned = tmp_path / "elsewhere" / "ckpt", tmp_path / "pins" / "ckpt"
    for path, text in ((original, "changed since"), (pinned, "intact")):
        path.parent.mkdir()
        path.write_text(text)
    request = replace(request_for(run), pinned=str(pinned))
    found = run_trial(replace(request, spec=replace(request.spec, checkpoint=str(original))))
    assert found.stderr_tail == "intact"
    assert original.read_text() == "changed since"


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


def test_two_ranks_below_torchrun_finish_their_window_together(
    run: Run, request_for: Callable[..., TrialRequest]
) -> None:
    script = Path(run.directory) / "train.py"
    text = script.read_text().replace(
        "torch.manual_seed(7)",
        "import torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "torch.manual_seed(7)",
    )
    text = text.replace("for step in range", "model = DistributedDataParallel(model)\nfor step in range")
    text = text.replace("batch = data[step]", "batch = data[2 * step + rank]").replace("step % 4 == 0", "False")
    script.write_text(text)
    launch = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 train.py"
    run = replace(run, launch=f"{launch} --resume {{checkpoint}} --steps 30", devices=2)
    found = run_trial(request_for(run))
    assert found.ended == "window-complete", found.stderr_tail
    assert [trace.process.rank for trace in found.traces] == [0, 1]
    assert [[step.step for step in trace.steps] for trace in found.traces] == [[5, 6, 7], [5, 6, 7]]
    first, second = (trace.steps[0].micro_batches[0].batch for trace in found.traces)
    assert first != second
    assert json.loads((Path(found.directory) / "guard.json").read_text())["guard"] == found.guard


def test_a_command_that_ignores_the_checkpoint_has_opened_nothing_below_it(
    run: Run, request_for: Callable[..., TrialRequest]
) -> None:
    run = replace(run, launch=run.launch.split(" --resume")[0])
    found = run_trial(request_for(run))
    assert found.traces[0].process.opened == ()


OVERLAY_BELOW = """\
set -e
cd "$1"
mkdir lower upper work merged
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
mkdir merged/run
printf 'open("log.jsonl", "w").write("hello")' > merged/run/train.py
"$2" -c "
from spike.domain.run import Run
from spike.domain.trial import TrialSpec
from spike.lab.runner import TrialRequest, run_trial
run = Run(directory='$1/merged/run', launch='$2 train.py')
found = run_trial(TrialRequest(run, TrialSpec('T', '', '', 0, 1), '$1/merged/T', '', ()))
print(found.guard, found.exit_code, found.stderr_tail)
"
cat merged/T/metrics/log.jsonl merged/T/guard.json
ls merged/run
"""


def test_on_a_file_system_that_takes_no_overlay_writes_are_kept_in_memory(tmp_path: Path) -> None:
    if os.geteuid() != 0 or choose_guard() is not Guard.OVERLAY:
        pytest.skip("only root can mount the file system that this needs")
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", OVERLAY_BELOW, "-", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("overlay 0 \nhello"), done.stdout + done.stderr
    assert f"{tmp_path}/merged/run: writes are kept in memory" in done.stdout
    assert done.stdout.endswith("}\ntrain.py\n")
