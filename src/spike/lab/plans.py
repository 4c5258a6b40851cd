"""What is the probe told to do? A trial's specification as a `spike.plan/1` file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spike.domain.trial import TrialSpec

SCHEMA = "spike.plan/1"


def plan(spec: TrialSpec, out: str, *, checkpoint: str, digests: str = "", knob: str = "") -> dict[str, Any]:
    """The plan of a trial that writes below `out`.

    `checkpoint` is its path as the trial sees it; `digests` a file with the checkpoint's tensor digests. Where the
    command itself makes the change, `knob` names it and the probe is given no intervention.
    """
    change = spec.intervention
    planned = None
    if change is not None and not knob:
        parameters = {name: list(value) if isinstance(value, tuple) else value for name, value in change.parameters}
        planned = {"name": change.name, "steps": list(change.steps), "parameters": parameters}
    return {
        "schema": SCHEMA,
        "trial": spec.id,
        "out": out,
        "first_step": spec.first_step,
        "stop_after": spec.stop_after,
        "checkpoint": checkpoint,
        "capture_steps": list(spec.capture_steps),
        "fingerprint_steps": list(spec.fingerprint_steps),
        "module_steps": list(spec.module_steps),
        "intervention": planned,
        "checkpoint_digests": digests or None,
        "knob": knob or None,
    }


def write_plan(path: Path, payload: dict[str, Any]) -> None:
    """The plan as a file, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(payload, indent=2) + "\n")
    temporary.replace(path)
