"""Does the suspect batch do its harm in a healthy state too? It is put into a step far from the incident."""

from __future__ import annotations

from spike_probe.substitution import Substitution

NAME = "transplant"
FACTOR = "batch content"
SUMMARY = "The suspect batch is put into a step whose state is healthy."
PARAMETERS = ("donors",)
SPECIFIC = True


class Transplant(Substitution):
    """The whole batch of an acting step is the suspect one."""


INTERVENTION = Transplant
