"""Whatever kills a command that writes, is the case readable, is verify truthful, and does the same command finish?

Kills come at random operations (a write of bytes is cut in its middle) and at random times. The run must stay as it
is, byte by byte and inode by inode.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
import typer

from spike.actions.evidence.verify import verify
from spike.casefile.manifest import EVIDENCE, read_manifest
from spike.cli.app import app
from spike.domain.manifest import EntryKind, decode_path
from spike.domain.verification import Integrity, Verification
from tests.actions import tiny_run
from tests.crash.commands import CHEAP, OWN_DIRECTORY, READ_ONLY, TRAINING, Written, parsed
from tests.crash.world import Driver, World, state_of

DEFAULT_KILLS = 140
"""With the sixty of freeze alone, in test_freeze_crash.py, two hundred in every run of the tests."""
KILLS = int(os.environ.get("SPIKE_KILLS", "200"))
"""Of the long test, over all commands that do not train."""
TIMED_SHARE = 0.25
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux"),
]


def world_of(worlds: dict[str, World], way: Written) -> World:
    return worlds[{"init": "bare", "walk": "logs"}.get(way.name, "whole")]


def told(found: Verification) -> list[str]:
    """What verify complains about."""
    changes = [change.statement for change in (*found.changes, *found.artefacts) if change.is_content]
    return [*changes, *(fault.statement for fault in found.chain), *found.unfinished]


def is_truthful(world: World) -> bool:
    """After a kill: at most one case, it opens, its status can be told, and verify raises no false alarm."""
    case = world.case()
    assert world.spike("status", "--json")["code"] == 0
    if case is None:
        return False
    found = verify(case)
    assert found.integrity is not Integrity.ALTERED, told(found)
    assert found.integrity is Integrity.INTACT or found.unfinished
    return True


def is_alarmed_by_damage(world: World, rng: random.Random) -> bool:
    """One bit of one frozen file, in whatever state the kill left the case: verify must see it."""
    case = world.case()
    manifest = read_manifest(case) if case is not None else None
    if case is None or manifest is None:
        return False
    files = [case / EVIDENCE / decode_path(e.path) for e in manifest.entries if e.kind is EntryKind.FILE and e.size]
    there = [path for path in files if path.is_file()]
    if not there:
        return False
    victim = rng.choice(there)
    before, data = victim.stat(), bytearray(victim.read_bytes())
    whole = bytes(data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    victim.chmod(0o644)
    victim.write_bytes(data)
    assert verify(case).integrity is Integrity.ALTERED, victim
    victim.write_bytes(whole)
    victim.chmod(before.st_mode)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    return True


def completes(world: World, way: Written) -> None:
    """The same command once more gives the undisturbed answer and leaves nothing behind."""
    answer, undisturbed = world.reference(way)
    again = world.spike(*way.words, group=way.whole_group)
    if way.done_code is not None and again["code"] == way.done_code:
        again = {**undisturbed}
    assert again["code"] == way.code, (way.name, again)
    assert way.answer(parsed(again["stdout"]), world.cases) == answer
    assert world.litter() == []
    case = world.case()
    if case is not None:
        assert verify(case).integrity is Integrity.INTACT, verify(case)
        assert verify(case).unrecorded == ()
    assert world.trainers() == []
    assert way.name == "init" or world.has_untouched_run(finished=True)


def shares(total: int) -> list[int]:
    """Kills of each command, by weight."""
    weights = [way.weight for way in CHEAP]
    found = [total * weight // sum(weights) for weight in weights]
    return [share + (number < total - sum(found)) for number, share in enumerate(found)]


def points(rng: random.Random, operations: int, seconds: float, num: int) -> list[tuple[str, float]]:
    """Kill points: one in each equal part of the command, so that no phase is left out, and some by the clock."""
    num_timed = int(num * TIMED_SHARE)
    num_events = num - num_timed
    chosen = [("event", float(1 + int((i + rng.random()) * (operations - 1) / num_events))) for i in range(num_events)]
    return chosen + [("time", rng.uniform(0, seconds)) for _ in range(num_timed)]


def kill_many(worlds: dict[str, World], total: int, seed: int) -> Counter[str]:
    """Kill each command at its share of points; returns what was tried."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for way, share in zip(CHEAP, shares(total), strict=True):
        world = world_of(worlds, way)
        _answer, ended = world.reference(way)
        for mode, amount in points(rng, ended["operations"], ended["seconds"], share):
            world.restore(way)
            killed = world.spike(*way.words, mode=mode, amount=amount, group=way.whole_group)
            counts["tried"] += 1
            counts["killed"] += killed["killed"]
            counts["with a case"] += is_truthful(world)
            counts["damaged as well"] += is_alarmed_by_damage(world, rng)
            assert way.name == "init" or world.has_untouched_run(), (way.name, mode, amount)
            completes(world, way)
            counts[way.name] += 1
    return counts


def test_every_command_either_only_reads_or_is_killed_here() -> None:
    known = {way.command for way in (*CHEAP, *TRAINING)} | set(READ_ONLY) | set(OWN_DIRECTORY)
    assert set(typer.main.get_command(app).commands) == known  # type: ignore[attr-defined]


def test_commands_that_only_read_leave_run_and_case_as_they_are(worlds: dict[str, World]) -> None:
    world = worlds["whole"]
    report = next(way for way in CHEAP if way.name == "report")
    world.reference(report)
    before = state_of(world.cases)
    typed = [
        ("detect", "--json"),
        ("status", "--json"),
        ("verify", "--json"),
        ("show", "formats", "--json"),
        ("show", "tensor", "out/step-100", "--json"),
        ("watch", "--until-healthy", "0", "--every", "0.01", "--json"),
    ]
    assert {words[0] for words in typed} == set(READ_ONLY)
    for words in typed:
        ended = world.spike(*words)
        assert ended["code"] in (0, 1), (words, ended["code"], ended["stderr"][-500:])
        assert state_of(world.cases) == before, words
        assert world.has_untouched_run()


def test_every_writing_command_killed_at_random_points_is_completed_by_the_next(
    worlds: dict[str, World], capsys: pytest.CaptureFixture[str]
) -> None:
    total = DEFAULT_KILLS
    counts = kill_many(worlds, total, seed=1)
    with capsys.disabled():
        print(f"\nkills: {dict(counts)}, misses: 0")
    assert counts["tried"] == total
    assert counts["killed"] >= total * 8 // 10
    assert counts["with a case"] >= total * 6 // 10
    assert counts["damaged as well"] >= total // 3
    assert [counts[way.name] for way in CHEAP] == shares(total)


@pytest.mark.long
def test_every_writing_command_killed_at_very_many_points_is_completed_by_the_next(
    worlds: dict[str, World], capsys: pytest.CaptureFixture[str]
) -> None:
    counts = kill_many(worlds, KILLS, seed=KILLS)
    with capsys.disabled():
        print(f"\nkills: {dict(counts)}, misses: 0")
    assert counts["tried"] == KILLS
    assert counts["killed"] >= KILLS * 8 // 10


@pytest.fixture(scope="module")
def trained(place: Path, driver: Driver) -> World:
    """A run that really trains, a second and a half at a time."""
    world = World(place / "trained", driver, place / "key.pem")
    tiny_run.build(world.run)
    world.note_run()
    return world


def kill_training(world: World, way: Written, num_kills: int, rng: random.Random) -> int:
    """Kill a command that runs trials, while they run; nobody of them may outlive it."""
    _answer, ended = world.reference(way)
    killed = 0
    for _ in range(num_kills):
        world.restore(way)
        stopped = world.spike(*way.words, mode="time", amount=rng.uniform(0.1, 0.9) * ended["seconds"])
        killed += stopped["killed"]
        deadline = time.monotonic() + 30
        while world.trainers() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert world.trainers() == []
        assert is_truthful(world)
        assert world.has_untouched_run()
        completes(world, way)
    return killed


def test_a_command_killed_while_it_trains_leaves_no_process_and_goes_on(trained: World) -> None:
    replay = next(way for way in TRAINING if way.name == "replay")
    assert kill_training(trained, replay, 1, random.Random(5)) == 1


@pytest.mark.long
@pytest.mark.parametrize("way", TRAINING, ids=lambda way: way.name)
def test_every_command_that_trains_can_be_killed_anywhere(trained: World, way: Written) -> None:
    assert kill_training(trained, way, 5, random.Random(way.name)) >= 4
