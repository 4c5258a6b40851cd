import math

import pytest

from spike.domain.schedule import Schedule, first_departure


def cosine(last: int, *, peak: float = 1e-3, warm: int = 20, total: int = 400) -> dict[int, float]:
    def rate(s: int) -> float:
        if s <= warm:
            return peak * s / warm
        return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (s - warm) / (total - warm))))

    return {s: rate(s) for s in range(1, last + 1)}


def departure(rates: dict[int, float], *, healthy_until: int = 200, last: int = 230):  # type: ignore[no-untyped-def]
    return first_departure(list(rates), list(rates.values()), healthy_until=healthy_until, last=last)


@pytest.mark.parametrize("healthy_until", [10, 19, 100, 200, 300])
def test_a_smooth_schedule_never_departs_from_itself(healthy_until: int) -> None:
    assert departure(cosine(330), healthy_until=healthy_until, last=healthy_until + 8) is None


@pytest.mark.parametrize("factor", [20.0, 3.0, 0.3])
def test_a_jump_is_found_at_its_first_step_with_its_ratio(factor: float) -> None:
    rates = {s: r * (factor if s >= 215 else 1.0) for s, r in cosine(240).items()}
    found = departure(rates)
    assert found is not None
    assert found.step == 215
    assert found.ratio == pytest.approx(factor, rel=0.05)


def test_a_constant_rate_with_a_jump_is_found() -> None:
    found = departure({s: 1e-3 if s < 210 else 2e-3 for s in range(1, 240)})
    assert found is not None
    assert (found.step, found.expected) == (210, pytest.approx(1e-3))


def test_without_history_nothing_departs() -> None:
    assert departure(dict.fromkeys(range(205, 240), 0.001)) is None
    with pytest.raises(ValueError, match="at least one"):
        Schedule([], [])


def test_a_continuation_is_never_negative() -> None:
    assert Schedule([1, 2, 3], [3e-4, 2e-4, 1e-4]).at(50) == 0.0
