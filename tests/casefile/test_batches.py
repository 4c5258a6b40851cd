"""Does every file get its turn once, and does a failure end all workers?"""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.casefile.batches import BATCH_BYTES, BATCH_FILES, Batch, Meter, Stopped, batches, in_batches

FILES = st.lists(
    st.tuples(st.from_regex(r"([ab]{1,2}/){0,2}[ab]{1,3}", fullmatch=True), st.integers(0, 2 * BATCH_BYTES)),
    max_size=60,
    unique_by=lambda f: f[0],
)


@given(FILES)
def test_every_file_is_in_one_batch_and_no_batch_is_too_large(files: list[tuple[str, int]]) -> None:
    sizes = dict(files)
    found = batches(files)
    assert Counter(batch.path(name) for batch in found for name in batch.names) == Counter(list(sizes))
    for batch in found:
        assert len(batch.names) <= BATCH_FILES
        assert batch.num_bytes == sum(sizes[batch.path(name)] for name in batch.names)
        assert batch.num_bytes <= BATCH_BYTES or len(batch.names) == 1


@pytest.mark.parametrize("workers", [1, 4])
def test_the_largest_comes_first_and_bytes_are_counted_once(workers: int) -> None:
    files = [(f"d{n}/f", n) for n in range(50)]
    order: list[int] = []
    counted = 0

    def count(num_bytes: int) -> None:
        nonlocal counted
        counted += num_bytes

    def work(batch: Batch, meter: Meter) -> str:
        order.append(batch.num_bytes)
        meter(batch.num_bytes)
        return batch.directory

    assert sorted(in_batches(files, work, workers=workers, on_bytes=count)) == sorted(f"d{n}" for n in range(50))
    assert counted == sum(range(50))
    if workers == 1:
        assert order == sorted(order, reverse=True)


def test_a_failure_of_one_worker_ends_the_others_within_a_chunk() -> None:
    begun = threading.Event()
    ended: list[str] = []

    def work(batch: Batch, meter: Meter) -> None:
        if batch.directory == "long":
            begun.set()
            try:
                for _ in range(10**7):
                    meter(1)
            except Stopped:
                ended.append("stopped")
                raise
        elif batch.directory == "bad":
            assert begun.wait(10)
            raise RuntimeError("disk on fire")
        else:
            ended.append("ran although nobody needs it")

    files = [("long/f", 1 << 40), ("bad/f", 1 << 39), *((f"later{n}/f", 1) for n in range(20))]
    with pytest.raises(RuntimeError, match="disk on fire"):
        in_batches(files, work, workers=2)
    assert ended == ["stopped"]
