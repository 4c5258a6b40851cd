"""Is a generation still what was listed, and which of its objects can be files of a checkpoint?"""

from __future__ import annotations

from collections.abc import Sequence

from spike.domain.errors import InputUnreadable
from spike.domain.manifest import Exclusion, encode_path
from spike.domain.remote import StoredCheckpoint, StoredObject, why_not_a_file_name
from spike.readers.remote._errors import CHANGED
from spike.readers.remote.contract import Store


def as_it_is(store: Store, listed: StoredObject) -> StoredObject:
    """The object with its version id, if it still is what was listed."""
    now = store.head(listed.path)
    refuse_change(store, (listed,), (now,) if now is not None else ())
    assert now is not None
    return now


def usable_objects(store: Store, generation: StoredCheckpoint) -> tuple[list[StoredObject], tuple[Exclusion, ...]]:
    """Objects that can be files of a checkpoint, and those whose keys cannot be file names."""
    if generation.is_single:
        return list(generation.objects), ()
    named = [(o, o.path.removeprefix(f"{generation.path}/")) for o in generation.objects]
    reasons = [(o, name, why_not_a_file_name(name)) for o, name in named]
    usable = {name: o for o, name, reason in reasons if not reason}
    for name in usable:
        parts = name.split("/")
        above = next((p for p in ("/".join(parts[:n]) for n in range(1, len(parts))) if p in usable), None)
        if above is not None:
            raise InputUnreadable(f"{store.url(usable[above].path)} is an object and a folder of others at once")
    left_out = tuple(
        Exclusion(encode_path(store.address(o.path)), f"not fetched: {reason}") for o, _, reason in reasons if reason
    )
    return list(usable.values()), left_out


def refuse_change(store: Store, before: Sequence[StoredObject], after: Sequence[StoredObject]) -> None:
    """Raise `InputUnreadable` naming the first object that is not what it was."""
    then, now = {o.path: o for o in before}, {o.path: o for o in after}
    for path in sorted(then.keys() | now.keys()):
        old, new = then.get(path), now.get(path)
        if old is not None and new is not None and old.is_same(new):
            continue
        what = "it is gone" if new is None else "it is new" if old is None else "it was overwritten"
        raise InputUnreadable(f"{store.url(path)} {CHANGED}: {what}", hint="wait until the save is over: spike freeze")
