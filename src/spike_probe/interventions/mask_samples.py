"""Which samples of the batch are it? All but the kept ones are replaced by those of a donor batch.

A sample is one row of the leading dimension, counted over the micro-batches of the step on this rank. A tensor with a
multiple of that many rows (targets flattened over tokens) has as many rows for each sample.
"""

from __future__ import annotations

from typing import Optional

import torch

from spike_probe.batches import MicroBatch
from spike_probe.intervention import Live
from spike_probe.plan import PlannedChange
from spike_probe.substitution import Refused, Substitution, common_leading_dimension

NAME = "mask-samples"
FACTOR = "batch content"
SUMMARY = "All samples of the step's batch but the kept ones are replaced by those of another batch."
PARAMETERS = ("donors", "keep")
SPECIFIC = True


class MaskSamples(Substitution):
    """Blends the step's own batch with a donor, sample by sample."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._keep = frozenset(int(sample) for sample in change.parameters["keep"])
        self._first = 0
        self._num_samples = 0

    def first_site(self, live: Live, micro: MicroBatch, tensors: list[torch.Tensor]) -> None:
        if micro.index == 0:
            self._first = 0
        else:
            self._first += self._num_samples
        count = common_leading_dimension(tensors)
        if count is None:
            raise Refused("the tensors of the batch have no leading dimension in common: samples cannot be told apart")
        self._num_samples = count

    def blend(self, live: Live, micro: MicroBatch, own: torch.Tensor, donor: torch.Tensor) -> torch.Tensor:
        if not own.dim() or own.shape[0] % self._num_samples:
            return own
        rows = own.shape[0] // self._num_samples
        blended = own.clone()
        for sample in range(self._num_samples):
            if self._first + sample not in self._keep:
                blended[sample * rows : (sample + 1) * rows].copy_(donor[sample * rows : (sample + 1) * rows])
        return blended

    def expected(self) -> Optional[str]:
        return None


INTERVENTION = MaskSamples
