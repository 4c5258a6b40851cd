"""How does the probe get beside a training command without anything else of spike coming along?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from spike.domain.errors import ExitCode, SpikeError

PLAN_VARIABLE = "SPIKE_PROBE_PLAN"
HOOK = "sitecustomize.py"
"""Python imports it at start from the first entry of PYTHONPATH that has it."""


def stage_probe(directory: Path) -> Path:
    """Copy the probe and its start hook into `directory` (made if need be); answers what goes on PYTHONPATH.

    The training environment has its own Python and torch: only source files are copied, no bytecode, no spike.
    """
    source = _probe_source()
    target = directory / "spike_probe"
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", HOOK))
    shutil.copyfile(source / HOOK, directory / HOOK)
    return directory


def probe_environment(stage: Path, plan_path: Path, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with the staged directory first on PYTHONPATH and the plan named."""
    environment = dict(base)
    rest = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{stage}{os.pathsep}{rest}" if rest else str(stage)
    environment[PLAN_VARIABLE] = str(plan_path)
    return environment


def _probe_source() -> Path:
    found = find_spec("spike_probe")
    if found is None or found.origin is None:
        raise SpikeError(
            "the package spike_probe is not installed beside spike",
            hint="pip install --force-reinstall spike-runbook",
            exit_code=ExitCode.BUG,
        )
    return Path(found.origin).parent
