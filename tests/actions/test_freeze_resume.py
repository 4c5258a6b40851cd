"""Does a killed freeze go on where it stopped, and do shards merge to what one process makes? Bytes are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from spike.actions.evidence.verify import verify
from spike.casefile.case import list_cases, open_case
from spike.casefile.ledger import Ledger, Noted
from spike.casefile.manifest import read_manifest
from spike.domain.manifest import EntryKind, Guarantee, Manifest, ManifestEntry
from spike.domain.run import Run
from spike.domain.verification import Integrity
from tests.casefile.small_runs import make_run

ROOT = Path(__file__).resolve().parents[2]
STEPS = (100, 150, 200, 250)
NUM_FILES = 3
pytestmark = pytest.mark.process


class Driver:
    """The other end of `counting_driver`."""

    def __init__(self, run: Run) -> None:
        given = {"directory": run.directory, "launch": "./train.sh", "checkpoints": run.checkpoints}
        self.process = subprocess.Popen(
            (sys.executable, "-m", "tests.actions.counting_driver", json.dumps(given)),
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
        """Do these at once."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(list(jobs)) + "\n")
        self.process.stdin.flush()
        found: list[dict[str, Any]] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        """End it."""
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Driver, Path]]:
    place = tmp_path_factory.mktemp("resume")
    run = make_run(place / "run", STEPS)
    rng = np.random.default_rng(1)
    for step in STEPS:
        for number in range(NUM_FILES):
            tensor = {f"w{number}": rng.standard_normal(60_000 + 9_000 * number).astype(np.float32)}
            save_file(tensor, Path(run.directory) / "out" / f"step-{step}" / f"part-{number}.safetensors")
    driver = Driver(run)
    try:
        for name, link in (("copied", False), ("linked", True)):
            (whole,) = driver(_job(place / name, link=link))
            assert whole["code"] == 0, whole
            assert _read_of_checkpoints([whole]) == sum(_sizes(run).values())
        yield run, driver, place
    finally:
        driver.close()


def _job(cases: Path, **changed: Any) -> dict[str, Any]:
    return {"cases": str(cases), "kill_at": None, "link": False, "shard": "", "merge": False, "spoil": "", **changed}


def _sizes(run: Run) -> dict[str, int]:
    """Bytes of each checkpoint file, by its place in the case."""
    out = Path(run.directory) / "out"
    return {
        f"pinned/out@{path.parent.name.removeprefix('step-')}/{path.relative_to(out)}": path.stat().st_size
        for path in out.rglob("*.safetensors")
    }


def _noted(case: Path, run: Run) -> dict[str, Noted]:
    """What the killed freeze had written down."""
    ledger = Ledger(case / ".held" / "hashed")
    return {path: noted for path in _sizes(run) if (noted := ledger.noted(path)) is not None}


def _has_verdict(case: Path) -> bool:
    return any('"reason"' in path.read_text() for path in (case / ".held" / "hashed").glob("*.jsonl"))


def _read_of_checkpoints(answers: list[dict[str, Any]]) -> int:
    return sum(n for a in answers for path, n in a["read"].items() if path.endswith(".safetensors"))


def _comparable(entry: ManifestEntry) -> ManifestEntry:
    """Without inode, and without the time at which spike itself wrote."""
    is_own = entry.kind is EntryKind.DIRECTORY or entry.guarantee is Guarantee.WRITTEN
    return replace(entry, identity="", mtime_ns=0 if is_own else entry.mtime_ns)


def _manifest(cases: Path) -> tuple[Manifest, bytes]:
    (path,) = list_cases(cases)
    manifest = read_manifest(path)
    assert manifest is not None
    assert verify(path).integrity is Integrity.INTACT
    assert not (path / ".held").exists()
    assert list(path.rglob(".*.pinning")) == []
    return manifest, (path / "evidence" / "SHA256SUMS").read_bytes()


@pytest.mark.parametrize(("link", "shares"), [(False, (1, 3, 5, 7, 9)), (True, (2, 5, 8))])
def test_a_killed_freeze_reads_only_what_was_not_done(
    driven: tuple[Run, Driver, Path], link: bool, shares: tuple[int, ...]
) -> None:
    run, driver, place = driven
    sizes = _sizes(run)
    total = sum(sizes.values())
    expected, _ = _manifest(place / ("linked" if link else "copied"))
    guarantees = {e.guarantee for e in expected.entries if e.role == "checkpoint"}
    assert Guarantee.HARD_LINK not in guarantees if not link else len(guarantees) == 1
    done: list[int] = []
    for share in shares:
        cases = place / f"killed-{link}-{share}"
        (first,) = driver(_job(cases, link=link, kill_at=total * share // 10))
        assert first["killed"], first
        (case,) = list_cases(cases)
        noted, judged = _noted(case, run), _has_verdict(case)
        done.append(sum(noted_file.size for noted_file in noted.values()))
        (second,) = driver(_job(cases, link=link))
        assert second["code"] == 0, second
        # The candidate for the last good checkpoint is judged whole: what was hashed of it is looked at again.
        again = sum(sizes[p] for p in noted if "/out@200/" in p and not judged)
        assert _read_of_checkpoints([second]) == total - done[-1] + again
        # Killed when a tenth was read, at most the file at hand of each worker is lost.
        assert total * share // 10 - done[-1] <= ((os.cpu_count() or 1) + 1) * max(sizes.values())
        manifest, _sums = _manifest(cases)
        assert manifest.tree_digest == expected.tree_digest
    assert done == sorted(done)
    assert len(set(done)) >= len(shares) - 1


def test_a_freeze_killed_again_and_again_loses_a_file_each_time_and_no_more(
    driven: tuple[Run, Driver, Path],
) -> None:
    run, driver, place = driven
    sizes = _sizes(run)
    total, num_kills, num_read = sum(sizes.values()), 0, 0
    cases = place / "stubborn"
    while True:
        (ended,) = driver(_job(cases, kill_at=total // 3))
        if not ended["killed"]:
            break
        num_kills += 1
        num_read += total // 3
    assert ended["code"] == 0, ended
    assert num_kills >= 2
    lost = num_kills * ((os.cpu_count() or 1) + 1) * max(sizes.values())
    candidate = sum(n for path, n in sizes.items() if "/out@200/" in path)
    assert num_read + _read_of_checkpoints([ended]) <= total + lost + num_kills * candidate
    assert _manifest(cases)[0].tree_digest == _manifest(place / "copied")[0].tree_digest


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_at_once_merge_to_the_manifest_of_one_process(driven: tuple[Run, Driver, Path], count: int) -> None:
    run, driver, place = driven
    cases = place / f"shards-{count}"
    jobs = [_job(cases, shard=f"{number}/{count}") for number in range(1, count + 1)]
    answers = driver(*jobs)
    assert [a["code"] for a in answers] == [0] * count, answers
    assert _read_of_checkpoints(answers) == sum(_sizes(run).values())
    assert len(list_cases(cases)) == 1
    (merged,) = driver(_job(cases, merge=True))
    assert merged["code"] == 0, merged
    assert _read_of_checkpoints([merged]) == 0
    manifest, sums = _manifest(cases)
    alone, alone_sums = _manifest(place / "copied")
    assert manifest.tree_digest == alone.tree_digest
    assert sums == alone_sums
    assert [_comparable(e) for e in manifest.entries] == [_comparable(e) for e in alone.entries]
    assert manifest.exclusions == alone.exclusions
    facts, alone_facts = (open_case(list_cases(p)[0]).facts for p in (cases, place / "copied"))
    assert replace(facts, id="", created="") == replace(alone_facts, id="", created="")


def test_missing_shards_are_named_and_a_shard_done_twice_reads_nothing(driven: tuple[Run, Driver, Path]) -> None:
    _run, driver, place = driven
    cases = place / "partly"
    (refused,) = driver(_job(cases, shard="3/5"))
    assert refused["code"] == 0
    (refused,) = driver(_job(cases, merge=True))
    assert refused["code"] == 2
    assert "4 of 5 shards" in refused["said"]
    assert "missing: 1/5, 2/5, 4/5, 5/5" in refused["said"]
    assert "--shard 1/5" in refused["said"]
    (killed,) = driver(_job(cases, shard="1/5", kill_at=300_000))
    assert killed["killed"]
    answers = driver(*(_job(cases, shard=f"{number}/5") for number in (1, 2, 3, 4, 5)))
    assert [a["code"] for a in answers] == [0] * 5
    assert _read_of_checkpoints([answers[2]]) == 0
    (other,) = driver(_job(cases, shard="1/4"))
    assert (other["code"], "in 5 shards, not 4" in other["said"]) == (2, True)
    (merged,) = driver(_job(cases, merge=True))
    assert (merged["code"], _read_of_checkpoints([merged])) == (0, 0)
    assert _manifest(cases)[0].tree_digest == _manifest(place / "copied")[0].tree_digest
    (late,) = driver(_job(cases, shard="2/5"))
    assert (late["code"], _read_of_checkpoints([late])) == (0, 0)


def test_one_process_can_finish_what_shards_left(driven: tuple[Run, Driver, Path]) -> None:
    run, driver, place = driven
    cases = place / "taken-over"
    (first,) = driver(_job(cases, shard="2/2"))
    (rest,) = driver(_job(cases))
    assert rest["code"] == 0, rest
    assert _read_of_checkpoints([first, rest]) == sum(_sizes(run).values())
    assert _manifest(cases)[0].tree_digest == _manifest(place / "copied")[0].tree_digest


def test_what_was_never_sharded_cannot_be_merged(driven: tuple[Run, Driver, Path]) -> None:
    _run, driver, place = driven
    (refused,) = driver(_job(place / "nothing", merge=True))
    assert (refused["code"], "not being frozen in shards" in refused["said"]) == (2, True)


def test_a_file_that_changes_under_a_shard_is_named_and_the_merge_reads_it_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", STEPS)
    driver = Driver(run)
    try:
        (shard,) = driver(_job(tmp_path / "cases", shard="1/1", spoil="step-150/model.safetensors"))
        assert shard["code"] == 0, shard
        assert [(Path(p).parts[-2:], reason) for p, reason in shard["problems"]] == [
            (("step-150", "model.safetensors"), "changed while it was read")
        ]
        (case,) = list_cases(tmp_path / "cases")
        assert len(_noted(case, run)) == 3
        assert not any("out@150" in path for path in _noted(case, run))
        (again,) = driver(_job(tmp_path / "cases", merge=True, spoil="step-150/model.safetensors"))
        assert again["code"] == 0, again
        facts = open_case(case).facts
        assert [p.step for p in facts.earlier] == [100]
        assert [(Path(path).name, reason.rpartition(": ")[2]) for path, reason in facts.not_pinned] == [
            ("step-150", "changed while it was read")
        ]
        assert verify(case).integrity is Integrity.INTACT
    finally:
        driver.close()
