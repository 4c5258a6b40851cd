"""Is every number of a checkpoint finite, and what are its tensors' digests? One pass over the bytes.

Each megabyte is read once into a ring of buffers; one thread takes its SHA-256 while this one takes its statistics.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from spike.domain.checkpoint import TensorFacts
from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.readers.checkpoints._bytes import FileRange
from spike.readers.checkpoints._statistics import Scratch, Statistics, counter
from spike.readers.checkpoints.contract import LazyTensor, OnBytes

CHUNK_BYTES = 1 << 20
RING = 4
"""Buffers between the reading and the hashing thread."""
THREAD_WORTHWHILE = 1 << 18
"""Smaller tensors are hashed in place: handing them to a thread costs more than it saves."""
NO_SATURATION = NotMeasured("only floating-point types saturate")


@dataclass(slots=True)
class ScanResult:
    """What one pass found."""

    facts: list[TensorFacts] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    checked: set[tuple[str, int]] = field(default_factory=set)
    """(path, offset) of byte ranges whose CRC was compared."""


def scan_tensors(tensors: Iterable[LazyTensor], on_bytes: OnBytes | None = None) -> ScanResult:
    """Read every tensor once. One that cannot be read is in `unreadable`, and in the facts as not measured."""
    result = ScanResult()
    with ThreadPoolExecutor(1, thread_name_prefix="spike-hash") as pool:
        scanner = _Scanner(pool, on_bytes or (lambda _count: None))
        waiting: list[tuple[LazyTensor, Statistics | None, Future[str] | str]] = []
        for tensor in tensors:
            try:
                waiting.append((tensor, *scanner.scan(tensor, result)))
            except InputUnreadable as error:
                result.unreadable.append((tensor.file, error.message))
                waiting.append((tensor, None, ""))
        for tensor, statistics, digest in waiting:
            text = digest if isinstance(digest, str) else digest.result()
            result.facts.append(facts_of(tensor, statistics, text))
    return result


def digest_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The text that a tensor digest starts with, docs/FORMATS.md "Tensor digest"."""
    return f"{dtype}:{'x'.join(map(str, shape))}:".encode("ascii")


def new_scratch() -> Scratch:
    """The two buffers that counting chunks needs; one pair a thread."""
    return np.empty(CHUNK_BYTES, dtype=np.uint8), np.empty(CHUNK_BYTES, dtype=np.uint8)


class _Scanner:
    """A ring of buffers, one hashing thread, one tensor at a time."""

    def __init__(self, pool: ThreadPoolExecutor, on_bytes: OnBytes) -> None:
        self.pool = pool
        self.on_bytes = on_bytes
        self.ring = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(RING)]
        self.busy: list[Future[None] | None] = [None] * RING
        self.turn = 0
        self.scratch = new_scratch()

    def lend(self) -> memoryview:
        """The next buffer of the ring, once its last content has been hashed."""
        self.turn = (self.turn + 1) % RING
        pending, self.busy[self.turn] = self.busy[self.turn], None
        if pending is not None:
            pending.result()
        return self.ring[self.turn]

    def scan(self, tensor: LazyTensor, result: ScanResult) -> tuple[Statistics, Future[str] | str]:
        """Statistics now, the digest when the hashing thread gets there."""
        count = counter(tensor.dtype, self.scratch)
        hashing = hashlib.sha256(digest_header(tensor.dtype, tensor.shape))
        threaded = tensor.data.nbytes >= THREAD_WORTHWHILE
        member = tensor.data if isinstance(tensor.data, FileRange) and tensor.data.crc is not None else None
        statistics, crc, total = Statistics(), 0, 0
        for chunk in _whole_elements(tensor, self.lend):
            if threaded:
                self.busy[self.turn] = self.pool.submit(hashing.update, chunk)
            else:
                hashing.update(chunk)
            count(np.frombuffer(chunk, dtype=np.uint8), statistics)
            if member is not None:
                crc = zlib.crc32(chunk, crc)
            total += len(chunk)
            self.on_bytes(len(chunk))
        if total != tensor.data.nbytes:
            raise InputUnreadable(f"{tensor.name}: {total:,} of {tensor.data.nbytes:,} bytes could be read")
        if member is not None:
            self._compare(tensor.file, member, crc, result)
        return statistics, self.pool.submit(hashing.hexdigest) if threaded else hashing.hexdigest()

    def _compare(self, file: str, member: FileRange, crc: int, result: ScanResult) -> None:
        place = (str(member.path), member.offset)
        if place in result.checked:
            return
        result.checked.add(place)
        if crc != member.crc:
            result.unreadable.append((f"{file}!{member.member}", "does not match its CRC-32"))


def _whole_elements(tensor: LazyTensor, lend: Callable[[], memoryview]) -> Iterable[memoryview]:
    """The tensor's chunks; a short read that cuts an element is completed before it is counted."""
    # Buffers are a multiple of 16 bytes, so only a short read from the operating system can cut an element.
    rest = b""
    item = 16
    for chunk in tensor.data.chunks(lend):
        if not rest and len(chunk) % item == 0:
            yield chunk
            continue
        joined = rest + bytes(chunk)
        cut = len(joined) - len(joined) % item
        rest = joined[cut:]
        if cut:
            yield memoryview(joined)[:cut]
    if rest:
        yield memoryview(rest)


def facts_of(tensor: LazyTensor, statistics: Statistics | None, digest: str | NotMeasured) -> TensorFacts:
    """What a pass found out about a tensor; no `statistics` where its bytes could not be read."""
    t = tensor
    if statistics is None:
        lost = NotMeasured("its bytes could not be read")
        return TensorFacts(
            t.role, t.name, t.key, t.dtype, t.shape, t.file, lost, lost, lost, lost, lost, lost, num_saturated=lost
        )
    return TensorFacts(
        t.role,
        t.name,
        t.key,
        t.dtype,
        t.shape,
        t.file,
        digest,
        statistics.num_nonfinite,
        statistics.absmax,
        math.sqrt(statistics.sum_squares),
        statistics.num_zeros,
        statistics.num_subnormal,
        statistics.num_saturated if "float" in t.dtype or "complex" in t.dtype else NO_SATURATION,
    )
