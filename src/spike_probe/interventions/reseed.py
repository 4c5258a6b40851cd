"""Does it take these random numbers? The generators are seeded anew; a cure proves little, chance cures too."""

from __future__ import annotations

import random
import sys

import torch

from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange
from spike_probe.rng import rng_digests

NAME = "reseed"
FACTOR = "rng"
SUMMARY = "The random number generators are seeded anew."
PARAMETERS = ("seed",)
SPECIFIC = False


class Reseed(Intervention):
    """Seeds python, numpy and torch once, before the first forward of the first acting step; `seed` plus rank."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._is_done = False

    def before_forward(self, live: Live, module: torch.nn.Module) -> None:
        if self._is_done:
            return
        self._is_done = True
        before = rng_digests()
        seed = int(self.parameters["seed"]) + live.rank
        random.seed(seed)
        torch.manual_seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        after = rng_digests()
        for name, digest in after.items():
            live.effect(f"rng.{name}", before.get(name, ""), digest, before.get(name) != digest)


INTERVENTION = Reseed
