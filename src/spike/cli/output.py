"""Where does text go? The answer to stdout, the talk to stderr, progress only to a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from spike.domain.errors import ExitCode

_TERMINAL = {c: f"\\x{c:02x}" for c in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(c) not in "\n\t"}
"""Names from files may hold anything, and a terminal obeys what it is sent."""


def harmless(text: str) -> str:
    """The text with every control character but line break and tab written as an escape."""
    return text.translate(_TERMINAL)


def answer(text: str) -> None:
    """Print the answer of a command."""
    typer.echo(harmless(text))


def talk(text: str) -> None:
    """Tell the operator what is happening."""
    typer.echo(harmless(text), err=True)


def emit_json(payload: dict[str, Any]) -> None:
    """Print the one JSON object of a command."""
    typer.echo(json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False))


def finish(code: ExitCode) -> NoReturn:
    """End the command with its exit code."""
    raise typer.Exit(int(code))


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Yield `advance(amount)`; shows a bar with an estimate of the time left on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
