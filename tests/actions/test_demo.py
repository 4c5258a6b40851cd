from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spike.actions import demo as demo_module
from spike.actions.demo import demo
from spike.domain.errors import SpikeError

TRUTH = """\
schema: spike.truth/1
status: established
class: data
cause: data/corrupt-batch
onset: 3
step: 3
why: a small one
"""
BUILD = """\
import json, pathlib, sys, time
run = pathlib.Path(sys.argv[2])
(run / "logs").mkdir(parents=True)
with (run / "logs/log.jsonl").open("w", buffering=1) as log:
    for step in range(1, 6):
        log.write(json.dumps({"step": step, "loss": 3.0 / step}) + "\\n")
        time.sleep(0.2)
    log.write('{"step": 6, "lo')
    log.flush()
    time.sleep(0.5)
(run / "spike.yaml").write_text("launch: python train.py --resume {checkpoint}\\n")
"""


def shipped(monkeypatch: pytest.MonkeyPatch, root: Path, build: str) -> None:
    place = root / "incidents" / demo_module.FIXTURE
    place.mkdir(parents=True)
    (place / "truth.yaml").write_text(TRUTH)
    (root / "build.py").write_text(build)
    monkeypatch.setattr(demo_module, "shipped_directory", lambda _name: root)


def test_steps_are_told_while_the_model_trains_and_the_walk_gets_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(monkeypatch, tmp_path / "fixtures", BUILD)
    steps: list[tuple[int, float]] = []
    walked: list[Path] = []

    def walk(directory: Path) -> int:
        walked.append(directory)
        return 4

    run = tmp_path / "run"
    result = demo(run, walk=walk, on_step=lambda s, loss: steps.append((s, loss)), talk=lambda _text: None)
    assert walked == [run]
    assert steps
    assert steps[-1] == (5, 0.6)
    assert steps == sorted(steps)
    assert (result.exit_code, result.case, result.postmortem, result.verdict) == (4, None, None, None)
    assert result.truth.cause == "data/corrupt-batch"
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".log")] == []


def test_a_training_that_fails_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(monkeypatch, tmp_path / "fixtures", "raise SystemExit('no space left for the shard')")
    with pytest.raises(SpikeError, match="no space left for the shard"):
        demo(tmp_path / "run", walk=lambda _d: 0, on_step=lambda _s, _l: None, talk=lambda _text: None)


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    command = [sys.executable, "-m", "spike.cli.app", "demo", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.process
@pytest.mark.long
def test_the_demo_finds_what_it_planted_and_leaves_a_postmortem(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spike.cli.app", "demo", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    payload = json.loads(done.stdout)
    assert payload["schema"] == "spike.demo/1"
    assert payload["verdict"]["cause"] == payload["planted"]["cause"]
    assert payload["verdict"]["step"] == payload["planted"]["step"]
    assert Path(payload["postmortem"]).read_text().startswith("#")
