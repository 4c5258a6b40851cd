"""Are these weights to blame? Those of another checkpoint take their place before the first forward."""

from __future__ import annotations

from typing import Optional

from spike_probe.donor_state import Forced, combined_digest, force_parameters, load_donor
from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange

NAME = "donor-parameters"
FACTOR = "checkpoint"
SUMMARY = "The model starts with the parameters of another checkpoint."
PARAMETERS = ("donor",)
SPECIFIC = True


class DonorParameters(Intervention):
    """`donor` is the path of a `spike.donor/1` file; checked again right before the first update."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._forced: Optional[Forced] = None
        self._before = ""

    def at_start(self, live: Live) -> None:
        self._before = combined_digest(tensor for _, tensor in live.named_parameters())
        self._forced = force_parameters(live, load_donor(str(self.parameters["donor"])))

    def before_first_update(self, live: Live) -> None:
        if self._forced is not None:
            after = combined_digest(tensor for _, tensor in live.named_parameters())
            live.effect("parameters", self._before, f"{after}: {self._forced.text()}", self._forced.is_in_place())


INTERVENTION = DonorParameters
