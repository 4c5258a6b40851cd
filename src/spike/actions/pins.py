"""Which checkpoints does a case need, and which of them can be trusted enough to start from?

The last good one is the newest whole and finite checkpoint with a step before the onset; up to three older ones and
up to two from the onset on are kept with it. What is judged is the pinned bytes, not the run's: those may change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from spike.casefile.atomic import writing
from spike.casefile.case import Case
from spike.casefile.codec import from_payload, to_payload
from spike.casefile.holding import hold
from spike.casefile.manifest import EVIDENCE
from spike.casefile.pinning import pin_checkpoint, release
from spike.domain.case import PinnedCheckpoint
from spike.domain.checkpoint import Checkpoint, CheckpointScan, Integrity, Role
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import Algorithm, Exclusion, ManifestEntry
from spike.domain.measured import NotMeasured

MAX_EARLIER = 3
MAX_SUSPECT = 2
HELD_BEFORE = 6
"""Candidates held at once: the newest may turn out to be damaged."""
HELD = ".held"
PLAN = f"{HELD}/plan.json"
PLAN_SCHEMA = "spike.pin-plan/1"
_MAX_FLAT = 100
NO_STEP = "its step is not known"


class Scan(Protocol):
    """`spike.readers.checkpoints.scan_checkpoint`."""

    def __call__(self, checkpoint: Checkpoint, on_bytes: Callable[[int], None] | None = None, /) -> CheckpointScan:
        """Read every byte of a checkpoint once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Checkpoints in the order in which they are wanted."""

    before: tuple[Checkpoint, ...]
    """Step before the onset, newest first."""
    suspect: tuple[Checkpoint, ...]
    """Step at or after the onset, oldest first."""
    stepless: tuple[Checkpoint, ...] = ()


@dataclass(slots=True)
class Pins:
    """What came of a plan."""

    last_good: PinnedCheckpoint | None = None
    earlier: list[PinnedCheckpoint] = field(default_factory=list)
    suspect: list[PinnedCheckpoint] = field(default_factory=list)
    not_pinned: list[tuple[str, str]] = field(default_factory=list)
    entries: list[ManifestEntry] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)


def plan_pins(checkpoints: tuple[Checkpoint, ...], onset: int | None) -> Plan:
    """Sort checkpoints around the onset; without one, all of them lie before it.

    A log counts from 0 or from 1: a checkpoint of step < onset was written before the onset either way.
    """
    known = [(c.step, c) for c in checkpoints if not isinstance(c.step, NotMeasured)]
    before = sorted((c for s, c in known if onset is None or s < onset), key=_age, reverse=True)
    suspect = sorted((c for s, c in known if onset is not None and s >= onset), key=_age)
    stepless = tuple(c for c in checkpoints if isinstance(c.step, NotMeasured))
    return Plan(tuple(before), tuple(suspect), stepless)


def hold_all(case: Case, plan: Plan, onset: int | None, run: Path) -> Plan:
    """Hold what the plan wants against rotation, at once, and write down what is held.

    A plan that an interrupted freeze left is taken in: what it held may be gone from the run by now.
    """
    plan = _with_left_over(case, plan, onset, run)
    wanted = (*plan.before[:HELD_BEFORE], *plan.suspect[:MAX_SUSPECT])
    case.write_json(PLAN, {"schema": PLAN_SCHEMA, "checkpoints": [to_payload(checkpoint) for checkpoint in wanted]})
    for checkpoint in wanted:
        try:
            hold(Path(checkpoint.path), case.path / HELD / place_of(checkpoint, run))
        except InputUnreadable:
            continue  # pinning meets it again, and records why
    return plan


def pin_all(
    case: Case, plan: Plan, scan: Scan, *, run: Path, algorithm: Algorithm, on_bytes: Callable[[int], None]
) -> Pins:
    """Pin what the plan wants, newest first, until a last good checkpoint and its elders are there."""
    work = _Work(case, run, algorithm, scan, on_bytes, Pins())
    for checkpoint in plan.stepless:
        work.pins.not_pinned.append((checkpoint.path, NO_STEP))
    for checkpoint in _trustworthy_first(plan.before):
        if work.pins.last_good is not None and len(work.pins.earlier) >= MAX_EARLIER:
            break
        work.take_candidate(checkpoint, plan.before)
    work.pins.earlier.sort(key=lambda p: -p.step)
    for checkpoint in plan.suspect:
        if len(work.pins.suspect) >= MAX_SUSPECT:
            break
        pinned = work.pin(checkpoint)
        if pinned is not None:
            work.pins.suspect.append(pinned)
    return work.pins


@dataclass(frozen=True, slots=True)
class _Work:
    case: Case
    run: Path
    algorithm: Algorithm
    scan: Scan
    on_bytes: Callable[[int], None]
    pins: Pins

    def take_candidate(self, checkpoint: Checkpoint, others: tuple[Checkpoint, ...]) -> None:
        """Pin it as the last good one, as an earlier one, or write down why not."""
        if checkpoint.integrity not in (Integrity.COMPLETE, Integrity.UNVERIFIABLE):
            self.pins.not_pinned.append((checkpoint.path, f"{checkpoint.integrity}: {checkpoint.reason}"))
            return
        before = len(self.pins.entries)
        pinned = self.pin(checkpoint)
        if pinned is None:
            return
        if self.pins.last_good is not None:
            if checkpoint.is_whole:
                self.pins.earlier.append(pinned)
            else:
                self._let_go(pinned, before, f"{checkpoint.integrity}: {checkpoint.reason}")
            return
        reason = self._why_not_good(replace(checkpoint, path=str(self.case.path / pinned.pinned)), others)
        if reason:
            self._let_go(pinned, before, reason)
        else:
            self.pins.last_good = pinned

    def pin(self, checkpoint: Checkpoint) -> PinnedCheckpoint | None:
        """Pin one checkpoint; None, with the reason in `not_pinned`, where it cannot be held as it is."""
        step = checkpoint.step
        assert not isinstance(step, NotMeasured)
        origin = Path(checkpoint.path)
        destination = self.case.path / EVIDENCE / "pinned" / place_of(checkpoint, self.run)
        try:
            pin = pin_checkpoint(
                self._source(checkpoint, destination),
                destination,
                root=self.case.path / EVIDENCE,
                origin=origin,
                algorithm=self.algorithm,
                written_again=_is_written_again(origin, self.run, step),
                on_bytes=self.on_bytes,
            )
        except InputUnreadable as error:
            self.pins.not_pinned.append((checkpoint.path, error.message))
            return None
        self.pins.entries += pin.entries
        self.pins.exclusions += pin.exclusions
        relative = destination.relative_to(self.case.path).as_posix()
        return PinnedCheckpoint(step, checkpoint.path, relative, pin.guarantee.value)

    def _source(self, checkpoint: Checkpoint, destination: Path) -> Path:
        """Where the bytes are now. What an interrupted freeze had pinned already is the oldest evidence there is."""
        held = self.case.path / HELD / place_of(checkpoint, self.run)
        rescued = held.with_name(f"{held.name}.rescued")
        if destination.exists():
            with writing(rescued):
                rescued.parent.mkdir(parents=True, exist_ok=True)
                if rescued.exists():
                    release(rescued)
                destination.rename(rescued)
        return next((place for place in (rescued, held) if place.exists()), Path(checkpoint.path))

    def _why_not_good(self, checkpoint: Checkpoint, others: tuple[Checkpoint, ...]) -> str:
        """ "" for a checkpoint that trials may start from."""
        found = self.scan(checkpoint, self.on_bytes)
        if found.unreadable:
            where, reason = found.unreadable[0]
            return f"{where}: {reason}"
        bad = [t for t in found.nonfinite() if t.role is not Role.OTHER]
        if not bad or self._are_constants(checkpoint, found, others):
            return ""
        first = bad[0]
        more = f" and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
        return f"not finite: {first.name}{f' ({first.key})' if first.key else ''}{more} in {first.file}"

    def _are_constants(self, checkpoint: Checkpoint, found: CheckpointScan, others: tuple[Checkpoint, ...]) -> bool:
        """True where an older checkpoint holds the same non-finite bytes: an attention mask of -inf, for one."""
        older = next((c for c in others if c.is_whole and _step(c) < _step(checkpoint)), None)
        if older is None:
            return False
        same = {(t.name, t.key, t.digest) for t in self.scan(older, self.on_bytes).tensors}
        return all((t.name, t.key, t.digest) in same for t in found.nonfinite() if t.role is not Role.OTHER)

    def _let_go(self, pinned: PinnedCheckpoint, num_entries: int, reason: str) -> None:
        release(self.case.path / pinned.pinned)
        del self.pins.entries[num_entries:]
        self.pins.not_pinned.append((pinned.original, reason))


def _trustworthy_first(before: tuple[Checkpoint, ...]) -> Iterator[Checkpoint]:
    """Newest first; those whose bytes cannot be verified only after every one that can."""
    yield from (c for c in before if c.integrity is not Integrity.UNVERIFIABLE)
    yield from (c for c in before if c.integrity is Integrity.UNVERIFIABLE)


def _with_left_over(case: Case, plan: Plan, onset: int | None, run: Path) -> Plan:
    """The plan, and whatever an interrupted freeze still has of checkpoints that the run has lost since."""
    found = case.read_json(PLAN)
    if found is None:
        return plan
    listed = {(c.path, c.step) for c in (*plan.before, *plan.suspect)}
    left = [from_payload(Checkpoint, c, source=PLAN) for c in found.get("checkpoints", [])]
    places = (case.path / HELD, case.path / EVIDENCE / "pinned")
    gone = [
        c for c in left if (c.path, c.step) not in listed and any((at / place_of(c, run)).exists() for at in places)
    ]
    return plan_pins((*plan.before, *plan.suspect, *plan.stepless, *gone), onset) if gone else plan


def place_of(checkpoint: Checkpoint, run: Path) -> str:
    """Directory and name of a pin: its own name, so that readers recognise it, below its parent's and its step."""
    path = Path(checkpoint.path)
    parent = path.parent.relative_to(run) if path.is_relative_to(run) else path.parent
    flat = "__".join(part for part in parent.parts if part != "/") or "run"
    if len(flat) > _MAX_FLAT:
        flat = f"{hashlib.sha256(flat.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}__{path.parent.name}"
    return f"{flat}@{checkpoint.step}/{path.name}"


def _is_written_again(origin: Path, run: Path, step: int) -> bool:
    """True where the path does not carry its step: the next save will reuse the name."""
    shown = origin.relative_to(run).as_posix() if origin.is_relative_to(run) else origin.as_posix()
    return re.search(rf"(?<!\d)0*{step}(?!\d)", shown) is None


def _step(checkpoint: Checkpoint) -> int:
    return -1 if isinstance(checkpoint.step, NotMeasured) else checkpoint.step


def _age(checkpoint: Checkpoint) -> tuple[int, int, str]:
    return _step(checkpoint), checkpoint.mtime_ns, checkpoint.path
