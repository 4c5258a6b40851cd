"""What was preserved, byte for byte, and does what lies there now still match it?

Paths are relative to the case's evidence/ directory, POSIX, in the reversible encoding of `encode_path`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

MANIFEST_SCHEMA = "spike.manifest/1"
_CODED = re.compile("[%\x00-\x1f\x7f\udc80-\udcff]")
"""`%`, control characters, and undecodable bytes as Python shows them (PEP 383)."""


class Algorithm(StrEnum):
    """Which digest a manifest is made of."""

    SHA256 = "sha256"
    BLAKE3 = "blake3"


class EntryKind(StrEnum):
    """What stands at a path."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    """A device, socket or pipe: never evidence, always a finding."""


class Guarantee(StrEnum):
    """What keeps the bytes of an entry from being changed by the run."""

    REFLINK = "reflink"
    """Own inode, shared blocks: neither deletion nor overwriting in the run reaches it."""
    COPY = "copy"
    """Own inode, own blocks."""
    HARD_LINK = "hard link"
    """The run's own inode: survives deletion and replacement by rename, NOT overwriting in place."""
    WRITTEN = "written by spike"
    """Made by freeze itself; there is no original."""
    OBJECT_VERSION = "object version"
    """Not in the case: a version that the store promises to keep, until somebody deletes it or a rule expires it."""


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file, directory or symlink of the evidence."""

    path: str
    role: str
    """"checkpoint", "config", "log", "hardware", "source", "signals", "environment", "description"."""
    kind: EntryKind
    size: int
    """Bytes; 0 for directories."""
    mode: int
    """Permission bits."""
    mtime_ns: int
    digest: str = ""
    """Of the bytes here, by the manifest's algorithm; "" for directories and symlinks."""
    target: str = ""
    """Where a symlink points, encoded like `path`."""
    guarantee: Guarantee = Guarantee.WRITTEN
    origin: str = ""
    """Absolute path or address of the original, encoded; "" for what spike wrote."""
    origin_digest: str = ""
    """Digest of the original where the copy differs from it (secrets taken out); else ""."""
    redactions: int = 0
    """Secrets taken out of the copy."""
    identity: str = ""
    """Inode and ctime_ns when it was hashed: a quick look can skip a file that still has them."""
    version: str = ""
    """Version id that an object store gave the original; "" where it keeps none, and for files."""
    etag: str = ""
    """The store's mark of the original's content."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that the case names and does not hold: too large to copy, kept by its store under a version id."""

    url: str
    """Address, encoded like a path."""
    version: str
    etag: str
    size: int
    modified_ns: int
    digest: str
    """Of its bytes as they were streamed once, by the manifest's algorithm."""
    role: str = "checkpoint"
    guarantee: Guarantee = Guarantee.OBJECT_VERSION


RELEASED_FILE = "released"
"""How the reason begins for a file of a pin that the operator let go; its digest follows."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Something that is not in the evidence, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of everything that freeze put under evidence/."""

    algorithm: Algorithm
    tree_digest: str
    """One digest of all entries and references, whatever their order; metadata is not part of it."""
    entries: tuple[ManifestEntry, ...]
    exclusions: tuple[Exclusion, ...] = ()
    references: tuple[Reference, ...] = ()


class ChangeKind(StrEnum):
    """In which way evidence differs from its manifest."""

    CHANGED = "bytes changed"
    TRUNCATED = "shorter"
    GROWN = "longer"
    EMPTIED = "emptied"
    DELETED = "deleted"
    ADDED = "added"
    RENAMED = "renamed"
    SWAPPED = "swapped"
    REPLACED = "replaced by another kind"
    TARGET = "points elsewhere"
    UNREADABLE = "unreadable"
    MODE = "mode"
    MTIME = "modification time"
    EMPTY_DIRECTORY = "empty directory added"


_METADATA = frozenset((ChangeKind.MODE, ChangeKind.MTIME, ChangeKind.EMPTY_DIRECTORY))


@dataclass(frozen=True, slots=True)
class Change:
    """One difference, naming the file."""

    kind: ChangeKind
    path: str
    statement: str

    @property
    def is_content(self) -> bool:
        """False where every byte and every name is still as it was frozen."""
        return self.kind not in _METADATA


def encode_path(raw: str) -> str:
    """A path as one printable line: `%`, control characters and undecodable bytes become %XX."""
    return _CODED.sub(lambda match: f"%{_byte(match.group()):02X}", raw)


def decode_path(encoded: str) -> str:
    """The path that `encode_path` encoded, with undecodable bytes as surrogates (PEP 383)."""

    def restore(match: re.Match[str]) -> str:
        value = int(match.group(1), 16)
        return chr(value) if value < 0x80 else chr(0xDC00 + value)

    return re.sub(r"%([0-9A-F]{2})", restore, encoded)


def refuse_unsafe(encoded: str) -> None:
    """`ValueError` for a path that could lead out of the evidence directory, or that has two spellings."""
    raw = decode_path(encoded)
    parts = raw.split("/")
    if encode_path(raw) != encoded:
        raise ValueError(f"path {encoded!r} is not in its one spelling")
    if "\0" in raw:
        raise ValueError(f"path {encoded!r} holds a NUL")
    if raw.startswith(("/", "~")):
        raise ValueError(f"path {encoded!r} is not relative to the evidence")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"path {encoded!r} has a component '', '.' or '..'")


def tree_digest(
    entries: tuple[ManifestEntry, ...] | list[ManifestEntry], references: tuple[Reference, ...] = ()
) -> str:
    """SHA-256 over the sorted lines `kind NUL path NUL digest-or-target LF`; equal content, equal digest.

    A reference is a line of the kind "reference", its path the address.
    """
    lines = [f"{e.kind}\0{e.path}\0{e.digest or e.target}\n" for e in entries]
    lines = sorted((*lines, *(f"reference\0{r.url}\0{r.digest}\n" for r in references)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def compare(manifest: Manifest, found: tuple[ManifestEntry, ...]) -> tuple[Change, ...]:
    """Every difference between the manifest and what lies there now; empty for untouched evidence.

    `found` comes from the same walk as the manifest's entries did; an entry with digest "" and kind FILE could
    not be read.
    """
    before = {entry.path: entry for entry in manifest.entries}
    now = {entry.path: entry for entry in found}
    deleted = [e for e in manifest.entries if e.path not in now]
    added = [e for e in found if e.path not in before]
    changes = _moves(deleted, added)
    moved = {change.path for change in changes}
    pairs = [(entry, now[path]) for path, entry in before.items() if path in now]
    swaps = _swaps(pairs)
    moved |= {change.path for change in swaps}
    changes += swaps
    changes += [c for old, new in pairs for c in _difference(old, new, skip_content=old.path in moved)]
    changes += [
        Change(ChangeKind.DELETED, e.path, f"{e.path} is gone")
        for e in deleted
        if e.path not in moved and not _below_replaced(e.path, before, now)
    ]
    changes += [c for e in added if e.path not in moved for c in _addition(e, added)]
    return tuple(sorted(changes, key=lambda c: (not c.is_content, c.path, c.kind)))


def _difference(old: ManifestEntry, new: ManifestEntry, *, skip_content: bool) -> list[Change]:
    if old.kind is not new.kind:
        text = f"{old.path} was a {old.kind} and is a {new.kind}"
        return [Change(ChangeKind.REPLACED, old.path, text)]
    changes: list[Change] = []
    if not skip_content:
        changes += _content_difference(old, new)
    if old.mode != new.mode and old.kind is not EntryKind.SYMLINK:
        changes.append(Change(ChangeKind.MODE, old.path, f"{old.path}: mode {old.mode:04o} is {new.mode:04o}"))
    if old.mtime_ns != new.mtime_ns and old.kind is EntryKind.FILE:
        changes.append(Change(ChangeKind.MTIME, old.path, f"{old.path}: modification time changed"))
    return changes


def _content_difference(old: ManifestEntry, new: ManifestEntry) -> list[Change]:
    if old.kind is EntryKind.SYMLINK and old.target != new.target:
        text = f"{old.path} pointed to {old.target} and points to {new.target}"
        return [Change(ChangeKind.TARGET, old.path, text)]
    if old.kind is not EntryKind.FILE or old.digest == new.digest:
        return []
    if not new.digest:
        return [Change(ChangeKind.UNREADABLE, old.path, f"{old.path} cannot be read")]
    sizes = f"{old.size} bytes were frozen, {new.size} are there"
    if new.size == 0:
        kind, text = ChangeKind.EMPTIED, f"{old.path} is empty ({old.size} bytes were frozen)"
    elif new.size < old.size:
        kind, text = ChangeKind.TRUNCATED, f"{old.path} is shorter: {sizes}"
    elif new.size > old.size:
        kind, text = ChangeKind.GROWN, f"{old.path} is longer: {sizes}"
    else:
        kind, text = ChangeKind.CHANGED, f"{old.path}: bytes differ at the same size ({old.size})"
    if old.guarantee is Guarantee.HARD_LINK:
        text += f"; it is a hard link to {old.origin}, which the run may have overwritten in place"
    return [Change(kind, old.path, text)]


def _moves(deleted: list[ManifestEntry], added: list[ManifestEntry]) -> list[Change]:
    """Files that are gone, with exactly one new file of the same bytes."""
    twins: dict[str, list[ManifestEntry]] = {}
    for new in added:
        twins.setdefault(new.digest, []).append(new)
    changes = []
    for old in deleted:
        same = twins.get(old.digest, []) if old.digest else []
        if len(same) == 1:
            text = f"{old.path} was renamed to {same[0].path}"
            changes += [Change(ChangeKind.RENAMED, path, text) for path in (old.path, same[0].path)]
    return changes


def _swaps(pairs: list[tuple[ManifestEntry, ManifestEntry]]) -> list[Change]:
    """Two files that hold each other's bytes."""
    changed = [(old, new) for old, new in pairs if old.digest != new.digest and new.digest]
    by_digests = {(old.digest, new.digest): old.path for old, new in changed}
    changes = []
    for old, new in changed:
        other = by_digests.get((new.digest, old.digest))
        if other is not None and other != old.path:
            text = f"{old.path} and {other} hold each other's bytes"
            changes.append(Change(ChangeKind.SWAPPED, old.path, text))
    return changes


def _addition(entry: ManifestEntry, added: list[ManifestEntry]) -> list[Change]:
    if entry.kind is EntryKind.DIRECTORY:
        if any(other.path.startswith(entry.path + "/") for other in added):
            return []
        text = f"{entry.path}/ is an empty directory that was not frozen"
        return [Change(ChangeKind.EMPTY_DIRECTORY, entry.path, text)]
    return [Change(ChangeKind.ADDED, entry.path, f"{entry.path} ({entry.kind}) was not frozen")]


def _below_replaced(path: str, before: dict[str, ManifestEntry], now: dict[str, ManifestEntry]) -> bool:
    """True for what lies below a directory that is now something else, or gone: that one line says it all."""
    parts = path.split("/")
    for length in range(1, len(parts)):
        parent = "/".join(parts[:length])
        if parent in before and (parent not in now or now[parent].kind is not EntryKind.DIRECTORY):
            return True
    return False


def _byte(character: str) -> int:
    code = ord(character)
    return code - 0xDC00 if code >= 0xDC80 else code
