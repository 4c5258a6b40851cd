"""What caused it, how surely, and where? Hypotheses, findings and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class CauseClass(StrEnum):
    """The four classes a cause can belong to, and none."""

    DATA = "data"
    OPTIMIZATION = "optimization"
    NUMERICS = "numerics"
    SYSTEM = "system"
    NONE = "none"


class Status(StrEnum):
    """How much a verdict proves."""

    ESTABLISHED = "established"
    SUPPORTED = "supported"
    UNDETERMINED = "undetermined"


class Strength(StrEnum):
    """What a finding stands on: seen, seen together, or brought about."""

    OBSERVED = "observed"
    ASSOCIATED = "associated"
    INTERVENED = "intervened"


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence for or against a hypothesis."""

    statement: str
    strength: Strength
    evidence: tuple[str, ...]
    """Ids: "T003-skip-batch", "check:ranks", "signal:grad_norm", "checkpoint:step-200"."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the cause acts. Empty fields were not localised."""

    samples: tuple[int, ...] = ()
    """Positions in the suspect step's batch, counted over its micro-batches."""
    rank: int | None = None
    module: str = ""
    tensor: str = ""
    commit: str = ""
    file: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A hypothesis that the evidence excludes."""

    cause: str
    because: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A trial that would settle more, and why it was not run."""

    trial: str
    because: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a bisect."""

    status: Status
    cause_class: CauseClass
    cause: str
    """Playbook id, or "" where undetermined."""
    step: int | None
    """Where the cause first acts."""
    because: str
    """Why this status and not a stronger or weaker one."""
    where: Place = field(default_factory=Place)
    evidence: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    inseparable: tuple[str, ...] = ()
    """Playbook ids that the trials so far cannot tell apart."""
    num_trials: int = 0
    next: tuple[Suggestion, ...] = ()
