"""Are these moments to blame? Those of another checkpoint take their place before the first update."""

from __future__ import annotations

from spike_probe.donor_state import all_moments, combined_digest, force_moments, load_donor
from spike_probe.intervention import Intervention, Live

NAME = "donor-moments"
FACTOR = "optimizer state"
SUMMARY = "The optimizer starts with the moments of another checkpoint."
PARAMETERS = ("donor",)
SPECIFIC = True


class DonorMoments(Intervention):
    """`donor` is the path of a `spike.donor/1` file."""

    def before_first_update(self, live: Live) -> None:
        before = combined_digest(all_moments(live))
        forced = force_moments(live, load_donor(str(self.parameters["donor"])))
        after = combined_digest(all_moments(live))
        live.effect("moments", before, f"{after}: {forced.text()}", forced.is_in_place())


INTERVENTION = DonorMoments
