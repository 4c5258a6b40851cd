"""Print the command reference: every command's help, as the command line itself gives it."""

from __future__ import annotations

import click
import typer

from spike.cli.app import app

HEAD = """# Commands

Written by `make docs` from the commands themselves; a test compares it. Exit codes: 0 passed or answered,
1 the answer is no, 2 usage, 3 input unreadable, 4 inconclusive, 70 a bug in spike.
"""


def main() -> None:
    """Print Markdown on stdout."""
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    print(HEAD)
    for name, command in root.commands.items():
        for path, leaf in _leaves((name,), command):
            context = click.Context(
                leaf, info_name=f"spike {' '.join(path)}", max_content_width=100, terminal_width=100
            )
            print(f"## spike {' '.join(path)}\n\n```\n{leaf.get_help(context).rstrip()}\n```\n")


def _leaves(path: tuple[str, ...], command: click.Command) -> list[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        return [leaf for name, sub in command.commands.items() for leaf in _leaves((*path, name), sub)]
    return [(path, command)]


if __name__ == "__main__":
    main()
