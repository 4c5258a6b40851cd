from dataclasses import replace

import numpy as np

from spike.domain.signals import GRAD_NORM, LOSS, Signals
from spike.domain.trace import MicroBatch
from spike.domain.traced import completed, equal_in_every_bit, renumbered
from tests.domain.trial_facts import series, signals, step, trace

STEPS = [step(s, loss=2.0 + 0.0123457 * s, grad_norm=0.5 + 0.00321987 * s) for s in range(11, 20)]


def rounded(name: str, digits: int, values: dict[int, float]) -> Signals:
    return Signals(series=(series(name, {s: float(f"{v:.{digits}g}") for s, v in values.items()}, digits=digits),))


def test_a_signal_that_the_log_lacks_comes_from_the_trace() -> None:
    found = completed(signals(loss={s.step: s.loss for s in STEPS}), [trace(STEPS)], offset=0)
    norms = found.get(GRAD_NORM)
    assert norms is not None
    assert norms.source == "trace"
    assert norms.at(15) == STEPS[4].grad_norm


def test_an_unrounded_record_that_the_trace_equals_is_found_although_the_console_rounds() -> None:
    record = signals(loss={s.step: s.loss for s in STEPS}, grad_norm={s.step: s.grad_norm + 1e-9 for s in STEPS})
    assert equal_in_every_bit(record, [trace(STEPS)], offset=0, first=11, last=19) == (LOSS,)
    assert equal_in_every_bit(record, [trace(STEPS)], offset=0, first=11, last=30) == (LOSS,)
    assert equal_in_every_bit(record, [trace(STEPS[:4])], offset=0, first=11, last=19) == ()


def test_a_rounded_record_is_never_equal_in_every_bit() -> None:
    record = rounded(LOSS, 4, {s.step: s.loss for s in STEPS})
    assert equal_in_every_bit(record, [trace(STEPS)], offset=0, first=11, last=19) == ()


def test_micro_batches_that_add_up_to_the_logged_loss_are_added_up() -> None:
    def halves(one):  # type: ignore[no-untyped-def]
        half = MicroBatch(one.loss / 2, "b", 8, 8, 4)
        return replace(one, micro_batches=(half, half), loss=one.loss)

    record = signals(loss={s.step: s.loss for s in STEPS})
    traces = [trace([halves(s) for s in STEPS])]
    assert equal_in_every_bit(record, traces, offset=0, first=11, last=19) == (LOSS,)


def test_rows_without_a_step_are_put_onto_the_recorded_steps_after_the_checkpoint() -> None:
    record = signals(loss=dict.fromkeys(range(2, 61, 2), 3.0))
    found = renumbered(signals(loss={1: 2.1, 2: 2.2, 3: 2.3}), record, first_step=40).get(LOSS)
    assert found is not None
    assert np.array_equal(found.steps, [42, 44, 46])


def test_rows_beyond_the_record_are_dropped() -> None:
    record = signals(loss=dict.fromkeys(range(1, 43), 3.0))
    found = renumbered(signals(loss={1: 2.1, 2: 2.2, 3: 2.3}), record, first_step=40).get(LOSS)
    assert found is not None
    assert list(found.steps) == [41, 42]
