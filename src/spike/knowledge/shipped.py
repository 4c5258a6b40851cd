"""Where are playbooks, runbook pages and fixtures? Beside the sources of a checkout, else inside the wheel."""

from __future__ import annotations

from pathlib import Path

import spike
from spike.domain.errors import SpikeError

PACKAGE = Path(spike.__file__).resolve().parent


def shipped_directory(name: str) -> Path:
    """The directory `name` ("playbooks", "runbook", "fixtures") of this installation.

    A checkout and an editable install have it beside src/, a wheel has it in spike/_data. Raises `SpikeError` where
    neither holds it.
    """
    checkout = PACKAGE.parent.parent / name
    if PACKAGE.parent.name == "src" and checkout.is_dir():
        return checkout
    installed = PACKAGE / "_data" / name
    if installed.is_dir():
        return installed
    raise SpikeError(f"this installation of spike lacks its {name}", hint="pip install --force-reinstall spike-runbook")
