"""How does the probe get in, and what if it cannot work? Start hooks, launch forms, faults of the probe itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .conftest import Training
from .test_recording import same

pytestmark = pytest.mark.process

AWKWARD = """
import sys
import torch

class Awkward(dict):
    def values(self):
        raise RuntimeError("not for you")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(3, 1)
    def forward(self, batch):
        return self.line(batch["x"]).mean()

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(30):
    net(Awkward(x=torch.ones(2, 3))).backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(net.state_dict(), sys.argv[1])
"""


def weights(training: Training, name: str) -> object:
    return torch.load(training.directory / name, weights_only=True)


def test_exceptions_inside_the_probe_never_reach_the_script(training: Training) -> None:
    script = training.write("awkward.py", AWKWARD)
    training.run(script, "awkward-bare.pt")
    ran = training.run(script, "awkward-probed.pt", name="awkward")
    assert ran.code == 0, ran.err
    assert same(weights(training, "awkward-bare.pt"), weights(training, "awkward-probed.pt"))
    errors = ran.lines("error")
    assert errors[0]["where"] == "forward"
    assert errors[0]["message"] == "RuntimeError: not for you"
    # Thirty failures, twenty lines; the steps are all there, without a batch identity.
    assert len(errors) == 20
    assert len(ran.lines("step")) == 30
    assert all(step["micro"][0]["batch"] is None for step in ran.lines("step"))


def test_a_trace_that_cannot_be_written_does_not_stop_the_run(training: Training) -> None:
    (training.directory / "blocked").write_text("a file where the trace directory should be")
    ran = training.run("loops.py", "two-optimizers", name="blocked")
    assert ran.code == 0, ran.err
    assert len(ran.rows()) == 3


@pytest.mark.parametrize("text", ["{", '{"schema": "spike.plan/2", "trial": "x", "out": "y"}'])
def test_a_plan_that_cannot_be_read_is_said_and_ignored(training: Training, stage: Path, text: str) -> None:
    path = training.write("broken.plan.json", text)
    variables = {"PYTHONPATH": str(stage), "SPIKE_PROBE_PLAN": str(path)}
    base = {key: value for key, value in os.environ.items() if key != "SPIKE_PROBE_PLAN"}
    command = [sys.executable, str(training.script("loops.py")), "two-optimizers"]
    done = subprocess.run(command, env={**base, **variables}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "spike probe: not attached" in done.stderr
    assert done.stdout.count("loss") == 3


def test_a_sitecustomize_that_was_there_before_still_runs(training: Training) -> None:
    mine = training.directory / "site"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import builtins\nbuiltins.CHAINED = 'yes'\n")
    script = training.write("chained.py", "import sys\nprint(CHAINED, sys.modules['sitecustomize'].__file__)\n")
    ran = training.run(script, name="chained", environment={"PYTHONPATH": str(mine)})
    assert ran.code == 0, ran.err
    assert ran.out.startswith("yes ")


def test_a_process_that_does_not_train_leaves_nothing(training: Training) -> None:
    script = training.write("idle.py", "import torch\nnet = torch.nn.Linear(2, 2)\nnet(torch.ones(1, 2))\n")
    ran = training.run(script, name="idle")
    assert ran.code == 0, ran.err
    assert not (training.directory / "idle").exists()


def test_the_start_hook_imports_no_torch_by_itself(training: Training) -> None:
    script = training.write("light.py", "import sys\nprint('torch' in sys.modules, 'importlib.util' in sys.modules)\n")
    assert training.run(script, name="light").out.split()[0] == "False"


def test_torch_keeps_its_own_loader(training: Training) -> None:
    text = (
        "import inspect, torch\nprint(type(torch.__spec__.loader).__name__, 'exec_module' in vars(torch.__loader__))\n"
    )
    ran = training.run(training.write("loader.py", text + "inspect.getsource(torch)\n"), name="loader")
    assert ran.out.split() == ["SourceFileLoader", "False"], ran.err


@pytest.mark.parametrize("form", ["script", "module"])
def test_the_explicit_form_runs_a_script_as_python_would(training: Training, stage: Path, form: str) -> None:
    package = training.directory / f"package_{form}"
    package.mkdir()
    (package / "beside.py").write_text("VALUE = 7\n")
    (package / "train.py").write_text(
        "import sys, torch, beside\nassert __name__ == '__main__' and beside.VALUE == 7\n"
        "net = torch.nn.Linear(2, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "net(torch.ones(3, 2)).sum().backward(); opt.step(); print(sys.argv[1:])\n"
    )
    plan = training.plan(f"explicit-{form}")
    what = [str(package / "train.py")] if form == "script" else ["-m", "train"]
    done = subprocess.run(
        [sys.executable, "-m", "spike_probe", *what, "--flag", "1"],
        cwd=package, env={**os.environ, "SPIKE_PROBE_PLAN": str(plan)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['--flag', '1']"
    ran = training._ran(0, "", "", f"explicit-{form}")
    assert len(ran.lines("step")) == 1


def test_a_second_attempt_of_a_rank_keeps_the_first_one_aside(training: Training) -> None:
    for _ in range(2):
        training.run("loops.py", "functional", name="twice")
    files = sorted(path.name for path in (training.directory / "twice" / "trace").iterdir())
    assert files == ["rank00000.jsonl", "rank00000.jsonl.1"]


def test_the_stage_holds_the_probe_alone(stage: Path) -> None:
    files = {path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file()}
    assert {"sitecustomize.py", "spike_probe/bootstrap.py", "spike_probe/interventions/skip_batch.py"} <= files
    assert "spike_probe/sitecustomize.py" not in files
    assert not any("test" in name for name in files)
