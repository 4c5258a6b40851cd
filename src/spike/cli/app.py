"""Which commands are there? The list, in runbook order; each lives in its own file."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import typer

from spike import __version__
from spike.cli.boundary import run_at_boundary

RUNBOOK = ("detect", "freeze", "check", "replay", "branch", "bisect", "gate", "report")
AROUND = ("init", "walk", "status", "verify", "show", "watch", "record", "ci", "demo")

app = typer.Typer(
    name="spike",
    help="Walk a loss-spike incident from detection to a proven cause, and write the postmortem.",
    epilog="Start with `spike demo`, or with `spike init` in the directory of a run that spiked.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


for _name in (*RUNBOOK, *AROUND):
    if find_spec(f"spike.cli.{_name}") is None:
        continue
    _command = getattr(import_module(f"spike.cli.{_name}"), _name)
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


def main() -> None:
    """Console entry point."""
    sys.exit(run_at_boundary(app))


if __name__ == "__main__":
    main()
