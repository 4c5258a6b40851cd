"""What is in the evidence of a case, and is it still that?

manifest.json covers everything below evidence/ but itself and the two files made from it: SHA256SUMS (for
`cd evidence && sha256sum -c SHA256SUMS`; B3SUMS for `b3sum -c`) and the signature.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path

from spike.casefile.atomic import write_atomic
from spike.casefile.codec import from_payload
from spike.casefile.hashing import HashedFile, hash_tree
from spike.casefile.tree import TreeEntry, escapes, walk
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import (
    MANIFEST_SCHEMA,
    Algorithm,
    EntryKind,
    Exclusion,
    Manifest,
    ManifestEntry,
    Reference,
    decode_path,
    encode_path,
    refuse_unsafe,
    tree_digest,
)

EVIDENCE = "evidence"
MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "manifest.dsse.json"
SUMS_NAMES = {Algorithm.SHA256: "SHA256SUMS", Algorithm.BLAKE3: "B3SUMS"}
OWN_NAMES = frozenset((MANIFEST_NAME, SIGNATURE_NAME, *SUMS_NAMES.values()))


def take_stock(
    evidence: Path,
    known: Iterable[ManifestEntry] = (),
    *,
    algorithm: Algorithm = Algorithm.SHA256,
    exclusions: Iterable[Exclusion] = (),
    references: Iterable[Reference] = (),
    workers: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Manifest:
    """The manifest of everything below `evidence` as it lies there now.

    `known` says what is known about an entry besides its bytes (role, origin, guarantee); its digest is taken
    over where inode, ctime, size and mtime are still those of the hashing.
    Raises `InputUnreadable` naming the file that cannot be read or that points out of the evidence.
    """
    about = {entry.path: entry for entry in known}
    tree = [e for e in walk(evidence) if e.path not in OWN_NAMES]
    others = [
        Exclusion(encode_path(e.path), "neither file, directory nor symlink") for e in tree if e.kind is EntryKind.OTHER
    ]
    entries = _observe(evidence, tree, about, algorithm, workers, on_bytes)
    for entry in entries:
        if entry.kind is EntryKind.FILE and not entry.digest:
            raise InputUnreadable(f"{evidence / decode_path(entry.path)} cannot be read, or changes while it is read")
        if entry.kind is EntryKind.SYMLINK and escapes(entry.path, decode_path(entry.target)):
            raise InputUnreadable(f"{evidence / decode_path(entry.path)} points to {entry.target}, outside the case")
    kept = tuple(e for e in entries if e.kind is not EntryKind.OTHER)
    named = tuple(sorted(references, key=lambda r: r.url))
    return Manifest(algorithm, tree_digest(kept, named), kept, (*exclusions, *others), named)


def look_again(
    evidence: Path,
    algorithm: Algorithm,
    *,
    known: Iterable[ManifestEntry] = (),
    on_bytes: Callable[[int], None] | None = None,
) -> tuple[ManifestEntry, ...]:
    """Everything below `evidence` now, for `compare`; unreadable files have no digest.

    Without `known` every byte is read. With it, files whose inode, ctime, size and mtime did not move are trusted:
    good enough against a running job, not against somebody who means it.
    """
    tree = [e for e in walk(evidence) if e.path not in OWN_NAMES]
    return _observe(evidence, tree, {e.path: e for e in known}, algorithm, None, on_bytes)


def write_manifest(case: Path, manifest: Manifest) -> tuple[str, ...]:
    """Write manifest.json and the sums beside it; returns their paths relative to the case, for the journal."""
    sums = SUMS_NAMES[manifest.algorithm]
    write_atomic(case / EVIDENCE / sums, sums_text(manifest))
    write_atomic(case / EVIDENCE / MANIFEST_NAME, manifest_text(manifest))
    return f"{EVIDENCE}/{MANIFEST_NAME}", f"{EVIDENCE}/{sums}"


def manifest_text(manifest: Manifest) -> bytes:
    """The text that `codec.dumps` would give, five times as fast: a manifest has very many lines and no numbers
    that JSON lacks."""
    from pydantic_core import to_json

    payload = {"schema": MANIFEST_SCHEMA, **{f.name: getattr(manifest, f.name) for f in fields(manifest)}}
    return to_json(payload, indent=2) + b"\n"


def read_manifest(case: Path) -> Manifest | None:
    """The manifest of a case, None where freeze has not finished.

    Raises `InputUnreadable` for damage and for any path that could lead out of the evidence.
    """
    source = case / EVIDENCE / MANIFEST_NAME
    hint = f"the manifest was tampered with or damaged: spike verify --case {case}, or another copy of the case"
    try:
        payload = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputUnreadable(f"cannot read {source}: {error}", hint=hint) from error
    if not isinstance(payload, dict):
        raise InputUnreadable(f"{source} is not a JSON object", hint=hint)
    manifest = from_payload(Manifest, payload, schema=MANIFEST_SCHEMA, source=str(source))
    _refuse(manifest, source, hint)
    return manifest


def sums_text(manifest: Manifest) -> bytes:
    """The lines of `sha256sum`: two spaces, raw name; a name with a backslash or line break is escaped its way."""
    lines = []
    for entry in sorted(manifest.entries, key=lambda e: e.path):
        if entry.kind is not EntryKind.FILE:
            continue
        name = os.fsencode(decode_path(entry.path))
        safe = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
        mark = b"\\" if safe != name else b""
        lines.append(mark + entry.digest.encode() + b"  " + safe + b"\n")
    return b"".join(lines)


def _refuse(manifest: Manifest, source: Path, hint: str) -> None:
    seen: set[str] = set()
    for entry in manifest.entries:
        try:
            refuse_unsafe(entry.path)
            if entry.path in seen:
                raise ValueError(f"path {entry.path!r} stands there twice")
            if entry.kind is EntryKind.SYMLINK and escapes(entry.path, decode_path(entry.target)):
                raise ValueError(f"symlink {entry.path!r} points out of the evidence, to {entry.target!r}")
        except ValueError as error:
            raise InputUnreadable(f"{source}: {error}", hint=hint) from error
        seen.add(entry.path)


def _observe(
    evidence: Path,
    tree: list[TreeEntry],
    about: dict[str, ManifestEntry],
    algorithm: Algorithm,
    workers: int | None,
    on_bytes: Callable[[int], None] | None,
) -> tuple[ManifestEntry, ...]:
    unread = []
    trusted: set[str] = set()
    for item in tree:
        known = about.get(encode_path(item.path))
        if item.kind is not EntryKind.FILE:
            continue
        if known is not None and _holds_still(evidence / item.path, item, known):
            trusted.add(item.path)
        else:
            unread.append((item.path, item.size))
    hashed = hash_tree(evidence, unread, algorithm, workers=workers, on_bytes=on_bytes) if unread else {}
    return tuple(_entry(item, about, hashed.get(item.path), is_trusted=item.path in trusted) for item in tree)


def _entry(
    item: TreeEntry, about: dict[str, ManifestEntry], hashed: HashedFile | None, *, is_trusted: bool
) -> ManifestEntry:
    """What lies there now, with what was known about it besides."""
    path, is_file = encode_path(item.path), item.kind is EntryKind.FILE
    size, digest, identity = item.size if is_file else 0, "", ""
    base = about.get(path)
    if hashed is not None:
        size, digest, identity = item.size if hashed.problem else hashed.size, hashed.digest, hashed.identity
    elif is_trusted and base is not None:
        digest, identity = base.digest, base.identity
    target = encode_path(item.target) if item.target else ""
    if base is None:
        return ManifestEntry(path, "", item.kind, size, item.mode, item.mtime_ns, digest, target, identity=identity)
    return replace(
        base,
        kind=item.kind,
        size=size,
        mode=item.mode,
        mtime_ns=item.mtime_ns,
        digest=digest,
        target=target,
        identity=identity,
    )


def _holds_still(path: Path, item: TreeEntry, known: ManifestEntry) -> bool:
    if not known.digest or not known.identity or known.kind is not EntryKind.FILE:
        return False
    if item.size != known.size or item.mtime_ns != known.mtime_ns:
        return False
    status = os.lstat(path)
    return f"{status.st_ino}:{status.st_ctime_ns}" == known.identity
