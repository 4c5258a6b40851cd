"""Whatever kills a freeze, is the case readable, is verify truthful, and does the same command complete it?"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spike.actions.evidence.verify import verify
from spike.casefile.case import list_cases, open_case
from spike.casefile.manifest import read_manifest
from spike.domain.run import Run
from spike.domain.verification import Integrity
from tests.casefile.small_runs import fingerprint, make_run

ROOT = Path(__file__).resolve().parents[2]
NUM_KILLS = 60
NUM_TIMED = 20
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


class Driver:
    """The other end of `freeze_driver`."""

    def __init__(self, run: Run, scratch: Path) -> None:
        # No interpreter to be asked for its packages: half of the time of a small freeze.
        given = {"directory": run.directory, "launch": "./train.sh", "checkpoints": run.checkpoints}
        scratch.mkdir()
        self.process = subprocess.Popen(
            (sys.executable, "-m", "tests.actions.freeze_driver", json.dumps(given)),
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(scratch)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, cases: Path, mode: str = "none", amount: float | None = None) -> dict[str, object]:
        """One freeze into `cases`, and how it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{cases} {mode}{'' if amount is None else f' {amount}'}\n")
        self.process.stdin.flush()
        answer: dict[str, object] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Driver, Path]]:
    place = _in_memory() or tmp_path_factory.mktemp("crash")
    run = make_run(place / "run")
    driver = Driver(run, place / "scratch")
    yield run, driver, place
    assert driver.process.stdin is not None
    assert driver.process.stdout is not None
    driver.process.stdin.close()
    assert driver.process.wait(60) == 0
    driver.process.stdout.close()
    shutil.rmtree(place, ignore_errors=True)


def _in_memory() -> Path | None:
    """A kill is no power cut: what the kernel has is safe, and hundreds of fsyncs would only take time."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shutil.disk_usage(shared).free < 1 << 30:
        return None
    return Path(tempfile.mkdtemp(prefix="spike-crash-", dir=shared))


def _look(run: Run) -> dict[str, tuple[object, ...]]:
    return {p: (*f[:4], *f[5:]) for p, f in fingerprint(Path(run.directory)).items()}


def _is_truthful(cases: Path) -> bool:
    """After a kill: at most one case, it opens, and verify calls it whole only if it was recorded as whole."""
    found = list_cases(cases)
    assert len(found) <= 1
    for path in found:
        case = open_case(path)
        recorded = any(e.command == "freeze" and e.exit_code == 0 for e in case.journal())
        result = verify(path)
        assert result.integrity in (Integrity.INTACT, Integrity.INCOMPLETE), result
        assert result.integrity is Integrity.INCOMPLETE or (recorded and read_manifest(path) is not None)
        if result.integrity is Integrity.INCOMPLETE:
            assert result.unfinished
    return bool(found)


def _is_complete(cases: Path) -> None:
    (path,) = list_cases(cases)
    case = open_case(path)
    assert verify(path).integrity is Integrity.INTACT
    assert verify(path).unrecorded == ()
    assert case.facts.last_good is not None
    assert case.facts.last_good.step == 200
    assert [p.step for p in case.facts.earlier] == [150, 100]
    assert [p.step for p in case.facts.suspect] == [250]
    assert not (path / ".held").exists()
    leftovers = [p for p in cases.rglob(".*") if p.name != ".lock"]
    assert leftovers == []


def _kill_many(driven: tuple[Run, Driver, Path], num_kills: int, seed: int) -> None:
    run, driver, place = driven
    rng = random.Random(seed)
    before = _look(run)
    start = time.perf_counter()
    whole = driver.ask(place / "whole")
    seconds = time.perf_counter() - start
    assert whole["code"] == 0, whole
    total = int(str(whole["operations"]))
    shutil.rmtree(place / "whole")
    num_timed = num_kills * NUM_TIMED // NUM_KILLS
    num_events = num_kills - num_timed
    # One point in each equal part of the command, so that no phase is left out.
    events = [1 + int((i + rng.random()) * (total - 1) / num_events) for i in range(num_events)]
    kills = [("event", float(e)) for e in events]
    kills += [("time", rng.uniform(0, seconds)) for _ in range(num_timed)]
    killed = with_case = 0
    for number, (mode, amount) in enumerate(kills):
        cases = place / f"killed-{number}"
        ended = driver.ask(cases, mode, amount)
        killed += bool(ended["killed"])
        with_case += _is_truthful(cases)
        again = driver.ask(cases)
        assert again["code"] == 0, (mode, amount, again)
        _is_complete(cases)
        shutil.rmtree(cases)
    assert _look(run) == before
    assert killed >= num_events * 9 // 10
    assert with_case >= num_events // 2


@pytest.mark.process
def test_a_freeze_killed_at_sixty_points_is_always_completed_by_the_next(
    driven: tuple[Run, Driver, Path],
) -> None:
    _kill_many(driven, NUM_KILLS, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("num_kills", [200, 2000])
def test_a_freeze_killed_at_very_many_points_is_always_completed_by_the_next(
    driven: tuple[Run, Driver, Path], num_kills: int
) -> None:
    _kill_many(driven, num_kills, seed=num_kills)


@pytest.mark.process
def test_a_freeze_killed_again_and_again_still_gets_there(driven: tuple[Run, Driver, Path]) -> None:
    _run, driver, place = driven
    cases = place / "stubborn"
    for event in range(40, 400, 45):
        driver.ask(cases, "event", event)
        _is_truthful(cases)
    assert driver.ask(cases)["code"] == 0
    _is_complete(cases)


@pytest.mark.process
def test_what_a_killed_freeze_had_held_is_pinned_though_the_run_has_lost_it_since(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run")
    driver = Driver(run, tmp_path / "scratch")
    try:
        total = int(str(driver.ask(tmp_path / "whole")["operations"]))
        cases = tmp_path / "cases"
        for event in range(total // 4, total, 3):
            driver.ask(cases, "event", event)
            if any((path / "evidence" / "pinned").is_dir() for path in list_cases(cases)):
                break
            shutil.rmtree(cases, ignore_errors=True)
        shutil.rmtree(Path(run.directory) / "out")
        assert driver.ask(cases)["code"] == 0
        _is_complete(cases)
    finally:
        driver.process.communicate()


@pytest.mark.process
def test_a_file_size_limit_anywhere_is_a_message_and_the_next_command_completes(
    driven: tuple[Run, Driver, Path],
) -> None:
    """RLIMIT_FSIZE makes a write fail in its middle, as a full disk does."""
    _run, driver, place = driven
    refused = 0
    for number, limit in enumerate((0, 60, 400, 900, 1500, 3000, 4200, 6000, 9000, 15000)):
        cases = place / f"limit-{number}"
        ended = driver.ask(cases, "fsize", limit)
        if ended["code"] != 0:
            assert ended["code"] == 2, ended
            assert "cannot write" in str(ended["said"])
            assert " | " in str(ended["said"])
            refused += 1
        if cases.exists():
            _is_truthful(cases)
        assert driver.ask(cases)["code"] == 0
        _is_complete(cases)
        shutil.rmtree(cases)
    assert refused >= 6


DISK = """
import json, os, subprocess, sys
from pathlib import Path
from spike.domain.run import Run
from tests.actions.freeze_driver import run_one
run, place = Run(**json.loads(sys.argv[1])), Path(sys.argv[2])
def sh(*words): subprocess.run(words, check=True)
results = []
for size in json.loads(sys.argv[3]):
    sh("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    first = run_one(run, place / "cases", "none", 0.0)
    from spike.actions.evidence.verify import verify
    from spike.casefile.case import list_cases, open_case
    found = list_cases(place / "cases")
    state = [(open_case(p).facts.id, verify(p).integrity) for p in found]
    sh("mount", "-o", "remount,ro", str(place))
    closed = run_one(run, place / "cases", "none", 0.0)
    sh("mount", "-o", "remount,rw,size=512m", str(place))
    second = run_one(run, place / "cases", "none", 0.0)
    end = [verify(p).integrity for p in list_cases(place / "cases")]
    results.append({"size": size, "first": first, "state": state, "closed": closed, "second": second, "end": end})
    sh("umount", str(place))
print("RESULTS" + json.dumps(results))
"""


def _in_small_disks(run: Run, place: Path, sizes: list[int]) -> list[dict[str, object]]:
    place.mkdir()
    description = {"directory": run.directory, "launch": "./train.sh", "checkpoints": run.checkpoints}
    done = subprocess.run(
        ("unshare", "-Urm", sys.executable, "-c", DISK, json.dumps(description), str(place), json.dumps(sizes)),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "RESULTS" in done.stdout, done.stderr
    results: list[dict[str, object]] = json.loads(done.stdout.split("RESULTS")[1])
    return results


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ("unshare", "-Urm", "sh", "-c", "mount -t tmpfs tmpfs /mnt")
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.process
@pytest.mark.skipif(not _can_mount(), reason="no user and mount namespace here, so no small disk can be made")
@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_a_full_disk_is_a_message_with_the_way_out_and_the_case_is_completed_later(
    tmp_path: Path, with_checkpoints: bool
) -> None:
    run = make_run(tmp_path / "run", (100, 200) if with_checkpoints else ())
    sizes = [8192, 16384, 24576, 40960, 57344, 73728, 90112] if not with_checkpoints else [8192, 1 << 20]
    refused = 0
    for result in _in_small_disks(run, tmp_path / "disk", sizes):
        first, closed, second = result["first"], result["closed"], result["second"]
        assert isinstance(first, dict)
        assert isinstance(closed, dict)
        assert isinstance(second, dict)
        if first["code"] != 0:
            assert first["code"] == 2, first
            assert "No space left on device" in first["said"] or "no room" in first["said"]
            assert "SPIKE_CASES" in first["said"]
            refused += 1
        assert closed["code"] == 2, closed
        assert "Read-only file system" in closed["said"]
        states = result["state"]
        assert isinstance(states, list)
        assert all(integrity in ("intact", "incomplete") for _, integrity in states)
        assert second["code"] == 0, second
        assert result["end"] == ["intact"]
    assert refused >= (2 if with_checkpoints else 4)
