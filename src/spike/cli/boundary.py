"""What becomes of an exception at the end? A message, the next command, an exit code.

The one broad `except` of the program lives here.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable

import typer

from spike.cli.output import harmless
from spike.domain.errors import ExitCode, SpikeError

_USAGE_ERRORS = tuple(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What a wrongly typed command raises; typer brings the class, and has it under changing names."""
INTERRUPTED = 130
"""As every shell has it for a program ended by Ctrl-C."""


def run_at_boundary(command: Callable[[], object]) -> int:
    """Run the command line and turn whatever escapes into an exit code."""
    try:
        return _code(command())
    except SystemExit as ended:
        return _code(ended.code)
    except typer.Abort:
        return _interrupted()
    except SpikeError as error:
        print(f"spike: {harmless(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  next: {harmless(error.hint)}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # The reader of our output went away (`spike detect | head`); not our failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.PASSED)
    except OSError as error:
        print(f"spike: {error.strerror or error}: {error.filename or 'no file named'}", file=sys.stderr)
        print("  next: spike status, which reads what is there", file=sys.stderr)
        return int(ExitCode.UNREADABLE)
    except Exception as error:
        if isinstance(error, _USAGE_ERRORS):
            error.show()  # type: ignore[attr-defined]
            return int(ExitCode.USAGE)
        return _report_bug()


def _code(ended: object) -> int:
    """The exit code that a command or an exit stands for; a text is a complaint about how it was typed."""
    if isinstance(ended, int):
        return int(ended)
    return int(ExitCode.PASSED) if ended is None else int(ExitCode.USAGE)


def _interrupted() -> int:
    print("spike: interrupted; nothing is lost, repeat the command to go on", file=sys.stderr)
    return INTERRUPTED


def _report_bug() -> int:
    text = traceback.format_exc()
    with tempfile.NamedTemporaryFile("w", prefix="spike-bug-", suffix=".txt", delete=False) as file:
        file.write(text)
    print(f"spike: a bug in spike: {text.strip().splitlines()[-1]}", file=sys.stderr)
    print(f"  the traceback is in {file.name}; the case is unharmed, `spike verify` proves it", file=sys.stderr)
    return int(ExitCode.BUG)
