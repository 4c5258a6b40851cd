"""May the run be resumed? A contract of named conditions, each measured or not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConditionState(StrEnum):
    """A condition holds, fails, or was not measured; only the first opens anything."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Condition:
    """One line of the contract."""

    name: str
    """"loss-on-trend", "update-norm", "throughput", "held-out", "load-receipt", "skip-counters", ..."""
    state: ConditionState
    statement: str
    """Measured value against the bound, or why there is none."""
    evidence: tuple[str, ...] = ()
    waived_by: str = ""
    """Name of the operator who waived an unmeasurable condition; a failing one cannot be waived."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Open only if every condition holds (or was waived as unmeasurable, by name)."""

    is_open: bool
    remedy: str
    """The one change to resume with, as a sentence."""
    conditions: tuple[Condition, ...]
    causal_note: str
    """Why the recovery is causal and not a coincidence."""
    resume_command: str
    rollback_command: str
    trials: tuple[str, ...] = ()
