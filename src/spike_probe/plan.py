"""What is this process asked to record and to change? The plan file, parsed once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Optional

SCHEMA = "spike.plan/1"
VARIABLE = "SPIKE_PROBE_PLAN"
"""The environment variable that names the plan; without it the probe does nothing."""
RECORD = "record"
"""Trial id of recording in production: nothing expensive, no waiting for the device."""


@dataclass(frozen=True)
class PlannedChange:
    """The one intervention of a trial."""

    name: str
    steps: tuple[int, ...] = ()
    """Attempted steps it acts on; empty: every step of the window."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Lists of the file are tuples here."""


@dataclass(frozen=True)
class Plan:
    """docs/FORMATS.md, "Plan"."""

    trial: str
    out: str
    first_step: int = 0
    stop_after: Optional[int] = None
    checkpoint: str = ""
    capture_steps: frozenset[int] = frozenset()
    fingerprint_steps: frozenset[int] = frozenset()
    gradient_steps: frozenset[int] = frozenset()
    """Steps whose pre-clip gradients are digested, for a comparison of ranks."""
    module_steps: frozenset[int] = frozenset()
    intervention: Optional[PlannedChange] = None
    checkpoint_digests: str = ""
    keep_batches: int = 0
    """Record mode: how many of the newest steps keep their batches on disk."""

    @property
    def is_trial(self) -> bool:
        """False in record mode."""
        return self.trial != RECORD


def load_plan(path: str) -> Plan:
    """The plan in this file; ValueError where it has another schema or misses a key."""
    with open(path, encoding="utf-8") as file:
        raw = json.load(file)
    found = raw.get("schema")
    if found != SCHEMA:
        raise ValueError(f"{path} has schema {found!r}, not {SCHEMA!r}")
    return Plan(
        trial=str(raw["trial"]),
        out=os.path.abspath(raw["out"]),
        first_step=int(raw.get("first_step") or 0),
        stop_after=None if raw.get("stop_after") is None else int(raw["stop_after"]),
        checkpoint=raw.get("checkpoint") or "",
        capture_steps=_steps(raw, "capture_steps"),
        fingerprint_steps=_steps(raw, "fingerprint_steps"),
        gradient_steps=_steps(raw, "gradient_steps"),
        module_steps=_steps(raw, "module_steps"),
        intervention=_change(raw.get("intervention")),
        checkpoint_digests=raw.get("checkpoint_digests") or "",
        keep_batches=int(raw.get("keep_batches") or 0),
    )


def _steps(raw: dict[str, Any], key: str) -> frozenset[int]:
    return frozenset(int(step) for step in raw.get(key) or ())


def _change(raw: Optional[dict[str, Any]]) -> Optional[PlannedChange]:
    if not raw:
        return None
    parameters = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in dict(raw.get("parameters") or {}).items()
    }
    return PlannedChange(str(raw["name"]), tuple(int(step) for step in raw.get("steps") or ()), parameters)
