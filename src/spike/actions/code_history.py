"""Which code wrote the last good checkpoint, and which commits came after it?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spike.actions.bench import Unavailable
from spike.actions.investigation import Investigation
from spike.domain.measured import NotMeasured
from spike.domain.source import CommitFacts
from spike.readers.source_tree import history, read_source

HISTORY_COMMITS = 200


@dataclass(frozen=True, slots=True)
class CodeHistory:
    """Commits of the run's code around the last good checkpoint."""

    directory: str
    head: str
    after: tuple[CommitFacts, ...]
    """Commits made after the last good checkpoint was written, newest first."""
    before: CommitFacts | None
    """The newest commit that the last good checkpoint can have been written with."""
    is_patched: bool
    """There are uncommitted changes on top of the newest commit."""


def code_history(investigation: Investigation) -> CodeHistory | NotMeasured:
    """The history, from commit times against the checkpoint's modification time.

    Commit times are what the committer's clock said; a trial at the earlier commit is what decides.
    """
    directory = investigation.run.code or investigation.run.directory
    state = read_source(Path(directory))
    if isinstance(state, NotMeasured):
        return state
    commits = history(Path(directory), HISTORY_COMMITS)
    original = Path(investigation.last_good.original)
    pinned = investigation.pinned_path(investigation.last_good)
    written = (original if original.exists() else pinned).stat().st_mtime
    after = tuple(c for c in commits if c.time > written)
    before = next((c for c in commits if c.time <= written), None)
    return CodeHistory(directory, state.commit, after, before, bool(state.patch))


def earlier_commit(investigation: Investigation) -> str:
    """The commit to hold the recorded code against. Raises `Unavailable` where nothing was changed."""
    found = code_history(investigation)
    if isinstance(found, NotMeasured):
        raise Unavailable(found.not_measured)
    if found.before is None:
        raise Unavailable("every known commit is younger than the last good checkpoint")
    if not found.after and not found.is_patched:
        raise Unavailable("the code was not changed since the last good checkpoint was written")
    return found.before.commit
