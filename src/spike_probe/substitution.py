"""How does another batch get into a step? By content, at the places where the step's own batch arrives.

Every tensor of the saved batch takes the place of the one that arrived at the same site, if shape and type are
equal; anything else is refused with its reason and the step runs as it was.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from spike_probe.batches import MicroBatch
from spike_probe.digests import batch_digest, dtype_name, tensor_digest
from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange

UNTOUCHED = "untouched: the change is for other ranks"


class DonorBatches:
    """Saved batches by the place they go to, from texts "step:micro:rank:path"."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._paths: dict[tuple[int, int, int], str] = {}
        for text in texts:
            step, micro, rank, path = text.split(":", 3)
            self._paths[int(step), int(micro), int(rank)] = path

    def num_micros(self, step: int, rank: int) -> int:
        """Micro-batches that are there for this step and rank."""
        return sum(1 for at_step, _, at_rank in self._paths if (at_step, at_rank) == (step, rank))

    def is_for(self, rank: int) -> bool:
        """True where any donor is meant for this rank; the others keep their batches."""
        return any(at_rank == rank for _, _, at_rank in self._paths)

    def sites(self, step: int, micro: int, rank: int) -> list[list[torch.Tensor]]:
        """Tensors by site; KeyError where there is no such donor, ValueError where the file is something else."""
        path = self._paths[step, micro, rank]
        batch = torch.load(path, map_location="cpu", weights_only=True)
        if batch.get("schema") != "spike.batch/1":
            raise ValueError(f"{path} is no spike.batch/1 file")
        return [list(site["tensors"]) for site in batch["sites"]]


class Refused(Exception):
    """A batch that cannot take the other's place; the message says why."""


class Substitution(Intervention):
    """Replaces the batches of the acting steps by donors; `blend` decides how much of each tensor."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self.donors = DonorBatches(tuple(change.parameters["donors"]))
        self._refused_step: Optional[int] = None
        self._sites: list[list[torch.Tensor]] = []
        self._arrived: list[str] = []
        """Tensor digests of the step's own batch, as it arrived."""
        self.num_changed = 0
        """Micro-batches of the step in progress that were changed."""

    def blend(self, live: Live, micro: MicroBatch, own: torch.Tensor, donor: torch.Tensor) -> torch.Tensor:
        """What takes the place of `own`: the donor's content on the same device, laid out in memory as `own`."""
        return torch.empty_like(own).copy_(donor)

    def first_site(self, live: Live, micro: MicroBatch, tensors: list[torch.Tensor]) -> None:
        """A micro-batch begins to arrive."""

    def expected(self) -> Optional[str]:
        """Batch digest that must have reached the model; None: any other than the step's own."""
        return batch_digest([tensor_digest(tensor) for site in self._sites for tensor in site])

    def substitute(
        self, live: Live, micro: MicroBatch, site: int, tensors: list[torch.Tensor]
    ) -> Optional[list[torch.Tensor]]:
        if self._refused_step == live.step or not self.donors.is_for(live.rank):
            return None
        try:
            if site == 0:
                self._begin(live, micro, tensors)
            self._arrived += [tensor_digest(tensor) for tensor in tensors]
            donors = self._donors_of(site, tensors)
        except Refused as reason:
            self._refuse(live, str(reason))
            return None
        return [self.blend(live, micro, own, donor) for own, donor in zip(tensors, donors)]

    def after_backward(self, live: Live, micro: MicroBatch) -> None:
        if self._refused_step == live.step or not self._arrived:
            return
        before, after, expected = batch_digest(self._arrived), micro.digest(), self.expected()
        is_changed = after != before and expected in (None, after)
        if expected is None and after == before:
            return  # this micro-batch was to stay as it was; `after_step` asks for the whole step
        self.num_changed += 1
        is_partial = not is_changed and after != before
        note = f" (the donor has {len(self._sites)} sites, {len(micro.sites)} were seen)" if is_partial else ""
        live.effect(f"batch.{micro.index}", before, f"{after}{note}", is_changed)

    def after_step(self, live: Live) -> None:
        if not self.donors.is_for(live.rank):
            live.effect("batch", "the step's own", UNTOUCHED, True)
            return
        wanted = self.donors.num_micros(live.step, live.rank)
        seen = live.num_micro_batches() or 0
        if self._refused_step != live.step and seen < wanted:
            self._refuse(live, f"the step had {seen} micro-batches on rank {live.rank}, the donor has {wanted}")
        elif self._refused_step != live.step and not self.num_changed:
            self._refuse(live, "nothing of the batch was replaced")
        self.num_changed = 0

    def _begin(self, live: Live, micro: MicroBatch, tensors: list[torch.Tensor]) -> None:
        wanted, usual = self.donors.num_micros(live.step, live.rank), live.num_micro_batches()
        if not wanted:
            raise Refused(f"there is no donor for step {live.step} on rank {live.rank}")
        if micro.index >= wanted or (usual is not None and micro.index == 0 and usual != wanted):
            count = usual if usual is not None and micro.index == 0 else micro.index + 1
            raise Refused(f"steps have {count} micro-batches on rank {live.rank}, the donor has {wanted}")
        self._arrived = []
        try:
            self._sites = self.donors.sites(live.step, micro.index, live.rank)
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise Refused(f"the donor of micro-batch {micro.index} cannot be read: {error}") from error
        self.first_site(live, micro, tensors)

    def _donors_of(self, site: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if site >= len(self._sites) or len(self._sites[site]) != len(tensors):
            found = len(self._sites[site]) if site < len(self._sites) else 0
            raise Refused(f"site {site} received {len(tensors)} tensors, the donor has {found} for it")
        for own, donor in zip(tensors, self._sites[site]):
            if own.shape != donor.shape or own.dtype != donor.dtype:
                raise Refused(f"site {site} received {_kind(own)}, the donor is {_kind(donor)}")
        return self._sites[site]

    def _refuse(self, live: Live, reason: str) -> None:
        self._refused_step = live.step
        live.effect("batch", "the step's own", f"refused: {reason}", False)


def _kind(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"


def common_leading_dimension(tensors: list[torch.Tensor]) -> Optional[int]:
    """Number of samples of the first site, where all its tensors agree on one."""
    leading: set[Any] = {tensor.shape[0] for tensor in tensors if tensor.dim()}
    return leading.pop() if len(leading) == 1 else None
