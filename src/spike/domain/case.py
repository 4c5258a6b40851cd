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
