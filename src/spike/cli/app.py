"""Which commands are there? The list, in runbook order; each lives in its own file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from spike import __version__
from spike.cli.boundary import run_at_boundary

RUNBOOK = {
    "detect": "Did something happen, and where did it begin?",
    "freeze": "Open the case: pin checkpoints, hash everything, change nothing.",
    "check": "What do files tell, without a GPU?",
    "replay": "Does the unchanged command show it again?",
    "branch": "What does one change show?",
    "bisect": "What is the cause, and where?",
    "gate": "May the run be resumed with this one change?",
    "report": "Write the postmortem from the case.",
}
AROUND = {
    "init": "Describe this run once: write spike.yaml.",
    "walk": "All of it, step by step, with a hand on the shoulder.",
    "status": "Where does the case stand, and what comes next?",
    "verify": "Is the case as it was frozen?",
    "show": "Look at a batch, a trial, a tensor, the signals, the formats.",
    "watch": "Follow a live run and stop at the first incident.",
    "ci": "Investigate fixture incidents blind, and compare with the truth.",
    "demo": "Make a real small incident and walk it through.",
}
"""Name and one line for the list; each command's file is imported only when the command is asked for."""


class _Files(Mapping[str, Any]):
    """The commands by name, each built from its file when it is looked up."""

    def __iter__(self) -> Iterator[str]:
        return iter((*RUNBOOK, *AROUND))

    def __len__(self) -> int:
        return len(RUNBOOK) + len(AROUND)

    def __getitem__(self, name: str) -> Any:
        if name not in RUNBOOK and name not in AROUND:
            raise KeyError(name)
        found = getattr(import_module(f"spike.cli.{name}"), name)
        around = typer.Typer(**_SETTINGS)
        around.callback()(_nothing)  # makes it a group, whatever it holds
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name)
        else:
            around.command(name)(found)
        group: Any = typer.main.get_command(around)
        return group.commands[name]


def _nothing() -> None:
    pass


class _Commands(TyperGroup):
    """A group that lists its commands without importing them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Files()  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The runbook in its order, then what is around it."""
        del ctx
        for title, rows in (("The runbook", RUNBOOK), ("Around it", AROUND)):
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))


_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(
    name="spike",
    cls=_Commands,
    help="Walk a loss-spike incident from detection to a proven cause, and write the postmortem.",
    epilog="Start with `spike demo`, or with `spike init` in the directory of a run that spiked.",
    no_args_is_help=True,
    **_SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spike {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Console entry point."""
    sys.exit(run_at_boundary(lambda: app(standalone_mode=False)))


if __name__ == "__main__":
    main()
