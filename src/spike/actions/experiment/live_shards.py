"""What does the checkpoint hold in the box that a rank's live shard covers? Digested as the live one is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from spike.domain.checkpoint import Checkpoint
from spike.domain.trace import RankTrace, TensorPrint
from spike.readers.checkpoints import box_digest, lazy_tensors
from spike.readers.checkpoints.contract import LazyTensor


def shard_digests(traces: Sequence[RankTrace], checkpoint: Checkpoint, *, step: int) -> dict[TensorPrint, str]:
    """Digests for every shard in the fingerprints of this step; shards without a counterpart by name are left out.

    Reads whole tensors of the checkpoint, one a shard, and only where something is sharded. Raises
    `InputUnreadable`.
    """
    live = {p for t in traces for f in t.fingerprints if f.step == step for p in f.tensors if p.is_shard}
    wanted: dict[tuple[str, str, tuple[int, ...]], list[TensorPrint]] = defaultdict(list)
    for shard in live:
        wanted[shard.role, shard.key, shard.whole].append(shard)
    found: dict[TensorPrint, str] = {}
    if not wanted:
        return found
    for tensor in lazy_tensors(checkpoint):
        own = wanted.get((tensor.role.value, tensor.key, tensor.shape), ())
        found |= {s: box_digest(tensor, s.offset, s.shape) for s in own if s not in found and _is_of(s, tensor)}
    return found


def _is_of(shard: TensorPrint, tensor: LazyTensor) -> bool:
    """True for the tensor of this name: a checkpoint may put a prefix ("model.") before it."""
    return bool(shard.name) and (tensor.name == shard.name or tensor.name.endswith(f".{shard.name}"))
