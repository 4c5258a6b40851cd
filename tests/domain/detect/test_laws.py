"""Which changes of a record must not change the answer? Scale, step offset, rank order, clean rows behind."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.detect.curves import Values, learning, signals

from spike.domain.detect import detect, exceeds, excess
from spike.domain.detect.baseline import Baseline
from spike.domain.detect.constants import Constants
from spike.domain.errors import SpikeError
from spike.domain.incident import Kind, Signature
from spike.domain.signals import Series, Signals

seeds = st.integers(0, 10_000)


def spiked(seed: int, rows: int = 260) -> tuple[Values, Values, Values]:
    steps, loss, norm = learning(rows, seed=seed)
    loss[200] *= 1.7
    norm[198:203] *= 7.0
    return steps, loss, norm


@settings(max_examples=25, deadline=None)
@given(seed=seeds, factor=st.floats(1e-4, 1e4))
def test_a_loss_in_other_units_gives_the_same_incidents(seed: int, factor: float) -> None:
    steps, loss, norm = spiked(seed)
    plain = detect(signals(steps, loss, norm)).incidents
    scaled = detect(signals(steps, loss * factor, norm * factor)).incidents
    assert [(i.kind, i.onset_step, i.first_signal) for i in scaled] == [
        (i.kind, i.onset_step, i.first_signal) for i in plain
    ]


@settings(max_examples=25, deadline=None)
@given(seed=seeds, offset=st.integers(0, 40))
def test_counting_steps_from_elsewhere_moves_the_incidents_and_nothing_else(seed: int, offset: int) -> None:
    steps, loss, norm = spiked(seed)
    plain = detect(signals(steps, loss, norm)).incidents
    moved = detect(signals(steps + offset, loss, norm)).incidents
    assert [(i.kind, i.onset_step - offset, i.severity) for i in moved] == [
        (i.kind, i.onset_step, i.severity) for i in plain
    ]


@settings(max_examples=12, deadline=None)
@given(seed=seeds, order=st.permutations(range(4)))
def test_the_order_in_which_ranks_were_read_does_not_matter(seed: int, order: list[int]) -> None:
    made = []
    for rank in range(4):
        steps, loss, norm = spiked(seed + rank) if rank == 1 else learning(260, seed=seed + rank)
        made += [[Series("loss", steps, loss, rank), Series("grad_norm", steps, norm, rank)]]
    plain = detect(Signals(tuple(s for rank in range(4) for s in made[rank])))
    shuffled = detect(Signals(tuple(s for rank in order for s in made[rank])))
    assert [(i.onset_step, i.rank, i.kind) for i in shuffled.incidents] == [
        (i.onset_step, i.rank, i.kind) for i in plain.incidents
    ]


@settings(max_examples=15, deadline=None)
@given(seed=seeds, size=st.floats(1.0, 3.0))
def test_an_outlier_never_enters_the_baseline(seed: int, size: float) -> None:
    steps, loss, _ = learning(320, seed=seed)
    loss[260] *= 1.8
    # A row before may stand out by itself, and is then the onset.
    later = [i for i in detect(signals(steps, loss)).incidents if i.peak_step == 261]
    polluted = loss.copy()
    polluted[150:158] *= math.exp(size)
    polluted[170] = math.nan
    same = [i for i in detect(signals(steps, polluted)).incidents if i.peak_step == 261]
    assert later
    assert same
    assert math.isclose(later[0].signatures[0].centre, same[0].signatures[0].centre, abs_tol=0.03)
    assert same[0].signatures[0].scale < 1.5 * later[0].signatures[0].scale


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=60),
    norms=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=60),
)
def test_no_record_makes_the_detector_raise(values: list[float], norms: list[float]) -> None:
    rows = min(len(values), len(norms))
    found = detect(signals(np.arange(rows), np.asarray(values[:rows]), np.asarray(norms[:rows])))
    for incident in found.incidents:
        assert incident.signatures
        assert incident.onset_step <= max(s.last_step for s in incident.signatures)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_every_signature_of_an_incident_accepts_its_own_peak(seed: int) -> None:
    steps, loss, norm = spiked(seed)
    for incident in detect(signals(steps, loss, norm)).incidents:
        for signature in incident.signatures:
            assert exceeds(signature, signature.peak_value)
            assert math.isclose(excess(signature, signature.peak_value), 1.0, rel_tol=1e-9)


def signature(**changes: object) -> Signature:
    plain = Signature("loss", Kind.SPIKE, "log", math.log(2.0), 0.02, 0.12, 1, 221, 221, 4.0, 223)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_the_excess_is_a_share_of_the_incidents_own_distance() -> None:
    assert excess(signature(), 2.0) == 0.0
    assert math.isclose(excess(signature(), math.sqrt(8.0)), 0.5)
    assert not exceeds(signature(), 2.2)
    assert exceeds(signature(), 2.3)
    assert excess(signature(), math.nan) == math.inf
    assert exceeds(signature(), math.inf)


def test_a_drop_is_measured_downward_and_a_zero_is_infinitely_deep() -> None:
    drop = signature(direction=-1, peak_value=1.0, kind=Kind.DROP)
    assert exceeds(drop, 1.0)
    assert not exceeds(drop, 4.0)
    assert excess(drop, 0.0) == math.inf


def test_a_finite_value_is_not_the_return_of_a_non_finite_incident_unless_it_is_far_out() -> None:
    lost = signature(kind=Kind.NON_FINITE, peak_value=math.nan, threshold=0.2)
    assert excess(lost, 2.1) == 0.0
    assert excess(lost, 4.0) > 1.0
    assert excess(lost, math.nan) == math.inf


def test_a_constant_is_changed_by_name_and_an_unknown_name_is_refused() -> None:
    steps, loss, norm = spiked(0)
    assert detect(signals(steps, loss, norm), constants={"min_sigmas": 90.0, "max_sigmas": 99.0}).incidents == ()
    with pytest.raises(SpikeError, match="'min_sigma'") as refused:
        detect(signals(steps, loss, norm), constants={"min_sigma": 9.0})
    assert "min_sigmas" in refused.value.hint


def test_a_baseline_forecasts_a_line_and_measures_its_own_errors() -> None:
    rng = np.random.default_rng(0)
    baseline = Baseline(Constants(), prior=0.08, floor=0.0)
    for row in range(300, 500):
        y = 1.0 + 0.01 * row + 0.05 * float(rng.standard_normal())
        forecast = baseline.forecast(row)
        baseline.accept(row, y, None if math.isnan(forecast.centre) else y - forecast.centre)
    last = baseline.forecast(500)
    assert abs(last.centre - 6.0) < 0.05
    assert 0.035 < last.scale < 0.07
