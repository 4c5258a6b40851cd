"""One driver and one set of small runs for all crash tests: imports and undisturbed commands are paid for once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.casefile.test_signing import write_keys
from tests.crash.world import Driver, World, describe, write_run


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory: a kill is no power cut, what the kernel has is safe, and thousands of fsyncs only take time."""
    shared = Path("/dev/shm")
    in_memory = os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 1 << 30
    place = Path(tempfile.mkdtemp(prefix="spike-crash-", dir=shared)) if in_memory else tmp_path_factory.mktemp("crash")
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def driver(place: Path) -> Iterator[Driver]:
    """Has everything imported."""
    driver = Driver(place / "scratch")
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def worlds(place: Path, driver: Driver) -> dict[str, World]:
    """A run with checkpoints, one with logs alone, and one without a description."""
    private, _public = write_keys(place)
    made = {}
    for name, steps in (("whole", (100, 150, 200, 250)), ("logs", ()), ("bare", (100, 200))):
        world = World(place / name, driver, private)
        write_run(world.run, steps)
        if name != "bare":
            describe(world.run)
            world.note_run()
        made[name] = world
    return made
