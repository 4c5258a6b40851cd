"""Which options do many commands share? One spelling and one help text for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunOption = Annotated[
    Path,
    typer.Option("--run", "-r", help="The run directory (or its spike.yaml).", show_default="this directory"),
]
CaseOption = Annotated[
    Path | None,
    typer.Option("--case", "-c", envvar="SPIKE_CASE", help="The case directory; the newest of the run by default."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, nothing else.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer every question with yes.")]
