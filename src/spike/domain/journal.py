"""Who did what to a case, when, and how did it end? The facts of one journal line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

INTERRUPTED = "case interrupted"
"""Command of the line by which the next command remembers what a killed one had written and not recorded; its
artefacts say what the files were left as, not what they should be."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file of the case as it was when the line was written."""

    path: str
    """Relative to the case, POSIX."""
    sha256: str


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of journal.jsonl; `digest` covers everything above it, `previous` included."""

    seq: int
    """1-based position."""
    time: str
    """UTC, ISO 8601, whole seconds."""
    operator: str
    host: str
    command: str
    summary: str
    exit_code: int
    artefacts: tuple[Artefact, ...]
    previous: str
    """Digest of the line before; 64 zeros in the first."""
    digest: str


class ChainFault(StrEnum):
    """What can be wrong with a journal."""

    CHANGED = "changed"
    """A line's content does not match its own digest."""
    FORGED = "forged"
    """A line matches its own digest and does not continue the line before it, or the chain is not the recorded one."""
    REORDERED = "reordered"
    REMOVED = "removed"
    """A line in the middle is missing."""
    TRUNCATED = "truncated"
    """Lines at the end are missing, or the record of how many there were."""
    TORN = "torn"
    """The last line ends in the middle: a command was interrupted. Not tampering."""
    UNCONFIRMED = "unconfirmed"
    """One sound line more than journal.head knows of: a command was interrupted, or somebody added it."""


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """One fault, with its place."""

    fault: ChainFault
    line: int
    """1-based line of journal.jsonl; 0 where it concerns the whole file."""
    statement: str

    @property
    def is_tampering(self) -> bool:
        """False for what an interrupted command leaves behind."""
        return self.fault not in (ChainFault.TORN, ChainFault.UNCONFIRMED)
