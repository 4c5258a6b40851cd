"""Did the process load what the checkpoint holds? The load receipt, by content.

Live tensors and file tensors carry the same digest (docs/FORMATS.md), so names need not agree: a parameter is
loaded when its content is among the checkpoint's, a moment when it is the one of its own parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spike.domain.checkpoint import CheckpointScan, Role, TensorFacts
from spike.domain.measured import NotMeasured
from spike.domain.trace import Fingerprint, RankTrace, TensorPrint


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


def load_receipt(traces: Sequence[RankTrace], scan: CheckpointScan) -> Receipt | NotMeasured:
    """Compare each rank's state as loaded with the checkpoint's content.

    Sharded live state (FSDP, ZeRO) does not have the file's tensors: that is not measured, not a mismatch.
    """
    loaded = [(t, f) for t in traces for f in t.fingerprints if f.step == t.first_step]
    if not loaded:
        return NotMeasured("no trial fingerprinted the state as loaded")
    held = {t.digest for t in scan.tensors if isinstance(t.digest, str)}
    if not held:
        return NotMeasured("the checkpoint holds no tensor that could be digested")
    shapes = {t.shape for t in scan.tensors if t.role is Role.PARAMETER}
    live_shapes = {t.shape for _, f in loaded for t in f.tensors if t.role == "parameter"}
    if shapes and not live_shapes & shapes:
        return NotMeasured("live parameters have none of the checkpoint's shapes (sharded at run time)")
    parameters: list[Mismatch] = []
    moments: list[Mismatch] = []
    for trace, fingerprint in loaded:
        rank = trace.process.rank
        parameters += _parameter_mismatches(rank, fingerprint, held)
        moments += _moment_mismatches(rank, fingerprint, scan)
    counts = [sum(t.role == role for _, f in loaded for t in f.tensors) for role in ("parameter", "moment")]
    return Receipt(counts[0], counts[1], tuple(parameters), tuple(moments))


def _parameter_mismatches(rank: int, fingerprint: Fingerprint, held: set[str]) -> list[Mismatch]:
    return [
        Mismatch(rank, t.role, t.name, "", "its content is nowhere in the checkpoint")
        for t in fingerprint.tensors
        if t.role == "parameter" and t.digest not in held
    ]


def _moment_mismatches(rank: int, fingerprint: Fingerprint, scan: CheckpointScan) -> list[Mismatch]:
    stored = [t for t in scan.tensors if t.role is Role.MOMENT and t.shape]
    if not stored:
        return []
    live = [t for t in fingerprint.tensors if t.role == "moment" and t.shape]
    if not live:
        return [Mismatch(rank, "moment", "", "", "the checkpoint holds moments and the optimizer started with none")]
    by_place = {(t.name, t.key): t for t in stored}
    held = {t.digest for t in stored}
    found = []
    for tensor in live:
        counterpart = by_place.get((str(tensor.index), tensor.key)) or by_place.get((tensor.name, tensor.key))
        why = _moment_problem(tensor, counterpart, held)
        if why:
            found.append(Mismatch(rank, "moment", tensor.name, tensor.key, why))
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


def compare_rebuild(traces: Sequence[RankTrace], scan: CheckpointScan, *, step: int) -> Rebuild | NotMeasured:
    """Compare the state that a replay reached after `step` attempted steps with the checkpoint of that step.

    Only meaningful where the replay is licensed bit-exactly; the caller sees to that.
    """
    reached = next((f for t in traces for f in t.fingerprints if f.step == step), None)
    if reached is None:
        return NotMeasured(f"no trial reached step {step} with a fingerprint")
    held = {t.digest for t in scan.tensors if isinstance(t.digest, str)}
    stored_moments = [t for t in scan.tensors if t.role is Role.MOMENT and t.shape]
    by_place = {(t.name, t.key): t for t in stored_moments}
    parameters = tuple(t.name for t in reached.tensors if t.role == "parameter" and t.digest not in held)
    moments = []
    for tensor in reached.tensors:
        if tensor.role != "moment" or not tensor.shape or not stored_moments:
            continue
        counterpart = by_place.get((str(tensor.index), tensor.key)) or by_place.get((tensor.name, tensor.key))
        if _moment_problem(tensor, counterpart, {t.digest for t in stored_moments}):
            moments.append(f"{tensor.name or tensor.index}.{tensor.key}")
    return Rebuild(step, parameters, tuple(moments), len(reached.tensors))
