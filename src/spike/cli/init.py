"""spike init: describe this run once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spike.cli.options import JsonOption, RunOption
from spike.cli.output import answer, emit_json, talk


def init(
    run: RunOption = Path(),
    launch: Annotated[str, typer.Option("--launch", help="The training command, with {checkpoint}.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a spike.yaml that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a run directory and write spike.yaml: the only file that spike ever writes into a run."""
    from spike.actions.init import look, write
    from spike.readers.run_file import locate

    found = look(locate(run), launch=launch)
    path = write(found, force=force)
    if as_json:
        emit_json(
            {
                "schema": "spike.init/1",
                "file": str(path),
                "launch": found.launch,
                "launch_note": found.launch_note,
                "checkpoints": found.checkpoints,
                "num_checkpoints": found.num_checkpoints,
                "last_step": found.last_step,
                "metrics": list(found.metrics),
                "code": found.code,
            }
        )
        return
    answer(found.text.rstrip())
    talk(f"\nwrote {path}")
    talk("next: read it, correct the launch command, then spike detect")
