"""Does a smaller step soften it? All learning rates are multiplied by one number; that attenuates almost any spike."""

from __future__ import annotations

from typing import Optional

from spike_probe.learning_rate import RateChange

NAME = "scaled-lr"
FACTOR = "learning rate"
SUMMARY = "All learning rates are multiplied by one number."
PARAMETERS = ("scale",)
SPECIFIC = False


class ScaledRate(RateChange):
    """`scale` is the factor."""

    def factor(self, step: int, rate: float) -> Optional[float]:
        return float(self.parameters["scale"])


INTERVENTION = ScaledRate
