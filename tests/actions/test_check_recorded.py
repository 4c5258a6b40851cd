"""Are the ranks of a run that the probe recorded held against each other, by the command alone?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spike.actions.checks.recorded_traces import of_one_recording, recorded_traces
from spike.cli.app import app
from spike.domain.run import Run
from spike.lab.staging import probe_environment, stage_probe

pytestmark = pytest.mark.process

SCRIPT = """
import json, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, odd = int(os.environ["RANK"]), os.environ.get("ODD_RANK")
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=rank, world_size=2)
torch.manual_seed(11)
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 9):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step * 2 + rank))
    loss = nn.functional.mse_loss(model(x), x[:, :2])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 5 and odd == str(rank):
        with torch.no_grad():
            model.module[2].weight[1, 3] += 1.0  # a bit of this rank's memory flips
dist.barrier()  # a rank that leaves first can abort the other
dist.destroy_process_group()
"""


def record(run: Path, stage: Path, *, odd_rank: str = "") -> None:
    """Two gloo ranks under the probe, recording; parameters are digested every second step."""
    (run / "train.py").write_text(SCRIPT)
    plan = {"schema": "spike.plan/1", "trial": "record", "out": str(run / "recorded"), "first_step": 0}
    plan_file = run.parent / "plan.json"
    plan_file.write_text(json.dumps({**plan, "fingerprint_steps": [2, 4, 6, 8]}))
    ranks = []
    for rank in ("0", "1"):
        base = {**os.environ, "RANK": rank, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "ODD_RANK": odd_rank}
        environment = probe_environment(stage, plan_file, base)
        ranks.append(subprocess.Popen([sys.executable, "train.py"], cwd=run, env=environment))
    assert [process.wait(120) for process in ranks] == [0, 0]
    (run / "meeting").unlink(missing_ok=True)
    (run / "spike.yaml").write_text("launch: torchrun --nproc-per-node 2 train.py\n")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run whose rank 1 parted from rank 0 between the digests of steps 4 and 6."""
    place = tmp_path_factory.mktemp("recorded")
    (place / "run").mkdir()
    record(place / "run", stage_probe(place / "stage"), odd_rank="1")
    return place / "run"


def check(*words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["check", *words, "--json"])
    found = json.loads(done.stdout)
    return done.exit_code, next(fact for fact in found["facts"] if fact["name"] == "ranks.agree")


def test_the_first_step_rank_and_tensor_of_a_recorded_run_that_differ_are_named(recorded: Path) -> None:
    code, fact = check("--run", str(recorded))
    assert (fact["value"], fact["step"]) == ("no", 6)
    assert (fact["where"]["rank"], fact["where"]["tensor"]) == (1, "2.weight")
    assert fact["evidence"] == ["trace"]
    assert code == 1


def test_a_case_holds_the_traces_and_answers_when_the_run_is_gone(recorded: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded, tmp_path / "run"))
    frozen = CliRunner().invoke(app, ["freeze", "--run", str(run), "--step", "6", "--json"])
    assert frozen.exit_code == 0, frozen.output
    case = json.loads(frozen.stdout)["case"]
    shutil.rmtree(run)
    code, fact = check("--case", case)
    assert (code, fact["value"], fact["step"], fact["where"]["rank"]) == (1, "no", 6, 1)


def test_equal_ranks_agree_and_a_lost_rank_is_named(recorded: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded, tmp_path / "run"))
    whole = (run / "recorded/trace/rank00001.jsonl").read_text().splitlines()
    other = (run / "recorded/trace/rank00000.jsonl").read_text().splitlines()
    prints = [line for line in other if json.loads(line)["t"] == "fingerprint"]
    mended = [line if json.loads(line)["t"] != "fingerprint" else prints.pop(0) for line in whole]
    (run / "recorded/trace/rank00001.jsonl").write_text("\n".join(mended) + "\n")
    assert check("--run", str(run))[1]["value"] == "yes"
    (run / "recorded/trace/rank00001.jsonl").unlink()
    _code, fact = check("--run", str(run))
    assert fact["value"] == "not-measured"
    assert "1 rank left a trace" in fact["statement"]


def test_ranks_of_two_recordings_are_not_held_against_each_other(recorded: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded, tmp_path / "run"))
    later = Path(shutil.copytree(run / "recorded", run / "after-restart"))
    for file in sorted((later / "trace").iterdir()):
        lines = file.read_text().splitlines()
        start = {**json.loads(lines[0]), "first_step": 100}
        file.write_text("\n".join([json.dumps(start), *lines[1:]]) + "\n")
    (later / "trace/rank00001.jsonl").unlink()
    (run / "recorded/trace/rank00009.jsonl").write_text('{"t":"start","schema":"spike.trace/7"}\n')
    traces, problems = recorded_traces(Run(directory=str(run)))
    assert [(t.first_step, t.process.rank) for t in traces] == [(0, 0), (0, 1), (100, 0)]
    assert [t.first_step for t in of_one_recording(traces, 50)] == [0, 0]
    assert [t.first_step for t in of_one_recording(traces, 150)] == [100]
    assert problems == ()
