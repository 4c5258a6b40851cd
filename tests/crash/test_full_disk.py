"""Does a full disk end every writing command with a reason and a way out, and lose nothing?

Every operation that needs room below the cases fails from a random one on, the first in the middle of its bytes; and
once for each command on a real small file system that is full.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.commands import CHEAP
from tests.crash.test_kills import completes, is_truthful, world_of
from tests.crash.world import ROOT, World, describe, write_run

POINTS = 1
"""Of each command."""
LONG_POINTS = int(os.environ.get("SPIKE_KILLS", "200")) // len(CHEAP)
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux"),
]


def fill_up(worlds: dict[str, World], num_points: int, rng: random.Random) -> Counter[str]:
    counts: Counter[str] = Counter()
    for way in CHEAP:
        world = world_of(worlds, way)
        _answer, ended = world.reference(way)
        for part in range(num_points):
            world.restore(way)
            at = 1 + int((part + rng.random()) / num_points * ended["operations"])
            below = world.run if way.name == "init" else world.cases
            starved = world.spike(*way.words, mode="full", amount=at, below=below, group=way.whole_group)
            counts["tried"] += 1
            if starved["code"] != way.code:
                assert starved["code"] in (2, 3), (way.name, at, starved)
                assert "No space left on device" in starved["stderr"], (way.name, at, starved["stderr"])
                assert "next: " in starved["stderr"]
                assert "Traceback" not in starved["stderr"]
                counts["refused"] += 1
            is_truthful(world)
            assert way.name == "init" or world.has_untouched_run()
            completes(world, way)
    return counts


def test_a_disk_that_fills_up_anywhere_is_told_and_the_next_command_completes(
    worlds: dict[str, World], capsys: pytest.CaptureFixture[str]
) -> None:
    counts = fill_up(worlds, POINTS, random.Random(2))
    with capsys.disabled():
        print(f"\nfull disks: {dict(counts)}, misses: 0")
    assert counts["tried"] == POINTS * len(CHEAP)
    assert counts["refused"] >= counts["tried"] // 2


@pytest.mark.long
def test_a_disk_that_fills_up_at_very_many_points_is_told(
    worlds: dict[str, World], capsys: pytest.CaptureFixture[str]
) -> None:
    counts = fill_up(worlds, LONG_POINTS, random.Random(3))
    with capsys.disabled():
        print(f"\nfull disks: {dict(counts)}, misses: 0")
    assert counts["tried"] == LONG_POINTS * len(CHEAP)


SMALL = """
import json, os, subprocess, sys
from pathlib import Path
run, cases, steps = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
def sh(*words): subprocess.run(words, check=True)
def spike(words):
    done = subprocess.run([sys.executable, "-m", "spike.cli.app", *words], cwd=run, capture_output=True, text=True)
    return {"code": done.returncode, "stderr": done.stderr, "stdout": done.stdout}
sh("mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(cases))
os.environ["SPIKE_CASES"] = str(cases)
found = []
for words in steps:
    filler = cases / "filler"
    size = os.statvfs(cases)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size.f_bavail * size.f_frsize)
    full = spike(words)
    told = spike(["verify", "--json"])["code"] if len(found) else None
    filler.unlink()
    again = spike(words)
    found.append({"words": words, "full": full, "verify": told, "again": again, "whole": spike(["verify"])["code"]})
print("RESULTS" + json.dumps(found))
"""


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ("unshare", "-Urm", "sh", "-c", "mount -t tmpfs tmpfs /mnt")
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no user and mount namespace here, so no small disk can be made")
def test_on_a_real_full_disk_every_command_gives_its_reason_and_completes_when_there_is_room(tmp_path: Path) -> None:
    write_run(tmp_path / "run", (100, 200))
    describe(tmp_path / "run")
    cases = tmp_path / "cases"
    cases.mkdir()
    steps = [["freeze"], ["check"], ["freeze", "--release"]]
    command = ("unshare", "-Urm", sys.executable, "-c", SMALL, str(tmp_path / "run"), str(cases), json.dumps(steps))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "RESULTS" in done.stdout, done.stderr
    found = json.loads(done.stdout.split("RESULTS")[1])
    assert [step["words"] for step in found] == steps
    for step in found:
        assert step["full"]["code"] in (2, 3), step
        assert "No space left on device" in step["full"]["stderr"] or "no room" in step["full"]["stderr"], step
        assert "next: " in step["full"]["stderr"]
        assert step["verify"] in (None, 0, 4), step
        assert step["again"]["code"] == 0, step
        assert step["whole"] == 0, step
