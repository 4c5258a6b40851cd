"""Did the process load what the checkpoint holds? The load receipt, by content.

Live tensors and file tensors carry the same digest (docs/FORMATS.md), so names need not agree: a parameter is
loaded when its content is among the checkpoint's, a moment when it is the one of its own parameter. A rank's shard of
a tensor is held against the same box of the checkpoint's, whose digest the caller brings (`Shards`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spike.domain.checkpoint import CheckpointScan, Role, TensorFacts
from spike.domain.measured import NotMeasured
from spike.domain.trace import Fingerprint, RankTrace, TensorPrint

Shards = Mapping[TensorPrint, str]
"""Digest of the checkpoint's bytes in the box that a live shard covers; shards without a counterpart are not in it."""
NO_SHARDS: Shards = {}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One live tensor that is not what the checkpoint holds."""

    rank: int
    role: str
    name: str
    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The comparison over all ranks."""

    num_parameters: int
    """Live parameters compared, over all ranks."""
    num_moments: int
    parameters: tuple[Mismatch, ...]
    moments: tuple[Mismatch, ...]

    @property
    def is_clean(self) -> bool:
        """True where every live tensor is the checkpoint's."""
        return not self.parameters and not self.moments


def load_receipt(
    traces: Sequence[RankTrace], scan: CheckpointScan, shards: Shards = NO_SHARDS
) -> Receipt | NotMeasured:
    """Compare each rank's state as loaded with the checkpoint's content.

    Sharded live state whose place in the whole is not known (ZeRO, FSDP before DTensor) does not have the file's
    tensors: that is not measured, not a mismatch.
    """
    loaded = [(t, f) for t in traces for f in t.fingerprints if f.step == t.first_step]
    if not loaded:
        return NotMeasured("no trial fingerprinted the state as loaded")
    unknown = _incomparable([t for _, f in loaded for t in f.tensors], scan, shards)
    if unknown:
        return NotMeasured(unknown)
    parameters: list[Mismatch] = []
    moments: list[Mismatch] = []
    for trace, fingerprint in loaded:
        rank = trace.process.rank
        parameters += _parameter_mismatches(rank, fingerprint, scan, shards)
        moments += _moment_mismatches(rank, fingerprint, scan, shards)
    counts = [sum(t.role == role for _, f in loaded for t in f.tensors) for role in ("parameter", "moment")]
    return Receipt(counts[0], counts[1], tuple(parameters), tuple(moments))


def _incomparable(live: Sequence[TensorPrint], scan: CheckpointScan, shards: Shards) -> str:
    """Why live state and checkpoint cannot be held against each other, or ""."""
    if not any(isinstance(t.digest, str) for t in scan.tensors):
        return "the checkpoint holds no tensor that could be digested"
    lost = [t for t in live if t.is_shard and t not in shards]
    if lost:
        name = ".".join(part for part in (lost[0].name, lost[0].key) if part)
        return f"{len(lost)} live shards have no counterpart in the checkpoint, first {name}"
    shapes = {t.shape for t in scan.tensors if t.role is Role.PARAMETER}
    live_shapes = {t.whole or t.shape for t in live if t.role == "parameter"}
    if shapes and not live_shapes & shapes:
        return "live parameters have none of the checkpoint's shapes (sharded at run time)"
    return ""


def _held(scan: CheckpointScan) -> set[str]:
    return {t.digest for t in scan.tensors if isinstance(t.digest, str)}


def _parameter_problem(tensor: TensorPrint, held: set[str], shards: Shards) -> str:
    if tensor.is_shard:
        return "" if shards[tensor] == tensor.digest else _other_shard(tensor)
    return "" if tensor.digest in held else "its content is nowhere in the checkpoint"


def _other_shard(tensor: TensorPrint) -> str:
    at = "x".join(map(str, tensor.offset))
    return f"its shard at {at} is not what the checkpoint holds there"


def _parameter_mismatches(rank: int, fingerprint: Fingerprint, scan: CheckpointScan, shards: Shards) -> list[Mismatch]:
    held = _held(scan)
    problems = [(t, _parameter_problem(t, held, shards)) for t in fingerprint.tensors if t.role == "parameter"]
    return [Mismatch(rank, t.role, t.name, "", why) for t, why in problems if why]


def _moment_mismatches(rank: int, fingerprint: Fingerprint, scan: CheckpointScan, shards: Shards) -> list[Mismatch]:
    stored = [t for t in scan.tensors if t.role is Role.MOMENT and t.shape]
    if not stored:
        return []
    live = [t for t in fingerprint.tensors if t.role == "moment" and (t.shape or t.is_shard)]
    if not live:
        return [Mismatch(rank, "moment", "", "", "the checkpoint holds moments and the optimizer started with none")]
    problems = [(t, why) for t, why in zip(live, _moment_problems(live, stored, shards), strict=True) if why]
    return [Mismatch(rank, "moment", t.name, t.key, why) for t, why in problems]


def _moment_problems(live: Sequence[TensorPrint], stored: Sequence[TensorFacts], shards: Shards) -> list[str]:
    by_place = {(t.name, t.key): t for t in stored}
    held = {t.digest for t in stored}
    found = []
    for tensor in live:
        if tensor.is_shard:
            found.append("" if shards[tensor] == tensor.digest else _other_shard(tensor))
            continue
        counterpart = by_place.get((str(tensor.index), tensor.key)) or by_place.get((tensor.name, tensor.key))
        found.append(_moment_problem(tensor, counterpart, held))
    return found


def _moment_problem(tensor: TensorPrint, counterpart: TensorFacts | None, held: set[str | NotMeasured]) -> str:
    if counterpart is not None and counterpart.shape == tensor.shape:
        if counterpart.digest == tensor.digest:
            return ""
        return "it is another parameter's" if tensor.digest in held else "its content is not the checkpoint's"
    return "" if tensor.digest in held else "its content is nowhere in the checkpoint"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """An earlier checkpoint's trajectory, replayed up to a later checkpoint, against that file's content."""

    step: int
    parameters: tuple[str, ...]
    """Names of parameters whose file content is not what the run's own history produces."""
    moments: tuple[str, ...]
    num_compared: int


def compare_rebuild(
    traces: Sequence[RankTrace], scan: CheckpointScan, *, step: int, shards: Shards = NO_SHARDS
) -> Rebuild | NotMeasured:
    """Compare the state that a replay reached after `step` attempted steps with the checkpoint of that step.

    Only meaningful where the replay is licensed bit-exactly; the caller sees to that.
    """
    reached = [f for t in traces for f in t.fingerprints if f.step == step]
    if not reached:
        return NotMeasured(f"no trial reached step {step} with a fingerprint")
    live = [t for f in reached for t in f.tensors]
    unknown = _incomparable(live, scan, shards)
    if unknown:
        return NotMeasured(unknown)
    held, stored = _held(scan), [t for t in scan.tensors if t.role is Role.MOMENT and t.shape]
    parameters = [t.name for t in live if t.role == "parameter" and _parameter_problem(t, held, shards)]
    own = [t for t in live if t.role == "moment" and (t.shape or t.is_shard)] if stored else []
    moments = [
        f"{t.name or t.index}.{t.key}" for t, why in zip(own, _moment_problems(own, stored, shards), strict=True) if why
    ]
    return Rebuild(step, tuple(dict.fromkeys(parameters)), tuple(dict.fromkeys(moments)), len(live))
