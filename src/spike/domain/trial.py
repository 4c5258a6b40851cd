"""What is a trial, and what did it show? (command, checkpoint, at most one intervention, window) -> outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from spike.domain.trace import CapturedBatch, RankTrace

Parameter: TypeAlias = str | int | float | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Factor(StrEnum):
    """The things a trial could vary."""

    CODE = "code"
    CONFIG = "config"
    CHECKPOINT = "checkpoint"
    DATA_ORDER = "data order"
    BATCH = "batch content"
    RNG = "rng"
    OPTIMIZER_STATE = "optimizer state"
    LEARNING_RATE = "learning rate"
    CLIPPING = "clipping"
    PRECISION = "precision"
    KERNELS = "kernels"
    WORLD = "world"
    DEVICE = "device"
    ENVIRONMENT = "environment"


class OutcomeKind(StrEnum):
    """What a trial showed of the incident's signature."""

    REPRODUCED = "reproduced"
    ABSENT = "absent"
    DIFFERENT = "different"
    UNTESTABLE = "untestable"


class Grade(StrEnum):
    """How well the healthy steps of a replay matched the record."""

    BIT_EXACT = "bit-exact"
    """Equal to a record with full precision (a recorded trace, or unrounded logs)."""
    LOG_EXACT = "within log rounding"
    """Equal in every digit that the log printed."""
    WITHIN_NOISE = "within the noise floor"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Intervention:
    """A change of exactly one factor."""

    name: str
    """File name of the intervention without suffix: "skip-batch"."""
    factor: Factor
    steps: tuple[int, ...] = ()
    """Attempted steps that it acts on; empty: from the start of the window to its end."""
    parameters: tuple[tuple[str, Parameter], ...] = ()

    def parameter(self, name: str) -> Parameter | None:
        """The value given for `name`, or None."""
        return dict(self.parameters).get(name)


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """The declared half of a trial: everything needed to run it again."""

    id: str
    """"T003-skip-batch": directory name under trials/."""
    purpose: str
    """One sentence for the operator."""
    checkpoint: str
    """Absolute path of the checkpoint to start from; "" starts the command from scratch."""
    first_step: int
    """Attempted steps that the checkpoint holds."""
    stop_after: int
    """Last attempted step of the window."""
    intervention: Intervention | None = None
    commit: str = ""
    """Code to run; "" is the recorded state (commit and patch)."""
    capture_steps: tuple[int, ...] = ()
    """Steps whose batches are saved."""
    fingerprint_steps: tuple[int, ...] = ()
    """Attempted step counts at which every parameter and moment is digested."""
    module_steps: tuple[int, ...] = ()
    """Steps whose modules are watched for non-finite values."""
    by_probe: bool = False
    """The probe makes the change although the operator named a knob for it: the knob was tried and did not do."""
    role: str = "branch"
    """"baseline", "repeat", "control", "branch", "placebo", "reversal", "localise" or "gate"."""


@dataclass(frozen=True, slots=True)
class TrialRun:
    """What the lab brings back: facts only, no judgement."""

    spec: TrialSpec
    ended: str
    """"window-complete", "exited", "time-limit", "interrupted", "launch-failed"."""
    exit_code: int | None
    seconds: float
    guard: str
    """"overlay", "worktree+landlock" or "audit-hook": what kept the run safe."""
    traces: tuple[RankTrace, ...]
    batches: tuple[CapturedBatch, ...]
    metrics_dir: str
    """Directory with what the trial itself logged: stdout.log and the files it wrote or appended to."""
    stderr_tail: str = ""
    """Last lines of what it printed, for a message; secrets redacted."""
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial's answer, with its reason."""

    kind: OutcomeKind
    reason: str
    signal: str = ""
    peak_value: float = 0.0
    """Largest (in the signature's direction) value seen in the window."""
    peak_step: int = 0
    excess: float = 0.0
    """Distance of the peak from the baseline, as a fraction of the incident's own distance."""
    shares: tuple[tuple[str, float], ...] = ()
    """The same for every signal that decided."""


@dataclass(frozen=True, slots=True)
class Licence:
    """Whether replays of this case can be believed."""

    grade: Grade
    reason: str
    signals: tuple[str, ...] = ()
    num_steps: int = 0
    """Healthy steps compared."""
    first_difference: int | None = None
    """First logged step that differs. Where the steps before it are exact, the incident acts from here on."""
    step_offset: int = 0
    """Logged step minus attempted step, as the licence found it."""

    @property
    def holds(self) -> bool:
        """True where outcomes count."""
        return self.grade is not Grade.REFUSED

    @property
    def acts_from(self) -> int | None:
        """The logged step before the onset at which the record left what its command computes; None for no such."""
        return self.first_difference if self.grade in (Grade.BIT_EXACT, Grade.LOG_EXACT) else None


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """How far the unchanged trial differs from itself."""

    num_repeats: int
    bit_exact: bool
    spread: tuple[tuple[str, float], ...] = ()
    """Largest absolute difference by signal over the healthy steps."""

    def of(self, signal: str) -> float:
        """The spread of this signal; 0 where the trials were identical."""
        return dict(self.spread).get(signal, 0.0)


@dataclass(frozen=True, slots=True)
class FactorDifference:
    """One factor in which a trial was observed to differ from its baseline."""

    factor: Factor
    where: str
    """"step 221 rank 0", "start"."""
    baseline: str
    trial: str


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The observed half of a trial, judged."""

    spec: TrialSpec
    outcome: Outcome
    guard: str
    seconds: float
    differences: tuple[FactorDifference, ...] = ()
    """Observed against the baseline trial."""
    took_effect: bool | None = None
    """None for a trial without intervention."""
    ended: str = ""
