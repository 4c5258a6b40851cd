"""Print the command reference: every command's help, as the command line itself gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from spike.cli.app import app

HEAD = """# Commands

Written by `make docs` from the commands themselves; a test compares it. Exit codes: 0 passed or answered,
1 the answer is no, 2 usage, 3 input unreadable, 4 inconclusive, 70 a bug in spike.
"""


def main() -> None:
    """Print Markdown on stdout."""
    print(HEAD)
    for path, command in commands((), typer.main.get_command(app)):
        name = f"spike {' '.join(path)}"
        context = command.context_class(command, info_name=name, max_content_width=100, terminal_width=100)
        print(f"## {name}\n\n```\n{command.get_help(context).rstrip()}\n```\n")


def commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path of names, command) of every command that is no group."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, sub in below.items():
        yield from commands((*path, name), sub)


if __name__ == "__main__":
    main()
