"""What becomes of commands that fail, hang, ignore their checkpoint, count otherwise or never train?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from spike.actions.experiment.bench import Bench, open_bench
from spike.actions.experiment.bisect import bisect
from spike.actions.open_case import investigate
from spike.actions.playbooks import known_playbooks
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.trial import Grade, OutcomeKind
from spike.domain.verdict import Status
from spike.lab.tree_state import tree_state
from spike.readers.run_file import load_run
from tests.actions import tiny_run

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.build(tmp_path_factory.mktemp("tiny") / "run")


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run", copy_function=shutil.copy2)
    return tmp_path / "run"


def bench_of(run_dir: Path) -> Bench:
    return open_bench(investigate(load_run(run_dir), operator="test"))


def test_a_sound_replay_is_licensed_bit_exactly_and_the_run_stays_as_it_was(run_dir: Path) -> None:
    before = tree_state(run_dir)
    bench = bench_of(run_dir)
    assert bench.licence.grade is Grade.BIT_EXACT
    assert bench.baseline.noise.bit_exact
    assert bench.replay.outcome.kind is OutcomeKind.REPRODUCED
    assert tree_state(run_dir) == before


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("/no/such/program {checkpoint}", "could not be started"),
        (f'{sys.executable} -c "raise SystemExit(3)" {{checkpoint}}', "no optimizer step"),
        (f'{sys.executable} -c "print(1)" {{checkpoint}}', "no optimizer step"),
        (f"{sys.executable} train.py --ignore --resume {{checkpoint}}", "did not load the checkpoint"),
        (f"{sys.executable} train.py --offset 7 --resume {{checkpoint}}", "counts its first step as 48"),
    ],
)
def test_a_command_that_cannot_replay_is_refused_with_the_reason(run_dir: Path, launch: str, expected: str) -> None:
    tiny_run.describe(run_dir, launch.replace('"', '"'))
    bench = bench_of(run_dir)
    assert not bench.licence.holds
    assert expected in bench.licence.reason


def test_a_hanging_command_is_ended_at_its_time_limit(run_dir: Path) -> None:
    tiny_run.describe(run_dir, f'{sys.executable} -c "import time; time.sleep(600)" {{checkpoint}}', minutes=0.05)
    bench = bench_of(run_dir)
    assert bench.replay.outcome.kind is OutcomeKind.UNTESTABLE
    assert "time limit" in bench.licence.reason


def test_without_a_licence_a_bisect_ends_undetermined_with_the_reason(run_dir: Path) -> None:
    tiny_run.describe(run_dir, f"{sys.executable} train.py --ignore --resume {{checkpoint}}")
    run = load_run(run_dir)
    verdict, _ = bisect(investigate(run, operator="test"), known_playbooks(run))
    assert verdict.status is Status.UNDETERMINED
    assert "not licensed" in verdict.because
    assert verdict.cause == ""


def test_without_a_launch_command_the_case_is_inconclusive_and_says_what_to_add(run_dir: Path) -> None:
    (run_dir / "spike.yaml").write_text("checkpoints: ckpt/step-{step}.pt\nmetrics: [log.jsonl]\n")
    with pytest.raises(SpikeError, match="no launch command") as caught:
        investigate(load_run(run_dir), operator="test")
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE
    assert "launch:" in caught.value.hint


def test_without_a_checkpoint_before_the_onset_nothing_is_replayed(run_dir: Path) -> None:
    for step in (10, 20, 30, 40):
        (run_dir / f"ckpt/step-{step:04d}.pt").unlink()
    with pytest.raises(SpikeError, match="no whole, finite checkpoint lies before the onset") as caught:
        bench_of(run_dir)
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE


def test_a_torn_last_checkpoint_is_passed_over_for_the_one_before(run_dir: Path) -> None:
    last = run_dir / "ckpt/step-0040.pt"
    last.write_bytes(last.read_bytes()[:-200])
    investigation = investigate(load_run(run_dir), operator="test")
    assert investigation.last_good.step == 30
    assert any("0040" in path for path, _ in investigation.case.facts.not_pinned)


def test_a_log_that_stops_at_the_incident_can_still_be_replayed(run_dir: Path) -> None:
    rows = (run_dir / "log.jsonl").read_text().splitlines()[: tiny_run.ONSET]
    (run_dir / "log.jsonl").write_text("\n".join(rows) + "\n")
    bench = bench_of(run_dir)
    assert bench.licence.holds
    assert bench.replay.outcome.kind is OutcomeKind.REPRODUCED
