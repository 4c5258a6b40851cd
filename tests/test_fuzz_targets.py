"""Does every reader of foreign files read or refuse, whatever is damaged, within time and memory?"""

from __future__ import annotations

import importlib.util
import random
import resource
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
DAMAGES = 40
"""Of each target in each run; `make fuzz` does millions."""
SLOWEST_S = 10.0
MOST_MEMORY_KB = 512 << 10
BOUNDARIES = (0, 1, 0x7F, 0x80, 0xFF)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_targets", FUZZ / "_targets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TARGETS = load()


def damaged(seed: bytes, rng: random.Random) -> bytes:
    """A cut, a run of changed bytes, a repeated or removed piece, or several of them."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at : at + length] = bytes(rng.choice(BOUNDARIES) for _ in range(length))
            case 2:
                data[at : at + length] = rng.randbytes(length)
            case 3:
                data[at:at] = data[at : at + length]
            case _:
                del data[at : at + length]
    return bytes(data)


def test_every_target_has_a_script_and_every_script_a_target() -> None:
    assert {path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py")} == set(TARGETS.TARGETS)


@pytest.mark.parametrize("name", sorted(TARGETS.TARGETS))
def test_a_damaged_file_is_read_or_refused_within_time_and_memory(name: str, tmp_path: Path) -> None:
    target = TARGETS.TARGETS[name]
    seeds = target.seeds(TARGETS.emptied(tmp_path / "seeds"))
    rng = random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tried = 0
    for seed in seeds:
        target.feed(seed, TARGETS.emptied(tmp_path / "work"))
    for number in range(DAMAGES):
        data = damaged(seeds[number % len(seeds)], rng)
        began = time.process_time()
        target.feed(data, TARGETS.emptied(tmp_path / "work"))
        assert time.process_time() - began < SLOWEST_S
        tried += 1
    assert tried == DAMAGES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY_KB
