"""Is a small shift that never heals found once enough rows have passed, and nothing where there is none?"""

from __future__ import annotations

import numpy as np
import pytest
from bench.odd import healthy_records
from tests.domain.detect.curves import Values, signals

from spike.domain.detect import detect
from spike.domain.detect.constants import Constants
from spike.domain.detect.lasting import find_lasting
from spike.domain.detect.track import track
from spike.domain.incident import Kind, Severity


def long_run(rows: int, seed: int, noise: float = 0.01) -> Values:
    rng = np.random.default_rng(seed)
    return (2.0 + 4.0 * (1.0 + np.arange(rows) / 50.0) ** -0.5) * np.exp(noise * rng.standard_normal(rows))


@pytest.mark.parametrize("nats", [0.025, 0.03])
def test_a_shift_of_a_few_hundredths_of_a_nat_is_found_late_and_placed_well(nats: float) -> None:
    for seed in range(4):
        loss = long_run(10_000, seed)
        loss[5000:] += nats
        (found,) = detect(signals(np.arange(1, 10_001), loss)).incidents
        assert (found.kind, found.severity, found.recovered) == (Kind.LEVEL_SHIFT, Severity.LASTING, False)
        assert abs(found.onset_step - 5001) <= 200
        assert any("standard errors" in hint for hint in found.hints)


def test_a_hundredth_of_a_nat_is_found_in_a_smooth_long_run() -> None:
    found = 0
    for seed in range(4):
        loss = long_run(10_000, seed, noise=0.003)
        loss[6000:] += 0.012
        found += bool(detect(signals(np.arange(1, 10_001), loss)).incidents)
    assert found >= 3


def test_a_fall_leaves_no_echo_and_a_healthy_run_has_no_shift() -> None:
    rows = np.arange(6000)
    for seed in range(4):
        falling = long_run(6000, seed) * np.exp(-0.2 / (1.0 + np.exp((3000 - rows) / 30.0)))
        for loss in (long_run(6000, seed), falling):
            assert [i for i in detect(signals(rows, loss)).incidents if i.kind is Kind.LEVEL_SHIFT] == []


def test_no_healthy_record_of_any_shape_has_one() -> None:
    looked = 0
    for record in healthy_records(60, seed=81):
        if len(record.steps) > 600:
            made = track(record.signals().series[0], Constants())
            assert find_lasting(made, [], Constants()) == (), record.name
            looked += 1
    assert looked >= 20
