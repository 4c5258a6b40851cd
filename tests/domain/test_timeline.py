"""Is the cost counted from what was measured, and left unmeasured otherwise?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spike.domain.case import CaseFacts, PinnedCheckpoint
from spike.domain.incident import Incident, Kind, Severity, Signature
from spike.domain.journal import JournalEntry
from spike.domain.measured import NotMeasured
from spike.domain.run import Prices, Run
from spike.domain.signals import Series, Signals
from spike.domain.timeline import (
    StepTime,
    acts,
    count_impact,
    first_word,
    last_logged_step,
    logged_step_time,
    moments,
    replayed_step_time,
    seconds_between,
)

SIGNATURE = Signature("grad_norm", Kind.SPIKE, "log", 0.0, 0.1, 1.0, 1, 48_200, 48_200, 12.0, 48_400)
INCIDENT = Incident(Kind.SPIKE, Severity.LASTING, 48_200, 48_400, "grad_norm", 200, 30.0, False, None, (SIGNATURE,))
CASE = CaseFacts(
    id="c",
    created="2026-11-30T00:00:00Z",
    operator="ada",
    spike_version="0.1.0",
    run=Run("/run", devices=1024, prices=Prices(2.0, "EUR")),
    incident=INCIDENT,
    last_good=PinnedCheckpoint(48_000, "/run/48000", "evidence/pinned/48000", "copy"),
)


def series(name: str, values: list[float], first: int = 1) -> Series:
    return Series(name, np.arange(first, first + len(values)), np.array(values, dtype=np.float64))


def test_a_divergence_just_before_a_save_costs_what_the_textbook_says() -> None:
    # 1024 GPUs x 3 s x 2000 steps = about 1,707 GPU-hours
    impact = count_impact(CASE, 50_000, StepTime(3.0, "x", "y"), ())
    assert impact.steps == 2_000
    assert impact.steps_after_onset == 1_800
    assert impact.hours == pytest.approx(6_000 / 3_600)
    assert impact.device_hours == pytest.approx(1_706.67, abs=0.01)
    assert impact.price == pytest.approx(3_413.33, abs=0.01)


@pytest.mark.parametrize(
    ("case", "last", "step_time", "reason"),
    [
        (CASE, None, StepTime(3.0), "no signal was logged"),
        (replace(CASE, last_good=None), 50_000, StepTime(3.0), "no good checkpoint"),
        (CASE, 50_000, StepTime(NotMeasured("nobody timed it")), "nobody timed it"),
        (replace(CASE, run=Run("/run", devices=0)), 50_000, StepTime(3.0), "world size"),
    ],
)
def test_a_missing_fact_leaves_the_cost_unmeasured_with_that_reason(
    case: CaseFacts, last: int | None, step_time: StepTime, reason: str
) -> None:
    impact = count_impact(case, last, step_time, ())
    for cost in (impact.device_hours, impact.price) if case.run.prices.gpu_hour else (impact.device_hours,):
        assert isinstance(cost, NotMeasured)
        assert reason in cost.not_measured


def test_without_a_price_the_hours_still_count() -> None:
    impact = count_impact(replace(CASE, run=Run("/run", devices=8)), 50_000, StepTime(3.6), ())
    assert impact.device_hours == pytest.approx(16.0)
    assert isinstance(impact.price, NotMeasured)


@pytest.mark.parametrize(
    ("name", "values", "seconds"),
    [
        ("elapsed time per iteration (ms)", [2_000.0, 2_100.0, 2_200.0], 2.1),
        ("elapsed time per iteration (s)", [2.0, 2.1, 2.2], 2.1),
        ("step_time_s", [2.0, 2.1, float("nan"), 2.2], 2.1),
        ("iter_time_ms", [2_100.0], 2.1),
    ],
)
def test_a_column_that_names_its_unit_tells_the_time_of_a_step(name: str, values: list[float], seconds: float) -> None:
    found = logged_step_time(Signals((series(name, values),)), None)
    assert found is not None
    assert found.seconds == pytest.approx(seconds)
    assert repr(name) in found.how


@pytest.mark.parametrize("name", ["step_time", "train_time", "step_avg", "time_steps", "samples per second", "loss"])
def test_a_column_without_a_unit_is_not_used(name: str) -> None:
    assert logged_step_time(Signals((series(name, [2.0, 2.0]),)), None) is None


def test_only_healthy_steps_tell_the_time_of_a_step() -> None:
    slow_after = series("step_time_s", [2.0, 2.0, 2.0, 60.0, 60.0, 60.0, 60.0])
    found = logged_step_time(Signals((slow_after,)), before_step=4)
    assert found is not None
    assert found.seconds == 2.0


def test_the_first_replayed_step_pays_for_the_start_and_is_left_out() -> None:
    assert replayed_step_time([90.0, 3.0, 3.2, 3.1], "trials/T001/trace").seconds == pytest.approx(3.1)
    assert isinstance(replayed_step_time([90.0], "x").seconds, NotMeasured)


def test_the_course_of_the_run_is_in_the_order_of_steps() -> None:
    found = moments(replace(CASE, suspect=(PinnedCheckpoint(49_000, "/run/49000", "p", "copy"),)), 50_000)
    assert [(m.step, m.what) for m in found] == [
        (48_000, "last good checkpoint"),
        (48_200, "grad_norm leaves its baseline first"),
        (48_400, "peak"),
        (49_000, "suspect checkpoint"),
        (50_000, "last step on record"),
    ]


def test_looking_at_a_case_leaves_no_trace_in_its_timeline() -> None:
    commands = ("case", "freeze", "status", "spike report --json", "trial T001-replay", "verify", "walk", "bisect")
    journal = [
        JournalEntry(n, "2026-11-30T00:00:00Z", "ada", "box", c, "", 0, (), "", "") for n, c in enumerate(commands, 1)
    ]
    assert [(a.line, a.command) for a in acts(journal)] == [
        (1, "case"),
        (2, "freeze"),
        (5, "trial T001-replay"),
        (8, "bisect"),
    ]


def test_a_command_is_known_by_its_first_word() -> None:
    assert first_word("spike replay --step 222") == "replay"
    assert first_word("replay") == "replay"
    assert first_word("") == ""


def test_the_last_logged_step_is_that_of_the_longest_signal() -> None:
    assert last_logged_step(Signals((series("a", [1.0] * 5), series("b", [1.0] * 3, first=9)))) == 11
    assert last_logged_step(Signals()) is None
    assert last_logged_step(None) is None


def test_seconds_are_counted_across_the_spellings_of_utc() -> None:
    assert seconds_between("2026-11-30T03:15:02Z", "2026-11-30T03:16:02+00:00") == 60
