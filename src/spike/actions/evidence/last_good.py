"""Can trials start from this checkpoint? Every byte readable, every tensor finite, judged by what the case holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from spike.casefile.ledger import Ledger, bytes_key
from spike.domain.checkpoint import Checkpoint, CheckpointScan, Role
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import ManifestEntry
from spike.domain.measured import NotMeasured


class Scan(Protocol):
    """`spike.readers.checkpoints.scan_checkpoint`."""

    def __call__(self, checkpoint: Checkpoint, on_bytes: Callable[[int], None] | None = None, /) -> CheckpointScan:
        """Read every byte of a checkpoint once."""


class Tap(Protocol):
    """Takes the statistics of a checkpoint from bytes that somebody else reads."""

    def feed(self, relative_path: str, offset: int, chunk: memoryview, /) -> None:
        """The next bytes of one file; files come one after the other."""

    def result(self) -> CheckpointScan:
        """What all of them held."""


OpenTap = Callable[[Checkpoint], Tap]
Find = Callable[[Path, str], tuple[Checkpoint, ...]]


@dataclass(frozen=True, slots=True)
class Readers:
    """How checkpoints are found and judged: `spike.readers.checkpoints`, or a test's own."""

    find: Find
    scan: Scan
    """Reads every tensor."""
    digest: Scan
    """The same, with a digest of each."""
    open_tap: OpenTap | None = None
    """Where there is one, a candidate is hashed and judged in one pass."""


def default_readers(find: Find | None = None, scan: Scan | None = None, *, onset: int | None = None) -> Readers:
    """Those of `spike.readers.checkpoints`, but for what is given; a given `scan` is called for every judgement.

    Of very many checkpoints those around the onset are looked into.
    """
    from spike.readers.checkpoints import find_checkpoints, open_tap, scan_checkpoint

    chosen = find or partial(find_checkpoints, near=onset)
    if scan is not None:
        return Readers(chosen, scan, scan)
    return Readers(chosen, partial(scan_checkpoint, digests=False), scan_checkpoint, open_tap)


@dataclass(frozen=True, slots=True)
class Judge:
    """Says why a checkpoint is no good one, and remembers it over a kill."""

    readers: Readers
    ledger: Ledger
    on_bytes: Callable[[int], None]

    def tap(self, checkpoint: Checkpoint, source: Path) -> Tap | None:
        """What to feed while the bytes at `source` are hashed; None where they must be read for themselves."""
        if self.readers.open_tap is None:
            return None
        try:
            return self.readers.open_tap(replace(checkpoint, path=str(source)))
        except InputUnreadable:
            return None  # the scan of what was pinned says why

    def why_not_good(
        self,
        pinned: Checkpoint,
        entries: tuple[ManifestEntry, ...],
        tapped: Tap | None,
        others: Iterable[Checkpoint],
    ) -> str:
        """ "" for a checkpoint that trials may start from. `pinned` lies in the case, `entries` are its files.

        `others` is gone through only where something is not finite: an iterator may fetch them.
        """
        key = bytes_key(entries)
        known = self.ledger.verdict_on(key)
        if known is not None:
            return known
        found = tapped.result() if tapped is not None else self.readers.scan(pinned, self.on_bytes)
        if found.unreadable and tapped is not None:  # of the source, which may be gone by now; what counts is the pin
            found = self.readers.scan(pinned, self.on_bytes)
        if found.unreadable:
            where, reason = found.unreadable[0]
            verdict = f"{where}: {reason}"
        else:
            bad = [t for t in found.nonfinite() if t.role is not Role.OTHER]
            if bad and self._are_constants(pinned, others):
                return ""  # not remembered: it rests on another checkpoint too
            verdict = _not_finite(found) if bad else ""
        self.ledger.note_verdict(key, verdict)
        return verdict

    def _are_constants(self, pinned: Checkpoint, others: Iterable[Checkpoint]) -> bool:
        """True where an older checkpoint holds the same non-finite bytes: an attention mask of -inf, for one."""
        older = next((c for c in others if c.is_whole and step_of(c) < step_of(pinned)), None)
        if older is None:
            return False
        # A tap takes no digests of tensors; in this rare case both are read for them.
        mine = self.readers.digest(pinned, self.on_bytes)
        same = {(t.name, t.key, t.digest) for t in self.readers.digest(older, self.on_bytes).tensors}
        return all((t.name, t.key, t.digest) in same for t in mine.nonfinite() if t.role is not Role.OTHER)


def step_of(checkpoint: Checkpoint) -> int:
    """Its step, -1 where that is not known."""
    return -1 if isinstance(checkpoint.step, NotMeasured) else checkpoint.step


def _not_finite(found: CheckpointScan) -> str:
    bad = [t for t in found.nonfinite() if t.role is not Role.OTHER]
    first = bad[0]
    more = f" and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
    return f"not finite: {first.name}{f' ({first.key})' if first.key else ''}{more} in {first.file}"
