"""What do the bytes that somebody else reads anyway say about a checkpoint's tensors? Facts without a second read.

Whoever hashes or copies the files of a checkpoint hands each piece on; statistics and CRCs are taken as it passes.
What did not pass in order, and tensors whose elements do not lie next to each other, are read when the result is
asked for. A file that changed in between is never called readable.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, CheckpointScan
from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.readers.checkpoints._bytes import FileRange
from spike.readers.checkpoints._dcp import SliceBytes
from spike.readers.checkpoints._ranges import Stretch, stretches
from spike.readers.checkpoints._scan import CHUNK_BYTES, ScanResult, facts_of, new_scratch
from spike.readers.checkpoints._spans import Checksum, Elements, PassingFile
from spike.readers.checkpoints._statistics import Scratch, Statistics
from spike.readers.checkpoints.contract import ByteSource, CheckpointReader, LazyTensor, OnBytes

NO_DIGEST = NotMeasured("it costs a hash of every byte of its own, and was not asked for")
CHANGED = "changed while it was read"
Plan = tuple[Stretch, ...] | InputUnreadable | None
"""Where a tensor's elements pass; why that cannot be told; None where only reading it gives them."""


class Tap:
    """The facts of a scan, from bytes that pass by. `feed` may be called from several threads, one a file."""

    def __init__(self, checkpoint: Checkpoint, reader: CheckpointReader) -> None:
        self._reader = reader
        self._root = Path(checkpoint.path)
        self._files: dict[Path, PassingFile] = {}
        self._elements: dict[tuple[Path, int, int, str], Elements] = {}
        self._checksums: dict[tuple[Path, int], Checksum] = {}
        self._own = threading.local()
        self._failure = ""
        self._tensors: list[tuple[LazyTensor, Plan]] = []
        try:
            self._tensors = [(tensor, self._plan(tensor)) for tensor in reader.tensors(self._root)]
        except (InputUnreadable, OSError) as error:
            self._failure = str(error)
        for file in self._files.values():
            file.begin()

    def feed(self, relative_path: str, offset: int, chunk: memoryview | bytes) -> None:
        """Bytes of a file of the checkpoint, from its beginning and in order. The chunk is not kept.

        `relative_path` is POSIX; a checkpoint that is a single file has its name. Files without tensors are ignored.
        """
        file = self._files.get(self._root / relative_path) or self._files.get(self._root.with_name(relative_path))
        if file is not None:
            file.feed(offset, memoryview(chunk).cast("B"), self._scratch())

    def read(self, on_bytes: OnBytes | None = None) -> None:
        """Feed every file that holds tensors."""
        for path, file in self._files.items():
            with suppress(OSError):  # what is missing afterwards is read, and reported, by `result`
                self._read_file(path, file, on_bytes or _silent)

    def result(self, on_bytes: OnBytes | None = None) -> CheckpointScan:
        """The facts of every tensor, after reading whatever has not passed.

        Whatever cannot be read is in `unreadable`; only an empty `unreadable` makes a scan clean.
        """
        if self._failure:
            return CheckpointScan(str(self._root), (), ((self._root.name, self._failure),))
        result = ScanResult()
        changed = {path for path, file in self._files.items() if file.has_changed()}
        result.unreadable += ((self._name(path), CHANGED) for path in sorted(changed))
        for tensor, plan in self._tensors:
            statistics = None
            try:
                if not (isinstance(plan, tuple) and any(stretch.place.path in changed for stretch in plan)):
                    statistics = self._statistics(tensor, plan, result, on_bytes or _silent)
            except InputUnreadable as error:
                result.unreadable.append((tensor.file, error.message))
            result.facts.append(facts_of(tensor, statistics, NO_DIGEST))
        try:
            result.unreadable += self._reader.finish(self._root, result.checked)
        except (InputUnreadable, OSError) as error:
            result.unreadable.append((self._root.name, str(error)))
        return CheckpointScan(str(self._root), tuple(result.facts), tuple(dict.fromkeys(result.unreadable)))

    def _plan(self, tensor: LazyTensor) -> Plan:
        try:
            plan = stretches(tensor.data)
        except InputUnreadable as error:
            return error
        for stretch in plan or ():
            if stretch.place.nbytes:
                self._watch(tensor.dtype, stretch.place)
        return plan

    def _watch(self, dtype: str, place: FileRange) -> None:
        file = self._files.get(place.path) or self._files.setdefault(place.path, PassingFile(place.path))
        key = (place.path, place.offset, place.nbytes, dtype)
        if key not in self._elements:  # tied weights are counted once
            self._elements[key] = Elements(dtype, place.offset, place.offset + place.nbytes)
            file.expect(self._elements[key])
        member = _member(place)
        if member is not None and (member.path, member.offset) not in self._checksums:
            checksum = Checksum(member.offset, member.offset + member.nbytes)
            self._checksums[member.path, member.offset] = checksum
            file.expect(checksum)

    def _statistics(self, tensor: LazyTensor, plan: Plan, result: ScanResult, on_bytes: OnBytes) -> Statistics:
        if isinstance(plan, InputUnreadable):
            raise plan
        if plan is None:
            return self._count(tensor.data, tensor.dtype, on_bytes)
        totals = Statistics()
        for stretch in plan:
            place = stretch.place
            elements = self._elements.get((place.path, place.offset, place.nbytes, tensor.dtype))
            if elements is not None:
                self._compare(tensor, stretch, result)
                whole = elements.totals if elements.is_whole else self._count(stretch.source, tensor.dtype, on_bytes)
                totals.add(whole)
        return totals

    def _count(self, source: ByteSource, dtype: str, on_bytes: OnBytes) -> Statistics:
        """Statistics of what has not passed, read now."""
        elements = Elements(dtype, 0, source.nbytes)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        for chunk in source.chunks(lambda: buffer):
            elements.take(chunk, self._scratch())
            on_bytes(len(chunk))
        if not elements.is_whole:
            raise InputUnreadable(f"{elements.num_taken:,} of {elements.end:,} bytes could be read")
        return elements.totals

    def _compare(self, tensor: LazyTensor, stretch: Stretch, result: ScanResult) -> None:
        """The CRC of the member around a stretch, where all of it has passed; the layout compares the others."""
        member = _member(stretch.place)
        checksum = self._checksums.get((member.path, member.offset)) if member else None
        if member is None or checksum is None or not checksum.is_whole:
            return
        if isinstance(stretch.source, SliceBytes):
            if checksum.crc != member.crc:
                raise stretch.source.mismatch()
        elif (str(member.path), member.offset) not in result.checked:
            result.checked.add((str(member.path), member.offset))
            if checksum.crc != member.crc:
                result.unreadable.append((f"{tensor.file}!{member.member}", "does not match its CRC-32"))

    def _read_file(self, path: Path, file: PassingFile, on_bytes: OnBytes) -> None:
        # Without a thread that reads ahead: handing a piece over costs as much as reading it.
        buffer, at = memoryview(bytearray(CHUNK_BYTES)), 0
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while count := os.preadv(handle, [buffer], at):
                file.feed(at, buffer[:count], self._scratch())
                on_bytes(count)
                at += count
        finally:
            os.close(handle)

    def _scratch(self) -> Scratch:
        if not hasattr(self._own, "scratch"):
            self._own.scratch = new_scratch()
        scratch: Scratch = self._own.scratch
        return scratch

    def _name(self, path: Path) -> str:
        return path.name if path == self._root else path.relative_to(self._root).as_posix()


def _member(place: FileRange) -> FileRange | None:
    return place if place.crc is not None else place.within


def _silent(_count: int) -> None:
    """For callers that show no progress."""
