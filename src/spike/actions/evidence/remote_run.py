"""Which checkpoints does a run have, wherever they lie? Its own directory, or an object store.

What lies in a store is listed, not read: whether it is whole and finite is known once it is in a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.remote import StoredCheckpoint, is_url
from spike.domain.run import Run
from spike.readers.checkpoints import find_checkpoints
from spike.readers.remote import Store, find_stored, open_store

REMOTE_LAYOUT = "remote"
NOT_READ = "lies in an object store and has not been read: spike freeze fetches it"


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """The store that holds a run's checkpoints, and what it listed."""

    store: Store
    generations: dict[str, StoredCheckpoint]
    """By address."""

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """What was listed, as far as listing tells."""
        return tuple(self.describe(found) for found in self.generations.values())

    def describe(self, found: StoredCheckpoint) -> Checkpoint:
        """One generation."""
        return Checkpoint(
            path=self.store.url(found.path),
            layout=REMOTE_LAYOUT,
            step=found.step,
            integrity=Integrity.UNVERIFIABLE,
            reason=NOT_READ,
            num_tensors=0,
            num_bytes=found.num_bytes,
            mtime_ns=max(o.modified_ns for o in found.objects),
        )


def list_remote(pattern: str) -> RemoteRun:
    """Ask the store of this address for every generation. Raises `SpikeError` where it cannot be asked."""
    store = open_store(pattern)
    return RemoteRun(store, {store.url(found.path): found for found in find_stored(store)})


def checkpoints_of(run: Run) -> tuple[Checkpoint, ...]:
    """Every checkpoint of the run. Raises `SpikeError` where its store does not answer."""
    if is_url(run.checkpoints):
        return list_remote(run.checkpoints).checkpoints()
    return find_checkpoints(Path(run.directory), run.checkpoints)
