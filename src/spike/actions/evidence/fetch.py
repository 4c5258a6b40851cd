"""How does a checkpoint come out of an object store into the case, unmixed and provable?

Its objects are listed before and after; each is read under one version id, or under its ETag, and lands in the case in
one pass together with its digest. Too large to copy, and kept by its store under version ids, it is streamed once for
its digests and named in the manifest instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spike.actions.evidence.remote_run import RemoteRun
from spike.casefile.case import Case
from spike.casefile.codec import from_payload, to_payload
from spike.casefile.hashing import new_hasher
from spike.casefile.holding import discard
from spike.casefile.ledger import Ledger
from spike.casefile.manifest import EVIDENCE
from spike.casefile.pinning import SPARE_BYTES, Pin
from spike.casefile.received import Incoming, OnFileChunk, Reception
from spike.domain.checkpoint import Checkpoint
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import Algorithm, Exclusion, Guarantee, Reference, decode_path, encode_path
from spike.domain.remote import StoredCheckpoint, StoredObject
from spike.readers.remote import (
    Store,
    StoreUnavailable,
    as_it_is,
    list_below,
    read_blocks,
    refuse_change,
    usable_objects,
)

COPY_LIMIT_BYTES = 64 << 30
"""A checkpoint that trials do not start from is not copied beyond this size where its store keeps versions of it."""
SMALL_BYTES = 8 << 20
"""Objects up to this size are fetched several at a time: what they cost is the way there and back."""
AT_ONCE = 8
FETCHED_SCHEMA = "spike.fetched/1"


@dataclass(frozen=True, slots=True)
class Named:
    """A checkpoint that stays in its store: what the manifest says of it, and why it was not copied."""

    references: tuple[Reference, ...]
    exclusions: tuple[Exclusion, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """One object of a completed pin, as it is written down before the pin gets its name."""

    path: str
    """Encoded; "" where the pin is one file."""
    origin: str
    size: int
    modified_ns: int
    version: str
    etag: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetches checkpoints of one remote run into one case."""

    case: Case
    remote: RemoteRun
    held: Path
    """Where an unfinished freeze keeps what it has, below the case; it disappears with the manifest's writing."""
    algorithm: Algorithm
    ledger: Ledger
    on_bytes: Callable[[int], None]
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __call__(
        self, url: str, destination: Path, *, is_start: bool, on_chunk: OnFileChunk | None = None
    ) -> Pin | Named:
        """The checkpoint at `url`, held at `destination` or named; `is_start` says that trials may start from it.

        What an interrupted freeze had of it is not read again. Raises `InputUnreadable` where it cannot be had as it
        was listed (changed, deleted, refused), `StoreUnavailable` where the store does not answer, `SpikeError` where
        the case cannot be written.
        """
        reception = self._reception(destination)
        if reception.is_complete():
            return self._earlier(reception)
        generation = self.remote.generations.get(url)
        if generation is None:
            raise InputUnreadable(f"{url} is not in the store any more, and the case has only a part of it")
        try:
            return self._fetch(reception, generation, is_start, on_chunk)
        except InputUnreadable:
            discard(reception.draft)  # of a checkpoint that is not whole, nothing is kept
            raise

    def left_over(self, listed: frozenset[str]) -> tuple[Checkpoint, ...]:
        """Checkpoints that an interrupted freeze had completed and that the store has lost since."""
        evidence, found = self.case.path / EVIDENCE, []
        for note in sorted(self.held.rglob("*.fetched.json")):
            name = note.relative_to(self.held).as_posix().removesuffix(".fetched.json")
            payload = self.case.read_json(note.relative_to(self.case.path).as_posix())
            if payload is None or not (evidence / "pinned" / name).exists():
                continue
            checkpoint = from_payload(Checkpoint, payload.get("checkpoint", {}), source=str(note))
            if checkpoint.path not in listed:
                found.append(checkpoint)
        return tuple(found)

    def _reception(self, destination: Path) -> Reception:
        evidence = self.case.path / EVIDENCE
        name = destination.relative_to(evidence / "pinned").as_posix()
        return Reception(evidence, destination, self.held / f"{name}.fetching", self.algorithm, self.ledger)

    def _fetch(
        self, reception: Reception, generation: StoredCheckpoint, is_start: bool, on_chunk: OnFileChunk | None
    ) -> Pin | Named:
        store = self.remote.store
        now = list_below(store, generation)
        refuse_change(store, generation.objects, now)
        usable, left_out = usable_objects(store, generation)
        if self._is_too_large(generation, is_start, reception.held_bytes()):
            return self._name(generation, usable, left_out, on_chunk)
        incoming = self._take_all(reception, generation, usable, on_chunk)
        refuse_change(store, now, list_below(store, generation))
        self._write_down(reception, generation, incoming, left_out)
        return Pin(Guarantee.COPY, reception.close(incoming), left_out)

    def _take_all(
        self,
        reception: Reception,
        generation: StoredCheckpoint,
        usable: Sequence[StoredObject],
        on_chunk: OnFileChunk | None,
    ) -> list[Incoming]:
        store = self.remote.store

        def take(stored: StoredObject) -> Incoming:
            incoming = _incoming(store, generation, as_it_is(store, stored))
            reception.take(incoming, on_bytes=self._advance, on_chunk=on_chunk)
            return incoming

        is_many = on_chunk is None and store.is_concurrent
        small = [o for o in usable if is_many and o.size <= SMALL_BYTES]
        large = [o for o in usable if not is_many or o.size > SMALL_BYTES]
        try:
            return _several(take, small) + [take(stored) for stored in large]
        except StoreUnavailable as error:
            kept = f"; {reception.held_bytes():,} bytes of it are kept in {reception.draft}"
            raise StoreUnavailable(f"{error.message}{kept}", hint=error.hint) from error

    def _is_too_large(self, generation: StoredCheckpoint, is_start: bool, held_bytes: int) -> bool:
        """True where it should be named instead: no room, or large and not what trials start from."""
        usage = os.statvfs(self.case.path)
        fits = generation.num_bytes - held_bytes + SPARE_BYTES <= usage.f_bavail * usage.f_frsize
        if fits and (is_start or generation.num_bytes <= COPY_LIMIT_BYTES):
            return False
        is_kept = all(as_it_is(self.remote.store, o).version for o in generation.objects)
        if not is_kept and not fits:
            raise InputUnreadable(
                f"{self.remote.store.url(generation.path)} has {generation.num_bytes / 1e9:.1f} GB, for which there is"
                f" no room in {self.case.path}, and its bucket keeps no versions, so that naming it would hold nothing",
                hint="free space there, or keep cases elsewhere: SPIKE_CASES=DIR; then type the same command again",
            )
        return is_kept

    def _name(
        self,
        generation: StoredCheckpoint,
        usable: Sequence[StoredObject],
        left_out: tuple[Exclusion, ...],
        on_chunk: OnFileChunk | None,
    ) -> Named:
        store = self.remote.store
        found = [self._reference(_incoming(store, generation, as_it_is(store, o)), on_chunk) for o in usable]
        refuse_change(store, generation.objects, list_below(store, generation))
        reason = (
            f"named, not copied: its {len(found)} objects ({generation.num_bytes / 1e9:.1f} GB) stay in the store;"
            " their versions and digests are in the manifest"
        )
        return Named(tuple(found), left_out, reason)

    def _reference(self, found: Incoming, on_chunk: OnFileChunk | None) -> Reference:
        """Stream it once; nothing is kept but the digest."""
        hasher, at = new_hasher(self.algorithm), 0
        for block in found.blocks():
            hasher.update(block)
            if on_chunk is not None:
                on_chunk(found.path, at, memoryview(block))
            at += len(block)
            self._advance(len(block))
        address = encode_path(found.origin)
        return Reference(address, found.version, found.etag, found.size, found.modified_ns, hasher.hexdigest())

    def _advance(self, num_bytes: int) -> None:
        with self._counting:
            self.on_bytes(num_bytes)

    def _note_of(self, reception: Reception) -> str:
        place = reception.draft.relative_to(self.case.path).as_posix()
        return f"{place.removesuffix('.fetching')}.fetched.json"

    def _write_down(
        self,
        reception: Reception,
        generation: StoredCheckpoint,
        incoming: Sequence[Incoming],
        left_out: Sequence[Exclusion],
    ) -> None:
        """What the pin consists of, before it has its name: a freeze that is killed after it can still say so."""
        taken = [
            Taken(encode_path(i.path), encode_path(i.origin), i.size, i.modified_ns, i.version, i.etag)
            for i in incoming
        ]
        payload: dict[str, Any] = {
            "schema": FETCHED_SCHEMA,
            "checkpoint": to_payload(self.remote.describe(generation)),
            "objects": [to_payload(t) for t in taken],
            "exclusions": [to_payload(e) for e in left_out],
        }
        self.case.write_json(self._note_of(reception), payload)

    def _earlier(self, reception: Reception) -> Pin:
        """A pin that an interrupted freeze had completed: the oldest evidence there is."""
        name = self._note_of(reception)
        found = self.case.read_json(name)
        if found is None:
            raise InputUnreadable(f"{reception.destination} is there, and {name} does not say what it is a copy of")
        taken = [from_payload(Taken, row, source=name) for row in found.get("objects", [])]
        left_out = tuple(from_payload(Exclusion, row, source=name) for row in found.get("exclusions", []))
        incoming = [
            Incoming(
                decode_path(t.path), decode_path(t.origin), t.size, t.modified_ns, t.version, t.etag, lambda: iter(())
            )
            for t in taken
        ]
        return Pin(Guarantee.COPY, reception.close(incoming), left_out)


def _several(take: Callable[[StoredObject], Incoming], small: Sequence[StoredObject]) -> list[Incoming]:
    """A few at a time; the first failure ends it."""
    if not small:
        return []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        jobs = [pool.submit(take, stored) for stored in small]
        try:
            return [job.result() for job in jobs]
        finally:
            for job in jobs:
                job.cancel()


def _incoming(store: Store, generation: StoredCheckpoint, stored: StoredObject) -> Incoming:
    path = "" if generation.is_single else stored.path.removeprefix(f"{generation.path}/")
    return Incoming(
        path=path,
        origin=store.address(stored.path),
        size=stored.size,
        modified_ns=stored.modified_ns,
        version=stored.version,
        etag=stored.etag,
        blocks=lambda: read_blocks(store, stored),
    )
