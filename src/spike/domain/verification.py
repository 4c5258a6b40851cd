"""Is the case still what was recorded? The answer of `spike verify`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spike.domain.journal import ChainFinding
from spike.domain.manifest import Change


class Integrity(StrEnum):
    """What verification concludes."""

    INTACT = "intact"
    """Every byte and every name is as recorded; metadata may differ, and is listed."""
    ALTERED = "altered"
    """Something was changed, added, removed or rewritten that nobody recorded."""
    INCOMPLETE = "incomplete"
    """A command was interrupted: nothing points to tampering, and not everything is recorded."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what was found."""

    case: str
    integrity: Integrity
    tree_digest: str
    """Of the manifest; "" where freeze has not finished."""
    num_files: int
    num_bytes: int
    changes: tuple[Change, ...]
    """Evidence against its manifest; content first."""
    artefacts: tuple[Change, ...]
    """Everything else against the digests in the journal."""
    chain: tuple[ChainFinding, ...]
    unfinished: tuple[str, ...]
    """Why the answer is "incomplete", one sentence each."""
    unrecorded: tuple[str, ...]
    """Files outside evidence/ that no journal line names."""
    signature: str
    """A sentence: not signed, signed by a key that was not checked, valid, or why it does not hold."""
    signature_holds: bool | None
    """None where no public key was given."""
    num_released: int = 0
    """Files of pins that the operator let go; only their digests are left."""
    references: tuple[str, ...] = ()
    """Objects that the case names and does not hold, one sentence each."""
    origins: tuple[str, ...] = ()
    """What a store said of originals that are not what they were; the case holds copies of them."""
    num_asked: int | None = None
    """Objects whose store was asked; None where none was (offline)."""

    @property
    def metadata(self) -> tuple[Change, ...]:
        """Differences that leave every byte and name as it was."""
        return tuple(c for c in self.changes if not c.is_content)
