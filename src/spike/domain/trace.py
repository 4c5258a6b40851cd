"""What did the training process really do, step by step? The probe's record, parsed."""

from __future__ import annotations

from dataclasses import dataclass, field

from spike.domain.measured import NotMeasured


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward and backward."""

    loss: float
    """The scalar that backward was called on, undivided by any loss scale."""
    batch: str
    """Content digest of every tensor that reached the model or the loss, docs/FORMATS.md "Batch digest"."""
    num_targets: int | NotMeasured
    """Target tokens (or samples) that reached the loss function."""
    num_supervised: int | NotMeasured
    """Those of them that are not the ignore index."""
    num_samples: int | NotMeasured
    """Leading dimension of the batch."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One attempted optimizer step of one rank."""

    step: int
    """Attempted optimizer steps including this one: the first after a checkpoint of step N is N + 1."""
    micro_batches: tuple[MicroBatch, ...]
    loss: float
    """Sum of the micro-batch losses as backward saw them (accumulation usually divides each)."""
    grad_norm: float
    """Global L2 norm of the local gradients before clipping."""
    num_nonfinite_grads: int
    """Parameters whose gradient norm is not finite."""
    clip_max_norm: float | None
    """What clip_grad_norm_ was called with; None where the step was not clipped through torch."""
    lr: tuple[float, ...]
    """Per parameter group, over all optimizers, as the update used it."""
    applied: bool
    """False where a scaler or an intervention withheld the update."""
    update_norm: float | NotMeasured
    param_norm: float | NotMeasured
    loss_scale: float | NotMeasured
    precision: str
    """Autocast dtype and parameter dtypes: "autocast=bfloat16 params=float32"."""
    rng: tuple[tuple[str, str], ...]
    """Digest of each generator at the first forward of the step: python, numpy, torch, cuda."""
    seconds: float


@dataclass(frozen=True, slots=True)
class TensorPrint:
    """Digest and statistics of one live tensor."""

    role: str
    """"parameter", "buffer", "gradient" or "moment"."""
    name: str
    index: int
    """Position in the optimizer's parameter order, over its groups; -1 for buffers."""
    key: str
    """Moment name; "" for parameters and buffers."""
    dtype: str
    shape: tuple[int, ...]
    digest: str
    l2: float
    num_nonfinite: int
    whole: tuple[int, ...] = ()
    """Shape of the tensor of which this is one rank's shard; () for a whole tensor, or where it is not known."""
    offset: tuple[int, ...] = ()
    """Where the shard begins in it."""

    @property
    def is_shard(self) -> bool:
        """True for a part of a tensor whose place in the whole is known."""
        return bool(self.whole)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The whole state after `step` attempted steps (at the window's first step: as loaded)."""

    step: int
    tensors: tuple[TensorPrint, ...]


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """Forward facts of one step, on demand."""

    step: int
    first_nonfinite_forward: str
    """Qualified name of the first module whose output is non-finite while its inputs are finite; "" if none."""
    first_nonfinite_backward: str
    absmax: tuple[tuple[str, float], ...]
    """Largest output magnitude by module, in execution order."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Proof that an intervention acted, written by the probe from the live process."""

    step: int
    intervention: str
    what: str
    """The quantity changed: "lr", "batch", "params-delta", "autocast", ..."""
    before: str
    after: str
    took_effect: bool


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The environment of one rank's process, as it saw itself."""

    rank: int
    world: int
    host: str
    device: str
    argv: tuple[str, ...]
    python: str
    packages: tuple[tuple[str, str], ...]
    threads: int
    kernels: tuple[tuple[str, str], ...]
    """Deterministic mode, SDPA backends, TF32, fused/foreach optimizer flags, CPU capability."""
    env: tuple[tuple[str, str], ...]
    """Allow-listed variables only."""
    opened: tuple[str, ...] = ()
    """Files under the checkpoint's path that the process opened."""
    optimizers: tuple[str, ...] = ()
    """Class and constant hyperparameters of each optimizer, one line each."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """Everything one rank wrote."""

    process: ProcessFacts
    first_step: int
    """Attempted steps already taken when the process started, as the plan says."""
    steps: tuple[StepRecord, ...]
    fingerprints: tuple[Fingerprint, ...] = ()
    modules: tuple[ModuleFacts, ...] = ()
    effects: tuple[Effect, ...] = ()
    end: str = ""
    """"window-complete", "exited", or "" where the process died without saying anything."""
    errors: tuple[str, ...] = ()
    """Exceptions inside the probe, swallowed for the run's sake and counted for ours."""

    def step(self, number: int) -> StepRecord | None:
        """The record of this attempted step, if it was reached."""
        return next((s for s in self.steps if s.step == number), None)


@dataclass(frozen=True, slots=True)
class CapturedBatch:
    """One micro-batch that the probe saved."""

    step: int
    rank: int
    micro: int
    digest: str
    path: str
    num_samples: int | NotMeasured = field(default_factory=lambda: NotMeasured("no leading dimension in common"))
