"""Is every number of a checkpoint finite, and what are its tensors' digests? One pass over the bytes.

Each megabyte is read once into a ring of buffers; one thread takes its SHA-256 while this one takes statistics from
the bits: IEEE order is integer order, so one maximum over `bits & 0x7fff...` gives the largest magnitude and says
whether anything is non-finite at all. bfloat16 is never widened to a copy: its two halves of each 32-bit word are
float32 values after a shift or a mask.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spike.domain.checkpoint import TensorFacts
from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.readers.checkpoints._bytes import FileRange
from spike.readers.checkpoints._numbers import float8_values
from spike.readers.checkpoints.contract import LazyTensor, OnBytes

CHUNK_BYTES = 1 << 20
RING = 4
"""Buffers between the reading and the hashing thread."""
THREAD_WORTHWHILE = 1 << 18
"""Smaller tensors are hashed in place: handing them to a thread costs more than it saves."""


@dataclass(slots=True)
class Statistics:
    """Running totals over one tensor."""

    num_nonfinite: int = 0
    absmax: float = 0.0
    sum_squares: float = 0.0
    num_zeros: int = 0
    num_subnormal: int = 0


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
        waiting: list[tuple[LazyTensor, Statistics, Future[str] | str]] = []
        for tensor in tensors:
            try:
                statistics, digest = scanner.scan(tensor, result)
            except InputUnreadable as error:
                result.unreadable.append((tensor.file, error.message))
                statistics, digest = Statistics(), ""
            waiting.append((tensor, statistics, digest))
        for tensor, statistics, digest in waiting:
            text = digest if isinstance(digest, str) else digest.result()
            result.facts.append(_facts(tensor, statistics, text))
    return result


def digest_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The text that a tensor digest starts with, docs/FORMATS.md "Tensor digest"."""
    return f"{dtype}:{'x'.join(map(str, shape))}:".encode("ascii")


class _Scanner:
    """A ring of buffers, one hashing thread, one tensor at a time."""

    def __init__(self, pool: ThreadPoolExecutor, on_bytes: OnBytes) -> None:
        self.pool = pool
        self.on_bytes = on_bytes
        self.ring = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(RING)]
        self.busy: list[Future[None] | None] = [None] * RING
        self.turn = 0
        self.scratch = np.empty(CHUNK_BYTES, dtype=np.uint8)

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


def _facts(tensor: LazyTensor, statistics: Statistics, digest: str) -> TensorFacts:
    if not digest:
        lost = NotMeasured("its bytes could not be read")
        return _named(tensor, lost, (lost, lost, lost, lost, lost))
    return _named(
        tensor,
        digest,
        (
            statistics.num_nonfinite,
            statistics.absmax,
            math.sqrt(statistics.sum_squares),
            statistics.num_zeros,
            statistics.num_subnormal,
        ),
    )


def _named(tensor: LazyTensor, digest: str | NotMeasured, numbers: tuple[Any, ...]) -> TensorFacts:
    return TensorFacts(tensor.role, tensor.name, tensor.key, tensor.dtype, tensor.shape, tensor.file, digest, *numbers)


# -- counting from bits ---------------------------------------------------------------------------------------

Counter = Callable[[NDArray[np.uint8], Statistics], None]

_IEEE: dict[str, tuple[Any, int, int, Any]] = {
    # bits type, mantissa bits, magnitude mask, value type
    "float64": (np.uint64, 52, 0x7FFF_FFFF_FFFF_FFFF, np.float64),
    "float32": (np.uint32, 23, 0x7FFF_FFFF, np.float32),
    "float16": (np.uint16, 10, 0x7FFF, np.float16),
    "bfloat16": (np.uint16, 7, 0x7FFF, None),
}
_SAFE_SQUARES = (1e-12, 1e15)
"""Magnitudes whose squares neither vanish nor overflow in a float32 sum over one chunk."""


def counter(dtype: str, scratch: NDArray[np.uint8]) -> Counter:
    """The function that adds one chunk of this type to the totals; `scratch` is as long as a chunk."""
    if dtype.startswith("complex"):
        return counter("float64" if dtype == "complex128" else "float32", scratch)
    if dtype in _IEEE:
        return lambda raw, totals: _count_floats(raw, totals, dtype, scratch)
    if dtype.startswith("float8"):
        return lambda raw, totals: _count_float8(raw, totals, dtype)
    native = np.dtype(dtype)
    return lambda raw, totals: _count_integers(raw.view(native), totals)


def _count_floats(raw: NDArray[np.uint8], totals: Statistics, dtype: str, scratch: NDArray[np.uint8]) -> None:
    kind, mantissa, mask, _ = _IEEE[dtype]
    bits = raw.view(kind)
    magnitude = np.bitwise_and(bits, kind(mask), out=scratch[: raw.size].view(kind))
    top = int(magnitude.max(initial=0))
    infinity = mask ^ ((1 << mantissa) - 1)
    if top >= infinity:
        totals.num_nonfinite += int(np.count_nonzero(magnitude >= kind(infinity)))
        finite = magnitude[magnitude < kind(infinity)]
        top = int(finite.max(initial=0))
        values = _float_values(finite, dtype).astype(np.float64)
        squares = float(np.dot(values, values))
    else:
        squares = _sum_squares(raw, bits, dtype, _float_value(top, dtype))
    totals.absmax = max(totals.absmax, _float_value(top, dtype))
    totals.sum_squares += squares
    tiny = int(np.count_nonzero(magnitude < kind(1 << mantissa)))
    if tiny:
        zeros = magnitude.size - int(np.count_nonzero(magnitude))
        totals.num_zeros += zeros
        totals.num_subnormal += tiny - zeros


def _sum_squares(raw: NDArray[np.uint8], bits: NDArray[Any], dtype: str, top: float) -> float:
    if dtype == "float64":
        values = bits.view(np.float64)
        return float(np.dot(values, values))
    small, large = _SAFE_SQUARES
    if not small < top < large:
        wide = _float_values(bits, dtype).astype(np.float64)
        return float(np.dot(wide, wide))
    if dtype == "bfloat16" and raw.size % 4 == 0:
        words = raw.view(np.uint32)
        low = (words << np.uint32(16)).view(np.float32)
        high = (words & np.uint32(0xFFFF_0000)).view(np.float32)
        return float(np.dot(low, low)) + float(np.dot(high, high))
    values = _float_values(bits, dtype).astype(np.float32, copy=False)
    return float(np.dot(values, values))


def _float_values(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(_IEEE[dtype][3])


def _float_value(bits: int, dtype: str) -> float:
    kind = _IEEE[dtype][0]
    return float(_float_values(np.array([bits], dtype=kind), dtype)[0])


def _count_float8(raw: NDArray[np.uint8], totals: Statistics, dtype: str) -> None:
    """One histogram of the bytes: every statistic follows from the 256 counts."""
    values = float8_values(dtype).astype(np.float64)
    counts = _histogram(raw)
    finite = np.isfinite(values)
    totals.num_nonfinite += int(counts[~finite].sum())
    used = np.abs(values[finite & (counts > 0)])
    totals.absmax = max(totals.absmax, float(used.max(initial=0.0)))
    totals.sum_squares += float(np.dot(counts[finite], values[finite] ** 2))
    if dtype != "float8_e8m0fnu":  # has neither zero nor subnormals
        zero = values == 0
        exponent_mask = 0x78 if "e4m3" in dtype else 0x7C
        subnormal = finite & ~zero & ((np.arange(256) & exponent_mask) == 0)
        totals.num_zeros += int(counts[zero].sum())
        totals.num_subnormal += int(counts[subnormal].sum())


def _histogram(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Counts of the 256 byte values; pairs are counted together, which halves the work."""
    even = raw.size - raw.size % 2
    pairs = np.bincount(raw[:even].view(np.uint16), minlength=1 << 16).reshape(256, 256)
    counts = pairs.sum(axis=0) + pairs.sum(axis=1)
    if even != raw.size:
        counts[int(raw[-1])] += 1
    total: NDArray[np.int64] = counts.astype(np.int64, copy=False)
    return total


def _count_integers(values: NDArray[Any], totals: Statistics) -> None:
    if not values.size:
        return
    wide = values.astype(np.float64)
    totals.absmax = max(totals.absmax, float(np.abs(wide).max()))
    totals.sum_squares += float(np.dot(wide, wide))
    totals.num_zeros += values.size - int(np.count_nonzero(values))
