"""What if the checkpoint had been loaded as it was saved? Parameters and moments are forced to what it really holds."""

from __future__ import annotations

from typing import Optional

from spike_probe.donor_state import (
    Forced,
    all_moments,
    combined_digest,
    force_moments,
    force_parameters,
    load_donor,
)
from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange

NAME = "intact-load"
FACTOR = "checkpoint"
SUMMARY = "Parameters and moments are forced to what the checkpoint really holds, on every rank."
PARAMETERS = ("donor",)
SPECIFIC = True


class IntactLoad(Intervention):
    """`donor` is the path of a `spike.donor/1` file made from the checkpoint itself."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._parameters: Optional[Forced] = None
        self._before = ""

    def at_start(self, live: Live) -> None:
        self._before = combined_digest(tensor for _, tensor in live.named_parameters())
        self._parameters = force_parameters(live, load_donor(str(self.parameters["donor"])))

    def before_first_update(self, live: Live) -> None:
        """One statement for both halves. It holds where the state is the checkpoint's, also if it was before: forcing
        what is there already is the placebo of every change of the loaded state."""
        assert self._parameters is not None
        moments_before = combined_digest(all_moments(live))
        moments = force_moments(live, load_donor(str(self.parameters["donor"])))
        parameters = self._parameters
        after = combined_digest(tensor for _, tensor in live.named_parameters())
        live.effect(
            "parameters and moments",
            f"{self._before} and {moments_before}",
            f"{after} ({parameters.text()}) and {combined_digest(all_moments(live))} ({moments.text()})",
            all(forced.holds() for forced in (parameters, moments)),
        )


INTERVENTION = IntactLoad
