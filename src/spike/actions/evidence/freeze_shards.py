"""How do many processes, on many hosts, hash what one freeze hashes, and get the same manifest?

Each shard links, copies and hashes its part of the checkpoints that will be pinned, and notes it; the merge is an
ordinary freeze that finds everything done. The case is locked while the work is divided, never while it is read. The
newest candidate is one part by itself, so that it is hashed and judged in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from spike.actions.evidence.last_good import Judge, Readers, default_readers
from spike.actions.evidence.opening import WAIT_S
from spike.actions.evidence.pins import LEDGER, Pinning, hold_all, likely_pins, place_of, plan_pins
from spike.actions.evidence.shard_plan import (
    ShardPlan,
    mark_done,
    missing,
    read_plan,
    refuse_other_plan,
    shard_lock,
    write_plan,
)
from spike.casefile.case import Case
from spike.casefile.draft import Draft
from spike.casefile.ledger import Ledger
from spike.casefile.lock import case_lock
from spike.casefile.manifest import EVIDENCE, read_manifest
from spike.casefile.pinning import draft_pin
from spike.domain.checkpoint import Checkpoint
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.manifest import Algorithm, EntryKind, decode_path, encode_path
from spike.domain.remote import is_url, shown_url
from spike.domain.run import Run
from spike.domain.shards import Shard, Unit

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class ShardDone:
    """What one process did."""

    shard: Shard
    num_files: int
    num_bytes: int
    num_bytes_read: int
    """Less where an earlier attempt had got some of it done."""
    problems: tuple[tuple[str, str], ...]
    """(file, reason) of what could not be hashed; the merge looks at it once more."""
    missing: tuple[Shard, ...]
    """Shards that are still to be done."""


def freeze_shard(
    case: Case,
    run: Run,
    shard: Shard,
    *,
    onset: int | None,
    algorithm: Algorithm = Algorithm.SHA256,
    readers: Readers | None = None,
    on_progress: Progress | None = None,
) -> ShardDone | None:
    """Do one shard of a case; None where the case is frozen already. Done twice, the second time reads nothing.

    `onset` is used by whoever comes first. Raises `SpikeError` where the case is being frozen in another number of
    shards or by another algorithm, `CaseInUse` where this very shard is being done.
    """
    chosen = readers or default_readers(onset=onset)
    if is_url(run.checkpoints):
        raise SpikeError(
            f"{shown_url(run.checkpoints)} lies in an object store, which one process reads, several ranges at once",
            hint="spike freeze, without --shard",
        )
    with case_lock(case.path, "freeze", wait_s=WAIT_S):
        if read_manifest(case.path) is not None:
            return None
        plan = read_plan(case)
        if plan is None:
            plan = _divide(case, run, shard, chosen, onset, algorithm)
        refuse_other_plan(case, plan, shard, algorithm)
    with shard_lock(case, shard):
        ledger = Ledger(case.path / LEDGER, f"shard-{shard.number}-of-{shard.count}")
        done = _Part(case, run, shard, plan, chosen, ledger, on_progress).do()
    return replace(done, missing=missing(case, plan))


def _divide(case: Case, run: Run, shard: Shard, readers: Readers, onset: int | None, algorithm: Algorithm) -> ShardPlan:
    """Hold the checkpoints, begin their pins, and write down what there is to read."""
    directory = Path(run.directory)
    found = readers.find(directory, run.checkpoints)
    wanted = likely_pins(hold_all(case, plan_pins(found, onset), onset, directory))
    ledger = Ledger(case.path / LEDGER, f"plan-of-{shard.count}")
    work = _pinning(case, run, algorithm, readers, ledger, lambda _count: None)
    units: list[Unit] = []
    for number, checkpoint in enumerate(wanted):
        draft = _draft(work, checkpoint)
        if draft is None:
            continue
        files = [Unit(number, encode_path(e.path), e.size) for e in draft.tree if e.kind is EntryKind.FILE]
        is_judged = number == 0 and (onset is None or _is_before(checkpoint, onset))
        units += [Unit(number, "", sum(u.num_bytes for u in files))] if is_judged else files
    plan = ShardPlan(shard.count, algorithm, onset, wanted, tuple(units))
    write_plan(case, plan)
    ledger.close()
    return plan


def _is_before(checkpoint: Checkpoint, onset: int) -> bool:
    return isinstance(checkpoint.step, int) and checkpoint.step < onset


def _draft(work: Pinning, checkpoint: Checkpoint) -> Draft | None:
    """The pin of this checkpoint as far as it is; None where it is complete, or cannot be begun."""
    destination = work.destination(checkpoint)
    if destination.exists():
        return None
    try:
        return draft_pin(
            work.source(checkpoint),
            destination,
            root=work.case.path / EVIDENCE,
            algorithm=work.algorithm,
            written_again=work.is_written_again(checkpoint),
            ledger=work.ledger,
        )
    except InputUnreadable:
        return None  # the merge meets it again, and records why


def _pinning(
    case: Case, run: Run, algorithm: Algorithm, readers: Readers, ledger: Ledger, on_bytes: Callable[[int], None]
) -> Pinning:
    judge = Judge(readers, ledger, on_bytes)
    return Pinning(case, Path(run.directory), algorithm, ledger, judge, on_bytes)


class _Part:
    """One shard's work."""

    def __init__(
        self,
        case: Case,
        run: Run,
        shard: Shard,
        plan: ShardPlan,
        readers: Readers,
        ledger: Ledger,
        on_progress: Progress | None,
    ) -> None:
        self.case, self.shard, self.plan, self.ledger = case, shard, plan, ledger
        self.on_progress = on_progress
        self.units = plan.units_of(shard)
        self.total = sum(u.num_bytes for u in self.units)
        self.num_read, self.num_files = 0, 0
        self.problems: list[tuple[str, str]] = []
        self.work = _pinning(case, run, plan.algorithm, readers, ledger, self._advance)
        self.left = self.total - min(self.total, sum(map(self._known, self.units)))

    def do(self) -> ShardDone:
        """Everything of this shard that is not done; what cannot be read is named, and left to the merge."""
        try:
            for number, checkpoint in enumerate(self.plan.checkpoints):
                mine = [u for u in self.units if u.checkpoint == number]
                if any(not u.path for u in mine):
                    self._take_whole(checkpoint)
                elif mine:
                    self._take_files(checkpoint, [decode_path(u.path) for u in mine])
        finally:
            self.ledger.close()
        if self.on_progress is not None:
            self.on_progress(self.left, self.left)
        mark_done(self.case, self.shard, self.num_files, self.total)
        return ShardDone(self.shard, self.num_files, self.total, self.num_read, tuple(self.problems), ())

    def _take_whole(self, checkpoint: Checkpoint) -> None:
        others = self.plan.checkpoints
        pinned, _reason = self.work.pin_and_judge(checkpoint, others)
        if pinned is None:
            self.problems += self.work.pins.not_pinned
        self.num_files += sum(e.kind is EntryKind.FILE for e in self.work.pins.entries)

    def _take_files(self, checkpoint: Checkpoint, paths: list[str]) -> None:
        draft = _draft(self.work, checkpoint)
        if draft is None:
            return
        for path, found in draft.fill(paths, on_bytes=self._advance).items():
            if found.problem:
                self.problems.append((f"{checkpoint.path}/{path}", found.problem))
            self.num_files += 1

    def _advance(self, num_bytes: int) -> None:
        self.num_read += num_bytes
        if self.on_progress is not None:
            self.on_progress(min(self.num_read, self.left), self.left)

    def _known(self, unit: Unit) -> int:
        """Bytes of this unit that an earlier attempt had noted."""
        pin = place_of(self.plan.checkpoints[unit.checkpoint], self.work.run)
        return self.ledger.num_bytes_below(encode_path(f"pinned/{pin}") + (f"/{unit.path}" if unit.path else ""))
