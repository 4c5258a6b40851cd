"""Does the anomaly go when the learning rate is what the schedule says? The rate of a step is set to that value."""

from __future__ import annotations

from typing import Optional

from spike_probe.learning_rate import RateChange
from spike_probe.plan import PlannedChange

NAME = "scheduled-lr"
FACTOR = "learning rate"
SUMMARY = "The learning rate of each step is set to what the schedule says."
PARAMETERS = ("lr",)
SPECIFIC = True


class ScheduledRate(RateChange):
    """`lr` lists "step:value", the value being that of the first group; the others keep their ratio to it."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        pairs = (str(text).split(":", 1) for text in change.parameters["lr"])
        self._schedule = {int(step): float(value) for step, value in pairs}

    def factor(self, step: int, rate: float) -> Optional[float]:
        wanted = self._schedule.get(step)
        if wanted is None:
            return None
        if rate == 0.0:
            raise ValueError(f"the learning rate of step {step} is 0: no factor leads from there to {wanted}")
        return wanted / rate


INTERVENTION = ScheduledRate
