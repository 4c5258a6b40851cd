"""Would a healthy batch in the same place have done the same? The step's batch is replaced by a saved one."""

from __future__ import annotations

from spike_probe.substitution import Substitution

NAME = "control-batch"
FACTOR = "batch content"
SUMMARY = "The batch of the step is replaced, by content, by a batch from another step."
PARAMETERS = ("donors",)
SPECIFIC = True


class ControlBatch(Substitution):
    """The whole batch of an acting step is the donor's."""


INTERVENTION = ControlBatch
