"""Is each fixture what its truth says: healthy before, unmistakable at the onset, and replayable by hand?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fixtures_suite.built import FIXTURES, build, differing, distance, replay, rows

UNMISTAKABLE = 6.0
"""Robust standard deviations; healthy steps of these runs stay below 5."""


@dataclass(frozen=True)
class Case:
    name: str
    signal: str
    onset: int
    checkpoint: int
    last: int
    first_not_repeated: int | None = None
    """Where the cause is not repeated by the launch command, the first step that differs."""


CASES = (
    Case("corrupt-batch", "loss", 221, 200, 226),
    Case("learning-rate-jump", "loss", 222, 200, 226),
    Case("moments-mismatch", "loss", 202, 200, 206),
    Case("wrong-checkpoint", "loss", 201, 200, 206),
    Case("objective-changed", "loss", 201, 200, 206),
    Case("clipping-lost", "loss", 202, 200, 206),
    Case("batch-meets-state", "loss", 221, 200, 226),
    Case("no-supervised-targets", "loss", 221, 200, 226),
    Case("transient-corruption", "loss", 222, 200, 226, first_not_repeated=222),
    Case("unseeded-order", "loss", 221, 200, 206, first_not_repeated=201),
)
DEFAULT = ("corrupt-batch", "transient-corruption")
"""Built in the default run of process tests; the others when all are asked for."""


def cases() -> list[object]:
    return [pytest.param(c, id=c.name, marks=[] if c.name in DEFAULT else [pytest.mark.long]) for c in CASES]


@pytest.mark.process
@pytest.mark.parametrize("case", cases())
def test_the_run_is_healthy_then_unmistakably_not_and_its_own_command_replays_it(case: Case, tmp_path: Path) -> None:
    run = build(case.name, tmp_path / "run")
    record = rows(run)
    assert record[1]["loss"] > 5.4
    assert min(row["loss"] for row in record.values() if math.isfinite(row["loss"])) < 2.95
    assert max(distance(record, step, case.signal) for step in range(120, case.onset)) < UNMISTAKABLE
    assert distance(record, case.onset, case.signal) > UNMISTAKABLE
    replayed = replay(run, tmp_path, f"ckpt/step-{case.checkpoint:06d}.pt", flags=f"--max-steps {case.last}")
    assert list(replayed) == list(range(case.checkpoint + 1, case.last + 1))
    different = differing(record, replayed)
    if case.first_not_repeated is None:
        assert different == []
    else:
        assert different == list(range(case.first_not_repeated, case.last + 1))


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "flags", "cured"),
    [("low-precision-overflow", "--dtype float32", True), ("kernel-fault", "--attn math", True)],
)
def test_the_non_finite_runs_are_cured_by_exactly_their_own_knob(
    name: str, flags: str, cured: bool, tmp_path: Path
) -> None:
    run = build(name, tmp_path / "run")
    record = rows(run)
    first = min(s for s, row in record.items() if not math.isfinite(row["grad_norm"]))
    assert 100 < first < 200
    good = max(int(p.stem[5:]) for p in (run / "ckpt").iterdir() if int(p.stem[5:]) < first)
    start, last = f"ckpt/step-{good:06d}.pt", first + 5
    assert differing(record, replay(run, tmp_path, start, flags=f"--max-steps {last}")) == []
    changed = replay(run, tmp_path, start, flags=f"--max-steps {last} {flags}")
    assert all(math.isfinite(row["grad_norm"]) for row in changed.values()) is cured


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("name", ["clean", "clean-periodic"])
def test_the_clean_runs_replay_themselves(name: str, tmp_path: Path) -> None:
    run = build(name, tmp_path / "run")
    record = rows(run)
    assert all(math.isfinite(row["loss"]) for row in record.values())
    assert differing(record, replay(run, tmp_path, "ckpt/step-000200.pt", flags="--max-steps 215")) == []


@pytest.mark.process
@pytest.mark.long
def test_on_two_ranks_only_the_rank_without_the_checkpoint_leaves_its_trend(tmp_path: Path) -> None:
    run = build("rank-desync", tmp_path / "run")
    first, second = rows(run, "logs/rank0.jsonl"), rows(run, "logs/rank1.jsonl")
    assert distance(second, 201, "loss") > UNMISTAKABLE
    assert distance(first, 201, "loss") < UNMISTAKABLE
    assert abs(second[201]["loss"] - math.log(256)) < 0.1


@pytest.mark.process
def test_a_built_run_carries_no_word_of_what_was_planted(tmp_path: Path) -> None:
    run = build("corrupt-batch", tmp_path / "run")
    words = (b"truth", b"planted", b"planting", b"fixture", b"corrupt")
    found = [
        (path.relative_to(run).as_posix(), word.decode())
        for path in run.rglob("*")
        if path.is_file() and path.suffix not in (".pt", ".bin")
        for word in words
        if word in path.read_bytes().lower()
    ]
    # Only git's own sample hooks may use such words.
    assert [f for f in found if not f[0].startswith(".git/hooks/")] == []


def test_every_fixture_has_a_script_a_truth_and_a_docstring_that_says_how_to_recognise_it() -> None:
    places = sorted((FIXTURES / "incidents").iterdir())
    assert len(places) >= 18
    for place in places:
        assert (place / "truth.yaml").is_file(), place
        text = (place / "plant.py").read_text()
        docstring = text.split('"""')[1]
        assert "ecognised" in docstring, place
        assert "def plant(directory: Path) -> None:" in text, place


def test_an_unknown_fixture_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, str(FIXTURES / "build.py"), "corupt-batch", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "corrupt-batch" in done.stderr
    assert not (tmp_path / "run").exists()
