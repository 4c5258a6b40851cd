"""Are the objects that a case names, or was copied from, still what they were? Only the store can say.

An object that the case merely names is evidence: gone or other bytes there mean that evidence was changed. One that
was copied is not: the run may delete it, and the case still holds its bytes. That is told, and changes no verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from spike.actions.evidence.verify import verify
from spike.casefile.manifest import read_manifest
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.manifest import Change, ChangeKind, Manifest, decode_path
from spike.domain.redaction import REDACTED
from spike.domain.remote import is_url, shown_url
from spike.domain.verification import Integrity, Verification
from spike.readers.remote import Store, open_store

MAX_UNANSWERED = 5


@dataclass(slots=True)
class Answers:
    """What the stores said."""

    changes: list[Change] = field(default_factory=list)
    """Of objects that the case does not hold."""
    origins: list[str] = field(default_factory=list)
    """Of objects that it holds a copy of, one sentence each where they are not what they were."""
    unanswered: list[str] = field(default_factory=list)
    num_asked: int = 0


@dataclass(frozen=True, slots=True)
class _Expected:
    url: str
    version: str
    etag: str
    size: int


def verify_with_stores(
    case: Path,
    *,
    is_online: bool,
    public_key: Path | None = None,
    on_bytes: Callable[[int], None] | None = None,
    open_at: Callable[[str], Store] = open_store,
) -> Verification:
    """As `verify`; with `is_online` the stores are asked too, else their objects are named.

    A reference that no store answered for makes the answer incomplete: nothing is wrong, and not everything is known.
    """
    found = verify(case, public_key=public_key, on_bytes=on_bytes)
    try:
        manifest = read_manifest(case)
    except InputUnreadable:  # is in `found` already
        manifest = None
    if manifest is None:
        return found
    found = replace(found, references=references_of(manifest))
    if not is_online:
        return found
    answers = ask_store(manifest, open_at)
    unfinished = found.unfinished
    if answers.unanswered:
        more = len(answers.unanswered) - MAX_UNANSWERED
        unfinished += (*answers.unanswered[:MAX_UNANSWERED], *((f"and {more} more",) if more > 0 else ()))
    integrity = found.integrity
    if answers.changes:
        integrity = Integrity.ALTERED
    elif answers.unanswered and integrity is Integrity.INTACT:
        integrity = Integrity.INCOMPLETE
    return replace(
        found,
        integrity=integrity,
        changes=(*answers.changes, *found.changes),
        unfinished=unfinished,
        origins=tuple(answers.origins),
        num_asked=answers.num_asked,
    )


def references_of(manifest: Manifest) -> tuple[str, ...]:
    """A sentence for each object that the case names and does not hold."""
    return tuple(
        f"{shown_url(decode_path(r.url))}: {r.size} bytes, version {r.version}, {manifest.algorithm} {r.digest}"
        for r in manifest.references
    )


def ask_store(manifest: Manifest, open_at: Callable[[str], Store] = open_store) -> Answers:
    """Ask for every object, by its version where it has one. Stores that cannot be asked are in the answer."""
    answers, stores = Answers(), _Stores(open_at)
    for r in manifest.references:
        expected = _Expected(decode_path(r.url), r.version, r.etag, r.size)
        found = stores.ask(expected, answers)
        if found:
            kind, text = found
            answers.changes.append(Change(kind, r.url, f"{shown_url(expected.url)} {text}"))
    for e in manifest.entries:
        origin = decode_path(e.origin)
        if not is_url(origin) or not (e.version or e.etag):
            continue
        # A log has its secrets taken out: what the store said of its length is not the length of the copy.
        size = -1 if e.redactions else e.size
        found = stores.ask(_Expected(origin, e.version, e.etag, size), answers)
        if found:
            answers.origins.append(f"{shown_url(origin)} {found[1]}; the case holds the bytes as they were frozen")
    return answers


class _Stores:
    """One client a store, however many objects are asked for."""

    def __init__(self, open_at: Callable[[str], Store]) -> None:
        self.open_at = open_at
        self.known: dict[str, Store] = {}

    def ask(self, expected: _Expected, answers: Answers) -> tuple[ChangeKind, str] | None:
        """How the object differs, None where it does not or where nobody answered."""
        if REDACTED in expected.url:
            answers.unanswered.append(f"{shown_url(expected.url)} cannot be asked: its address held credentials")
            return None
        scheme, _, path = expected.url.partition("://")
        place = f"{scheme}://{path.partition('/')[0]}"
        try:
            if place not in self.known:
                self.known[place] = self.open_at(place)
            store = self.known[place]
            now = store.head(store.path_of(expected.url), expected.version)
        except SpikeError as error:
            answers.unanswered.append(error.message)
            return None
        answers.num_asked += 1
        if now is None:
            what = f"version {expected.version} is gone" if expected.version else "is gone"
            return ChangeKind.DELETED, what
        if now.etag != expected.etag or expected.size not in (-1, now.size):
            text = f"holds other bytes: {expected.size} with ETag {expected.etag}, now {now.size} with {now.etag}"
            return ChangeKind.CHANGED, text
        return None
