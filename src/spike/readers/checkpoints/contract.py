"""What must a checkpoint layout be able to do? The contract of one reader file, and what it hands out.

A layout is one module of this folder that exports `READER`. It recognises a path, says what is in it without
reading tensor bytes, and lists the tensors as lazy views of byte ranges. It never runs anything that a checkpoint
contains. Modules whose name starts with an underscore are machinery that layouts share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spike.domain.checkpoint import Checkpoint, Integrity, Role
from spike.domain.errors import InputUnreadable

GENERIC_FILE = 10
"""Specificity of a reader that takes any file of a kind."""
GENERIC_DIRECTORY = 20
"""Specificity of a reader that takes any directory with files of a kind."""
NAMED_STACK = 30
"""Specificity of a reader that knows the stack which wrote the directory."""


class Damaged(InputUnreadable):
    """A checkpoint that must not be trusted; `integrity` says in which way, the message names the file."""

    def __init__(self, message: str, integrity: Integrity) -> None:
        super().__init__(message, hint="spike check --run DIR lists every checkpoint with its verdict")
        self.integrity = integrity


BLOCK_BYTES = 1 << 20
"""Tensors are handed out in blocks of this size, so that memory does not grow with the model."""
Lend = Callable[[], memoryview]
"""Gives the buffer for the next piece of a read; the giver decides how many there are and when one is free."""


class ByteSource(Protocol):
    """The contiguous little-endian bytes of one tensor, wherever they lie."""

    @property
    def nbytes(self) -> int:
        """How many bytes the tensor has."""

    def chunks(self, lend: Lend) -> Iterator[memoryview]:
        """The bytes in order, in pieces of at most a buffer; a piece is valid until its buffer is lent again."""


@dataclass(frozen=True, slots=True, eq=False)
class LazyTensor:
    """One tensor that has not been read yet."""

    role: Role
    name: str
    index: int
    """Position of a moment's parameter in the optimizer's order over its groups; -1 for everything else."""
    key: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    """File inside the checkpoint, relative POSIX."""
    data: ByteSource

    def read(self) -> NDArray[Any]:
        """The bits as unsigned integers of the element's width, in the tensor's shape.

        `numbers.decode(bits, dtype)` turns them into values. Raises `InputUnreadable` where bytes are missing.
        """
        from spike.readers.checkpoints._numbers import bits_of

        whole, at = bytearray(self.data.nbytes), 0
        buffer = memoryview(bytearray(min(1 << 20, max(1, self.data.nbytes))))
        for chunk in self.data.chunks(lambda: buffer):
            whole[at : at + len(chunk)] = chunk
            at += len(chunk)
        return bits_of(np.frombuffer(whole, dtype=np.uint8), self.dtype).reshape(self.shape)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """The values in order, flat, at most `BLOCK_BYTES` of stored bytes at a time; the last block is shorter.

        Two tensors of one type and shape give blocks of equal lengths. Raises `InputUnreadable`.
        """
        from spike.readers.checkpoints._numbers import bits_of, decode

        block, filled = bytearray(BLOCK_BYTES), 0
        buffer = memoryview(bytearray(BLOCK_BYTES))
        for chunk in self.data.chunks(lambda: buffer):
            at = 0
            while at < len(chunk):
                take = min(BLOCK_BYTES - filled, len(chunk) - at)
                block[filled : filled + take] = chunk[at : at + take]
                filled, at = filled + take, at + take
                if filled == BLOCK_BYTES:
                    yield decode(bits_of(np.frombuffer(bytes(block), dtype=np.uint8), self.dtype), self.dtype).reshape(
                        -1
                    )
                    filled = 0
        if filled:
            last = np.frombuffer(bytes(block[:filled]), dtype=np.uint8)
            yield decode(bits_of(last, self.dtype), self.dtype).reshape(-1)


Checked = Set[tuple[str, int]]
"""(path, offset) of byte ranges whose checksum was compared while their tensor was read."""
OnBytes = Callable[[int], None]
"""Told how many more bytes were read; the progress bar's port."""


class CheckpointReader(Protocol):
    """One layout.

    `step_name` is optional: a pattern of names whose number is the step by the stack's own rule. A name that says
    another step than the contents is then reported.

    Two more methods are optional, both about checkpoints of this layout in one directory, oldest first:
    `rotation(group) -> Rotation` is what the next save does to them, `latest(group) -> (path, rule)` which one the
    stack would load.
    """

    layout: str
    """Its name in `Checkpoint.layout`."""
    specificity: int
    """Where several readers recognise a path, the one with the highest number reads it."""

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """True where `path` is one checkpoint of this layout, whole or not.

        `names` lists a directory (for a file it is empty); at most the first bytes of a file are looked at.
        """

    def inspect(self, path: Path) -> Checkpoint:
        """What is in it, without tensor bytes. Damage is a verdict in the answer, never an exception."""

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Every tensor, lazily. Raises `Damaged` where the file's index cannot be believed."""

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """(file or member, reason) of bytes that do not match their checksum, leaving out the ranges `checked`."""
