"""How do the commands that run trials open a case, and show their progress?"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spike.cli.output import talk

if TYPE_CHECKING:
    from spike.actions.experiment.investigation import Investigation


def operator() -> str:
    """Who types: for the journal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@contextmanager
def investigating(run: Path, case: Path | None, step: int | None, command: str) -> Iterator[Investigation]:
    """Open the investigation and hold the case's lock while the command works on it."""
    from spike.actions.experiment.investigation import open_investigation
    from spike.actions.open_case import case_for
    from spike.readers.run_file import load_run

    described = load_run(run)
    found = case_for(described, case, step, operator=operator(), talk=talk)
    with found.lock(command), _progress() as on_step:
        yield open_investigation(found, described, talk=talk, on_step=on_step)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A line that is rewritten on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _trial, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def on_step(trial: str, done: int, total: int) -> None:
            if trial not in tasks:
                for old in tasks.values():
                    bar.remove_task(old)
                tasks.clear()
                tasks[trial] = bar.add_task(f"{trial} (steps)", total=total)
            bar.update(tasks[trial], completed=done, total=total)

        yield on_step
