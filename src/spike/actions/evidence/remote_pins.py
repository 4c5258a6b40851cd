"""Which generations of a checkpoint in an object store does a case need, and what was in them once they were here?

The rule is that of `pins`: the newest whole and finite one before the onset, up to three older ones, up to two from the
onset on. But a listing tells neither whole nor finite, so each is fetched, newest first, and judged by its copy in the
case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from spike.actions.evidence.fetch import Fetch, Named
from spike.actions.evidence.last_good import Judge, Readers
from spike.actions.evidence.pins import MAX_EARLIER, MAX_SUSPECT, Pins, likely_pins, place_of, plan_pins
from spike.actions.evidence.remote_run import list_remote
from spike.casefile.case import Case
from spike.casefile.ledger import Ledger
from spike.casefile.manifest import EVIDENCE
from spike.casefile.pinning import release
from spike.domain.case import PinnedCheckpoint
from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import Algorithm, Exclusion, ManifestEntry, Reference
from spike.domain.measured import NotMeasured
from spike.domain.remote import shown_url
from spike.domain.run import Run
from spike.readers.checkpoints import inspect_checkpoint

MAX_NAMED = MAX_EARLIER + 1
"""Candidates that are streamed for their digests alone, because they are too large to copy."""


@dataclass(frozen=True, slots=True)
class Held:
    """A generation that the case holds."""

    pin: PinnedCheckpoint
    copy: Checkpoint
    """Inspected in the case; its path is there."""
    entries: tuple[ManifestEntry, ...]
    exclusions: tuple[Exclusion, ...]


@dataclass(frozen=True, slots=True)
class RemotePinning:
    """Fetches one generation after the other and judges it."""

    fetch: Fetch
    judge: Judge
    run: Path
    pins: Pins = field(default_factory=Pins)
    references: list[Reference] = field(default_factory=list)
    _seen: dict[str, Held | None] = field(default_factory=dict)
    """What became of a generation, by address: nothing is fetched twice, and no reason is given twice."""
    _named: list[str] = field(default_factory=list)

    def pin_all(self, checkpoints: tuple[Checkpoint, ...], onset: int | None) -> Pins:
        """Fetch what is needed around the onset. Raises `StoreUnavailable` where the store stops answering."""
        plan = plan_pins((*checkpoints, *self.fetch.left_over(frozenset(c.path for c in checkpoints))), onset)
        for checkpoint in plan.before:
            is_enough = self.pins.last_good is not None and len(self.pins.earlier) >= MAX_EARLIER
            if is_enough or len(self._named) >= MAX_NAMED:
                break
            self._take_candidate(checkpoint, plan.before)
        self.pins.earlier.sort(key=lambda p: -p.step)
        for checkpoint in plan.suspect[:MAX_SUSPECT]:
            held = self._hold(checkpoint, is_start=False)
            if held is not None:
                self._keep(held, self.pins.suspect.append)
        return self.pins

    def _take_candidate(self, checkpoint: Checkpoint, others: tuple[Checkpoint, ...]) -> None:
        is_start = self.pins.last_good is None
        held = self._hold(checkpoint, is_start=is_start)
        if held is None:
            return
        reason = _why_unusable(held.copy, is_start=is_start)
        if not reason and is_start:
            reason = self.judge.why_not_good(held.copy, held.entries, None, self._older(checkpoint, others))
        if reason:
            self._let_go(held, reason)
        elif is_start:
            self.pins.last_good = held.pin
            self._keep(held)
        else:
            self._keep(held, self.pins.earlier.append)

    def _older(self, checkpoint: Checkpoint, others: tuple[Checkpoint, ...]) -> Iterator[Checkpoint]:
        """Copies of older generations, fetched when somebody asks for the next one."""
        for other in others[others.index(checkpoint) + 1 :]:
            held = self._hold(other, is_start=False)
            if held is not None:
                yield held.copy

    def _hold(self, checkpoint: Checkpoint, *, is_start: bool) -> Held | None:
        if checkpoint.path not in self._seen:
            self._seen[checkpoint.path] = self._fetch(checkpoint, is_start)
        return self._seen[checkpoint.path]

    def _fetch(self, checkpoint: Checkpoint, is_start: bool) -> Held | None:
        destination = self.fetch.case.path / EVIDENCE / "pinned" / place_of(checkpoint, self.run)
        try:
            found = self.fetch(checkpoint.path, destination, is_start=is_start)
        except InputUnreadable as error:
            self.pins.not_pinned.append((checkpoint.path, error.message))
            return None
        if isinstance(found, Named):
            self.references.extend(found.references)
            self._named.append(checkpoint.path)
            self.pins.exclusions += found.exclusions
            self.pins.not_pinned.append((checkpoint.path, found.reason))
            return None
        step = checkpoint.step
        assert not isinstance(step, NotMeasured), "a generation is found by its step"
        relative = destination.relative_to(self.fetch.case.path).as_posix()
        pin = PinnedCheckpoint(step, checkpoint.path, relative, found.guarantee.value)
        return Held(pin, _inspected(destination, checkpoint), found.entries, found.exclusions)

    def _keep(self, held: Held, put: Callable[[PinnedCheckpoint], None] = lambda _pin: None) -> None:
        self.pins.entries += held.entries
        self.pins.exclusions += held.exclusions
        put(held.pin)

    def _let_go(self, held: Held, reason: str) -> None:
        release(self.fetch.case.path / held.pin.pinned)
        self._seen[held.pin.original] = None
        self.pins.not_pinned.append((held.pin.original, reason))


def _inspected(destination: Path, checkpoint: Checkpoint) -> Checkpoint:
    """What is in the copy. Without a layout that knows it, it is kept and not trusted."""
    try:
        found = inspect_checkpoint(destination)
    except InputUnreadable as error:
        return replace(
            checkpoint, path=str(destination), layout="unknown", integrity=Integrity.CORRUPT, reason=error.message
        )
    return found if isinstance(found.step, int) else replace(found, step=checkpoint.step)


def _why_unusable(copy: Checkpoint, *, is_start: bool) -> str:
    usable = (Integrity.COMPLETE, Integrity.UNVERIFIABLE) if is_start else (Integrity.COMPLETE,)
    return "" if copy.integrity in usable else f"{copy.integrity}: {copy.reason}"


def pin_remote_run(
    case: Case,
    run: Run,
    onset: int | None,
    *,
    algorithm: Algorithm,
    ledger: Ledger,
    held: Path,
    readers: Readers,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[Checkpoint, ...], Pins, tuple[Reference, ...]]:
    """(what the store lists, what is in the case of it, what is only named). Raises `SpikeError`."""
    remote = list_remote(run.checkpoints)
    listed = remote.checkpoints()
    wanted = likely_pins(plan_pins(listed, onset))
    # The newest candidate is read a second time, from its copy, to be judged.
    total = sum(c.num_bytes for c in wanted) + (wanted[0].num_bytes if wanted else 0)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if on_progress is not None:
            on_progress(min(done, total), total)

    fetch = Fetch(case, remote, held, algorithm, ledger, advance)
    work = RemotePinning(fetch, Judge(readers, ledger, advance), Path(run.directory))
    pins = work.pin_all(listed, onset)
    if not listed:
        pins.not_pinned.append((shown_url(run.checkpoints), "nothing in the store matches"))
    if on_progress is not None:
        on_progress(total, total)
    return listed, pins, tuple(work.references)
