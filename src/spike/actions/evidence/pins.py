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

from spike.actions.evidence.last_good import Judge, step_of
from spike.casefile.case import Case
from spike.casefile.codec import from_payload, to_payload
from spike.casefile.draft import OnFileChunk
from spike.casefile.holding import hold
from spike.casefile.ledger import Ledger
from spike.casefile.manifest import EVIDENCE
from spike.casefile.pinning import pin_checkpoint, release
from spike.domain.case import PinnedCheckpoint
from spike.domain.checkpoint import Checkpoint, Integrity
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
LEDGER = f"{HELD}/hashed"
"""What an interrupted freeze got done."""
_USABLE = (Integrity.COMPLETE, Integrity.UNVERIFIABLE)
_MAX_FLAT = 100
NO_STEP = "its step is not known"


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


def pin_all(work: Pinning, plan: Plan) -> Pins:
    """Pin what the plan wants, newest first, until a last good checkpoint and its elders are there."""
    pins = work.pins
    pins.not_pinned += [(checkpoint.path, NO_STEP) for checkpoint in plan.stepless]
    for checkpoint in _trustworthy_first(plan.before):
        if pins.last_good is not None and len(pins.earlier) >= MAX_EARLIER:
            break
        work.take_candidate(checkpoint, plan.before)
    pins.earlier.sort(key=lambda p: -p.step)
    for checkpoint in plan.suspect:
        if len(pins.suspect) >= MAX_SUSPECT:
            break
        pinned = work.pin(checkpoint)
        if pinned is not None:
            pins.suspect.append(pinned)
    return pins


def likely_pins(plan: Plan) -> tuple[Checkpoint, ...]:
    """What is pinned if nothing is wrong with it, the candidate for the last good one first."""
    before = [c for c in _trustworthy_first(plan.before) if c.integrity in _USABLE]
    return (*before[: MAX_EARLIER + 1], *plan.suspect[:MAX_SUSPECT])


@dataclass(frozen=True, slots=True)
class Pinning:
    """Pins one checkpoint after the other into a case, and judges the candidates."""

    case: Case
    run: Path
    algorithm: Algorithm
    ledger: Ledger
    judge: Judge
    on_bytes: Callable[[int], None]
    pins: Pins = field(default_factory=Pins)

    def take_candidate(self, checkpoint: Checkpoint, others: tuple[Checkpoint, ...]) -> None:
        """Pin it as the last good one, as an earlier one, or write down why not."""
        if checkpoint.integrity not in _USABLE:
            self.pins.not_pinned.append((checkpoint.path, f"{checkpoint.integrity}: {checkpoint.reason}"))
            return
        before = len(self.pins.entries)
        if self.pins.last_good is not None:
            pinned = self.pin(checkpoint)
            if pinned is not None and checkpoint.is_whole:
                self.pins.earlier.append(pinned)
            elif pinned is not None:
                self._let_go(pinned, before, f"{checkpoint.integrity}: {checkpoint.reason}")
            return
        pinned, reason = self.pin_and_judge(checkpoint, others)
        if pinned is not None and reason:
            self._let_go(pinned, before, reason)
        elif pinned is not None:
            self.pins.last_good = pinned

    def pin_and_judge(
        self, checkpoint: Checkpoint, others: tuple[Checkpoint, ...]
    ) -> tuple[PinnedCheckpoint | None, str]:
        """Pin it and say why trials cannot start from it, in one pass over its bytes where that is possible."""
        before = len(self.pins.entries)
        is_new = not self.destination(checkpoint).exists()
        tap = self.judge.tap(checkpoint, self.source(checkpoint)) if is_new else None
        pinned = self.pin(checkpoint, tap.feed if tap is not None else None)
        if pinned is None:
            return None, ""
        there = replace(checkpoint, path=str(self.case.path / pinned.pinned))
        return pinned, self.judge.why_not_good(there, tuple(self.pins.entries[before:]), tap, others)

    def pin(self, checkpoint: Checkpoint, on_chunk: OnFileChunk | None = None) -> PinnedCheckpoint | None:
        """Pin one checkpoint; None, with the reason in `not_pinned`, where it cannot be held as it is."""
        step = checkpoint.step
        assert not isinstance(step, NotMeasured)
        destination = self.destination(checkpoint)
        try:
            pin = pin_checkpoint(
                self.source(checkpoint),
                destination,
                root=self.case.path / EVIDENCE,
                origin=Path(checkpoint.path),
                algorithm=self.algorithm,
                written_again=self.is_written_again(checkpoint),
                on_bytes=self.on_bytes,
                on_chunk=on_chunk,
                ledger=self.ledger,
            )
        except InputUnreadable as error:
            self.pins.not_pinned.append((checkpoint.path, error.message))
            release(destination)
            return None
        self.pins.entries += pin.entries
        self.pins.exclusions += pin.exclusions
        relative = destination.relative_to(self.case.path).as_posix()
        return PinnedCheckpoint(step, checkpoint.path, relative, pin.guarantee.value)

    def destination(self, checkpoint: Checkpoint) -> Path:
        """Where its pin belongs."""
        return self.case.path / EVIDENCE / "pinned" / place_of(checkpoint, self.run)

    def source(self, checkpoint: Checkpoint) -> Path:
        """Where its bytes are now: held by the case, or only in the run."""
        held = self.case.path / HELD / place_of(checkpoint, self.run)
        return held if held.exists() else Path(checkpoint.path)

    def is_written_again(self, checkpoint: Checkpoint) -> bool:
        """True where its path does not carry its step: the next save will reuse the name."""
        path = Path(checkpoint.path)
        shown = path.relative_to(self.run).as_posix() if path.is_relative_to(self.run) else path.as_posix()
        return re.search(rf"(?<!\d)0*{checkpoint.step}(?!\d)", shown) is None

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


def _age(checkpoint: Checkpoint) -> tuple[int, int, str]:
    return step_of(checkpoint), checkpoint.mtime_ns, checkpoint.path
