"""How do the bytes of one object arrive, in order, through a connection that breaks?

In ranges of one version: a range that fails is asked for again, so a broken connection costs at most one range.
Stores that allow it are asked for a few ranges ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from spike.domain.errors import InputUnreadable
from spike.domain.remote import StoredObject
from spike.readers.remote._errors import CHANGED
from spike.readers.remote.contract import Store

RANGE_BYTES = 8 << 20
AHEAD = 4
"""Ranges under way at once: 32 MiB of memory, and a connection's latency is hidden."""


def read_blocks(store: Store, stored: StoredObject) -> Iterator[bytes]:
    """The bytes of this version of the object, in order.

    Raises `InputUnreadable` where the store has other bytes by the end of the reading, `StoreUnavailable` where it
    does not answer any more.
    """
    ranges = [(at, min(at + RANGE_BYTES, stored.size)) for at in range(0, stored.size, RANGE_BYTES)]
    if store.is_concurrent and len(ranges) > 1:
        yield from _ahead(store, stored, ranges)
    else:
        for start, end in ranges:
            yield store.read(stored, start, end)
    if not stored.version:
        _still_there(store, stored)


def _ahead(store: Store, stored: StoredObject, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
    waiting: deque[Future[bytes]] = deque()
    pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="fetch")
    try:
        for start, end in ranges:
            waiting.append(pool.submit(store.read, stored, start, end))
            if len(waiting) == AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _still_there(store: Store, stored: StoredObject) -> None:
    """Without a version id, only a second look says that all ranges came from the same bytes."""
    now = store.head(stored.path)
    if now is None or not stored.is_same(now):
        how = "it was deleted" if now is None else f"it had {stored.size} bytes and has {now.size}, or other content"
        raise InputUnreadable(f"{store.url(stored.path)} {CHANGED}: {how}")
