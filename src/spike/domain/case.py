"""What is one investigation about? The facts at the head of a case directory."""

from __future__ import annotations

from dataclasses import dataclass

from spike.domain.incident import Incident
from spike.domain.run import Run


@dataclass(frozen=True, slots=True)
class PinnedCheckpoint:
    """A checkpoint that the case holds on to."""

    step: int
    original: str
    """Absolute path in the run."""
    pinned: str
    """Path relative to the case."""
    guarantee: str
    """"reflink", "copy" or "hard link": what the pin protects against is in the manifest."""


PIN_RELEASED = "pin released"
"""How the reason begins for a checkpoint that the operator let go."""


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """What case.yaml holds."""

    id: str
    created: str
    """UTC, ISO 8601, whole seconds."""
    operator: str
    spike_version: str
    run: Run
    incident: Incident | None
    """None where evidence was frozen without an incident in the signals."""
    last_good: PinnedCheckpoint | None
    """Newest whole, finite checkpoint before the onset."""
    earlier: tuple[PinnedCheckpoint, ...] = ()
    """Older whole checkpoints, newest first."""
    suspect: tuple[PinnedCheckpoint, ...] = ()
    """Checkpoints at or after the onset, oldest first."""
    not_pinned: tuple[tuple[str, str], ...] = ()
    """(path, reason) of checkpoints that could not be used."""

    @property
    def is_released(self) -> bool:
        """True where the operator let go of the pins: what they were is in the manifest."""
        has_pins = self.last_good is not None or bool(self.earlier) or bool(self.suspect)
        return not has_pins and any(reason.startswith(PIN_RELEASED) for _, reason in self.not_pinned)
