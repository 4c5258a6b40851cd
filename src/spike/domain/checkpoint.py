"""What is in a checkpoint, and can it be trusted? Facts about files, never about live objects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spike.domain.measured import NotMeasured


class Integrity(StrEnum):
    """What can be said of a checkpoint's bytes without running anything in it."""

    COMPLETE = "complete"
    TORN = "torn"
    OVERWRITTEN = "overwritten in place"
    CORRUPT = "corrupt"
    UNVERIFIABLE = "unverifiable"


class Role(StrEnum):
    """What a tensor is for; a load receipt compares each with its live counterpart."""

    PARAMETER = "parameter"
    """Model state: parameters and persistent buffers."""
    MOMENT = "moment"
    """Optimizer state that belongs to one parameter (exp_avg, step, momentum_buffer, ...)."""
    OTHER = "other"
    """RNG state, scheduler tensors and whatever else a stack stores."""


NOT_COUNTED = NotMeasured("recorded before saturation was counted")


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor of a checkpoint, named as the file names it."""

    role: Role
    name: str
    """Parameter name; for a moment the parameter's name if the file has it, else its index as text."""
    key: str
    """Which moment ("exp_avg"); "" for parameters."""
    dtype: str
    """As torch prints it without the prefix: float32, bfloat16, float8_e4m3fn, int64."""
    shape: tuple[int, ...]
    file: str
    """File inside the checkpoint, relative POSIX."""
    digest: str | NotMeasured
    """SHA-256 of dtype, shape and bytes, docs/FORMATS.md "Tensor digest"."""
    num_nonfinite: int | NotMeasured
    absmax: float | NotMeasured
    """Largest finite magnitude."""
    l2: float | NotMeasured
    num_zeros: int | NotMeasured
    num_subnormal: int | NotMeasured
    num_saturated: int | NotMeasured = NOT_COUNTED
    """Elements of the largest finite magnitude of their type; not measured for types that do not saturate."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One generation on disk."""

    path: str
    """Absolute path of the file or directory."""
    layout: str
    """Which reader understood it: "torch-zip", "hf-trainer", "safetensors", "dcp", ..."""
    step: int | NotMeasured
    """Attempted optimizer steps taken when it was written."""
    integrity: Integrity
    reason: str
    """Why the integrity is what it is, naming the file; "" when complete."""
    num_tensors: int
    num_bytes: int
    mtime_ns: int
    """Newest modification time of its files."""
    missing: tuple[str, ...] = ()
    """Recovery state that is not there: optimizer, scheduler, scaler, rng, data-cursor."""
    strays: tuple[str, ...] = ()
    """Files that a loader would ignore."""
    config: tuple[tuple[str, str], ...] = ()
    """Configuration stored inside it, flattened to dotted keys, values as JSON text."""
    scalars: tuple[tuple[str, float], ...] = ()
    """Numbers stored inside it, by dotted key: lr, iter_num, last_epoch, optimizer.param_groups.0.lr."""

    @property
    def is_whole(self) -> bool:
        """True where a loader would get everything that was saved."""
        return self.integrity is Integrity.COMPLETE


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """What reading every byte of a checkpoint found."""

    path: str
    tensors: tuple[TensorFacts, ...]
    unreadable: tuple[tuple[str, str], ...] = ()
    """(file or member, reason); anything here means the checkpoint is never called clean."""

    def nonfinite(self) -> tuple[TensorFacts, ...]:
        """Tensors that hold NaN or infinities."""
        return tuple(t for t in self.tensors if isinstance(t.num_nonfinite, int) and t.num_nonfinite > 0)
