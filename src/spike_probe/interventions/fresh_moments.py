"""Is the optimizer's memory to blame? Its state is dropped before the first update; that attenuates many spikes."""

from __future__ import annotations

from spike_probe.donor_state import all_moments, combined_digest
from spike_probe.intervention import Intervention, Live

NAME = "fresh-moments"
FACTOR = "optimizer state"
SUMMARY = "The optimizer starts without moments."
PARAMETERS = ()
SPECIFIC = False


class FreshMoments(Intervention):
    """Clears the state of every optimizer, step counts included."""

    def before_first_update(self, live: Live) -> None:
        before = all_moments(live)
        text = f"{len(before)} tensors {combined_digest(before)}" if before else "no moments: nothing to drop"
        for optimizer in live.optimizers():
            optimizer.state.clear()
        left = len(all_moments(live))
        live.effect("moments", text, f"{left} tensors", bool(before) and left == 0)


INTERVENTION = FreshMoments
