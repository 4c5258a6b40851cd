"""Which generations of a checkpoint lie below an address with {step} in it?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from spike.domain.errors import SpikeError
from spike.domain.remote import StoredCheckpoint, StoredObject, shown_url, why_not_a_file_name
from spike.readers.remote.contract import Store

LISTINGS_AT_ONCE = 8


def find_stored(store: Store) -> tuple[StoredCheckpoint, ...]:
    """Every generation that the store's pattern names, by step. One without objects is none.

    Raises `SpikeError` for a pattern without {step}, or with other braces.
    """
    pattern = store.root
    if pattern.count("{step}") != 1 or re.search(r"[{}]", pattern.replace("{step}", "")):
        raise SpikeError(
            f"checkpoints: {shown_url(store.url(pattern))!r} has to hold {{step}} once and no other braces",
            hint="checkpoints: s3://bucket/run/step-{step}",
        )
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if _is_pattern(part))
    places = list(_descend(store, "/".join(parts[:first]), parts[first:], None, False))
    with ThreadPoolExecutor(LISTINGS_AT_ONCE if store.is_concurrent else 1, thread_name_prefix="list") as pool:
        found = list(pool.map(lambda place: _stored(store, *place), places))
    return tuple(sorted((c for c in found if c.objects), key=lambda c: (c.step, c.path)))


def find_objects(store: Store) -> tuple[StoredObject, ...]:
    """Every object that the store's address names: itself, those below it, those that match its wildcards."""
    parts = store.root.split("/")
    first = next((i for i, part in enumerate(parts) if _is_pattern(part)), len(parts))
    found: dict[str, StoredObject] = {}
    for path, _, _ in _descend(store, "/".join(parts[:first]), parts[first:], 0, False):
        single = store.head(path)
        objects = (single,) if single is not None else _of(store.below(path), path)
        found |= {o.path: o for o in objects}
    return tuple(found.values())


def list_below(store: Store, checkpoint: StoredCheckpoint) -> tuple[StoredObject, ...]:
    """The objects of a generation as they are now."""
    if not checkpoint.is_single:
        return _of(store.below(checkpoint.path), checkpoint.path)
    now = store.head(checkpoint.path)
    return (now,) if now is not None else ()


def _stored(store: Store, path: str, step: int, is_object: bool) -> StoredCheckpoint:
    single = store.head(path) if is_object else None
    if single is not None:
        return StoredCheckpoint(path, step, (single,), True)
    return StoredCheckpoint(path, step, _of(store.below(path), path), False)


def _of(objects: tuple[StoredObject, ...], path: str) -> tuple[StoredObject, ...]:
    """Without the empty objects that stand for folders."""
    return tuple(o for o in objects if o.path.startswith(f"{path}/") and not (o.path.endswith("/") and not o.size))


def _descend(
    store: Store, folder: str, parts: list[str], step: int | None, is_object: bool
) -> Iterator[tuple[str, int, bool]]:
    if not parts:
        assert step is not None
        yield folder, step, is_object
        return
    first, rest = parts[0], parts[1:]
    if not _is_pattern(first):
        path = f"{folder}/{first}"
        yield from _descend(store, path, rest, step, not rest and _is_object(store, folder, first))
        return
    expression = _expression(first)
    for name, is_file in store.names(folder):
        match = expression.fullmatch(name)
        if match and not why_not_a_file_name(name) and not (is_file and rest):
            found = int(match["step"]) if "step" in expression.groupindex else step
            yield from _descend(store, f"{folder}/{name}", rest, found, is_file)


def _is_object(store: Store, folder: str, name: str) -> bool:
    return (name, True) in store.names(folder)


def _is_pattern(part: str) -> bool:
    return "{step}" in part or "*" in part


def _expression(part: str) -> re.Pattern[str]:
    """As for local paths, except that a question mark stands for itself: it may be a part of a key."""
    pieces = re.split(r"(\{step\}|\*)", part)
    known = {"{step}": r"0*(?P<step>\d{1,15})", "*": r"[^/]*?"}
    return re.compile("".join(known.get(piece, re.escape(piece)) for piece in pieces))
