"""What must a reader of machine events be able to do? The contract of one reader file, and what it hands out.

A reader is one module of this folder that exports `READER`. Modules whose name starts with an underscore are shared
machinery. A file that a reader recognises and cannot read is reported, never taken for a clean one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

CLEAN_PROVES_NOTHING = (
    "a clean hardware log proves nothing about silent corruption, which by definition leaves no entry"
)

HEAD_BYTES = 65536
"""How much of a file a reader sees before it says whether the file is one of its own."""


class Severity(StrEnum):
    """What an event says about the machine."""

    FAULT = "fault"
    """The hardware, its memory, its links or its firmware failed."""
    UNCLEAR = "unclear"
    """Either the machine or the program on it."""
    APPLICATION = "application"
    """Usually the program's own mistake, or a consequence of another event."""
    NOTE = "note"
    """Recorded for the order of things; no failure by itself."""


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """One thing that a machine, its scheduler or its launcher recorded."""

    kind: str
    """"xid", "sxid", "ecc", "row-remap", "recovery", "nvlink", "job", "process", "collective"."""
    severity: Severity
    statement: str
    """What happened, as a sentence with the meaning of its code."""
    source: str
    """File it was read from."""
    line: int = 0
    """1-based; 0 where the source has no lines."""
    time: float | None = None
    """Unix seconds; None where the source has no clock time."""
    device: str = ""
    """PCI address, rank or node."""
    code: int | None = None
    is_counter: bool = False
    """True where `time` is when a counter was read: what it counted happened then or at any time before."""


@dataclass(frozen=True, slots=True)
class HardwareRecord:
    """Everything read from a run's hardware files."""

    events: tuple[HardwareEvent, ...] = ()
    files: tuple[tuple[str, str, int], ...] = ()
    """(path, format, number of events) of each file read."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """(path, reason)."""


class HardwareReader(Protocol):
    """One format."""

    format: str
    """"dmesg", "nvidia-smi", "nvml", "sacct", "torchrun", "flight-recorder"."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """True where the file is of this format; `head` holds its first bytes."""

    def read(self, files: Sequence[Path]) -> Iterable[HardwareEvent]:
        """Events of all files of this format together. Raises `InputUnreadable` naming the file."""
