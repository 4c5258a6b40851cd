"""How does spike say no? One error type, one exit-code table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command; the README prints this table."""

    PASSED = 0
    """The answer is yes: nothing found, evidence intact, gate open."""
    ANSWER_NO = 1
    """The answer is no: incident found, ranks disagree, evidence differs, gate closed."""
    USAGE = 2
    """The command was typed wrongly, or something it needs is not there yet."""
    UNREADABLE = 3
    """An input exists but cannot be read or trusted."""
    INCONCLUSIVE = 4
    """Everything ran, and the evidence does not decide."""
    BUG = 70
    """spike itself failed; the message says where the traceback is."""


class SpikeError(Exception):
    """A failure that the operator can act on.

    `message` says what was found and where (file, rank, step, tensor); `hint` is the next command to type.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class InputUnreadable(SpikeError):
    """A file that should hold evidence cannot be read; readers raise it so that callers can go on without."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.UNREADABLE)
