"""What happened, and how would we know it if it happened again? Incidents and their signatures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The shape of an anomaly."""

    SPIKE = "spike"
    DIVERGENCE = "divergence"
    NON_FINITE = "non-finite"
    LEVEL_SHIFT = "level-shift"
    SLOW_DRIFT = "slow-drift"
    DROP = "drop"
    SKIPPED_STEPS = "skipped-steps"
    FROZEN = "frozen"


class Severity(StrEnum):
    """How much of the run an incident takes with it."""

    TRANSIENT = "transient"
    """Far outside the run's noise, healed by itself."""
    LASTING = "lasting"
    """The run went on, and has not come back to its trend."""
    FATAL = "fatal"
    """Non-finite, diverged or not training any more."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The exact predicate that says "it happened", on one signal, relative to the run's own baseline.

    Values are compared after `transform`: "log" where the signal is positive throughout its baseline, else
    "identity". A value is anomalous when `direction * (transform(value) - centre) > threshold`, or when it
    is not finite.
    """

    signal: str
    kind: Kind
    transform: str
    """"log" or "identity"."""
    centre: float
    """Robust centre of the baseline at the onset, in transformed units (the trend's value there)."""
    scale: float
    """Robust scale (MAD-based standard deviation) of the baseline residuals, in transformed units."""
    threshold: float
    """Distance from the centre beyond which a value counts, in transformed units."""
    direction: int
    """+1 upward, -1 downward."""
    onset_step: int
    """First anomalous logged step of this signal."""
    peak_step: int
    peak_value: float
    """The raw value at the peak; may be NaN or infinite."""
    last_step: int
    """Last anomalous logged step, or the last step of the record."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One anomaly under investigation: several signals that left their baselines together."""

    kind: Kind
    severity: Severity
    onset_step: int
    """Where the first signal first left its baseline (logged step)."""
    peak_step: int
    first_signal: str
    lead_steps: int
    """Steps from the first signal's onset to the peak of the loss; 0 where the loss peaked at the onset."""
    ratio: float
    """Peak of the first signal relative to its usual value; inf for a non-finite one."""
    recovered: bool
    rank: int | None
    signatures: tuple[Signature, ...]
    """One for each signal that took part, first mover first."""
    hints: tuple[str, ...] = ()
    """Facts worth a look: a clean ratio (x4 = accumulation), ln(V), an LR discontinuity at the onset."""

    def signature(self, signal: str) -> Signature | None:
        """The predicate on this signal, if the signal took part."""
        return next((s for s in self.signatures if s.signal == signal), None)


@dataclass(frozen=True, slots=True)
class Notice:
    """A pattern that looks alarming and is not."""

    pattern: str
    steps: tuple[int, ...]
    why_benign: str


@dataclass(frozen=True, slots=True)
class Detection:
    """What the detector has to say about one run."""

    incidents: tuple[Incident, ...] = ()
    notices: tuple[Notice, ...] = ()
