"""What do the logs say that a run keeps in an object store? A private copy is read, and named by its address.

The copy is one version of the object, or the reading is repeated: a live run replaces its log again and again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from spike.casefile.hashing import new_hasher
from spike.casefile.small_files import MAX_COPY_BYTES, Kept, keep_bytes
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.manifest import Algorithm, Exclusion, ManifestEntry, encode_path
from spike.domain.remote import StoredObject, is_url, why_not_a_file_name
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.readers.metrics.read import relative
from spike.readers.remote import Store, find_objects, open_store, read_blocks

TRIES = 3
"""A log that changes under every one of these readings is replaced faster than it can be read."""
MAX_LOGS = 500
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npz")
"""A prefix that is named for its logs may hold checkpoints too."""


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """One log in a store, and where its copy lies."""

    store: Store
    stored: StoredObject
    path: Path


@contextmanager
def copied_logs(run: Run) -> Iterator[tuple[RemoteLog, ...]]:
    """Copies of every log that `metrics:` names by address; they are gone afterwards. Raises `SpikeError`."""
    addresses = [name for name in run.metrics if is_url(name)]
    if not addresses:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="spike-logs-", ignore_cleanup_errors=True) as place:
        logs: list[RemoteLog] = []
        for address in addresses:
            store = open_store(address)
            for stored in _logs_of(store):
                target = Path(place) / str(len(logs)) / _name(stored)
                target.parent.mkdir()
                logs.append(RemoteLog(store, _copy(store, stored, target), target))
        yield tuple(logs)


def named_by_address(signals: Signals, logs: Sequence[RemoteLog], base: Path) -> Signals:
    """The signals of copies, with the address wherever the copy's path stands."""
    names = {relative(log.path, base): log.store.url(log.stored.path) for log in logs}
    if not names:
        return signals

    def shown(path: str) -> str:
        return names.get(path, path)

    def text(sentence: str) -> str:
        for path, address in names.items():
            sentence = sentence.replace(path, address)
        return sentence

    return replace(
        signals,
        series=tuple(replace(s, source=shown(s.source)) for s in signals.series),
        sources=tuple(replace(s, path=shown(s.path)) for s in signals.sources),
        rewinds=tuple(replace(r, source=shown(r.source)) for r in signals.rewinds),
        damages=tuple(replace(d, source=shown(d.source), reason=text(d.reason)) for d in signals.damages),
        notes=tuple((pattern, text(sentence)) for pattern, sentence in signals.notes),
        superseded=tuple(replace(s, source=shown(s.source)) for s in signals.superseded),
    )


def keep_logs(run: Run, evidence: Path) -> tuple[list[ManifestEntry], list[Exclusion]]:
    """Copy the run's remote logs into the evidence, secrets taken out; what is left out has its reason and digest."""
    entries: list[ManifestEntry] = []
    exclusions: list[Exclusion] = []
    with copied_logs(run) as logs:
        for log in logs:
            origin = encode_path(log.store.address(log.stored.path))
            if log.stored.size > MAX_COPY_BYTES:
                hasher = new_hasher(Algorithm.SHA256)
                with log.path.open("rb") as file:
                    while piece := file.read(1 << 20):
                        hasher.update(piece)
                reason = f"{log.stored.size} bytes are more than a case copies ({MAX_COPY_BYTES})"
                exclusions.append(Exclusion(origin, f"{reason}; sha256 {hasher.hexdigest()}"))
                continue
            place = _place(log)
            found = keep_bytes(
                log.path.read_bytes(), evidence, place, "log", origin=origin, mtime_ns=log.stored.modified_ns or None
            )
            if isinstance(found, Kept):
                entries.append(replace(found.entry, version=log.stored.version, etag=log.stored.etag))
            else:
                exclusions.append(found)
    return entries, exclusions


def _place(log: RemoteLog) -> str:
    """Where it lies below evidence/: under its address, if that can be a path."""
    scheme, _, rest = log.store.url(log.stored.path).partition("?")[0].partition("://")
    name = f"{scheme}/{rest.lstrip('/')}"
    if why_not_a_file_name(name):
        name = f"{scheme}/{log.stored.etag or log.stored.modified_ns}/{log.path.name}"
    return f"outside/{name}"


def _name(stored: StoredObject) -> str:
    """The file's own name, by which formats and ranks are recognised; what follows a question mark is a signature."""
    return PurePosixPath(stored.path.partition("?")[0]).name or "log"


def _logs_of(store: Store) -> list[StoredObject]:
    found = [o for o in find_objects(store) if o.path == store.root or _may_be_a_log(o)]
    if not found:
        raise InputUnreadable(
            f"spike.yaml names the metrics {store.url(store.root)}, and nothing that could be a log lies there",
            hint="correct `metrics:` in spike.yaml, or leave it out",
        )
    if len(found) > MAX_LOGS:
        raise SpikeError(
            f"{store.url(store.root)} holds {len(found)} objects that could be logs",
            hint="name them closer in spike.yaml: metrics: [s3://bucket/run/logs/metrics.jsonl]",
        )
    return found


def _may_be_a_log(stored: StoredObject) -> bool:
    name = PurePosixPath(stored.path).name
    return not name.endswith(_WEIGHTS) and 0 < stored.size <= MAX_COPY_BYTES and not why_not_a_file_name(name)


def _copy(store: Store, listed: StoredObject, target: Path) -> StoredObject:
    """One version of it, whole."""
    for tries_left in reversed(range(TRIES)):
        now = store.head(listed.path)
        if now is None:
            break
        try:
            with target.open("wb") as file:
                for block in read_blocks(store, now):
                    file.write(block)
        except InputUnreadable:
            if not tries_left:
                raise
            continue
        return now
    raise InputUnreadable(f"{store.url(listed.path)} is gone", hint="correct `metrics:` in spike.yaml")
