"""What stands where a number should be when nobody measured it? A value with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """The absence of a measurement. Never equal to a pass, never silently dropped."""

    not_measured: str
    """Why there is no value, as a clause: "the log has no grad_norm column"."""

    def __str__(self) -> str:
        return f"not measured ({self.not_measured})"


def measured(value: T | NotMeasured) -> T | None:
    """The value itself, or None where it was not measured; for arithmetic that treats both alike."""
    return None if isinstance(value, NotMeasured) else value
