"""What were the last values of something that never ends? A bounded memory that takes one value or many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPARE = 2
"""The buffer is this many times what is kept, so that it is moved seldom."""


class Recent:
    """The last `keep` values, newest last."""

    __slots__ = ("_buffer", "_end", "_size", "keep")

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._buffer = np.empty(SPARE * keep)
        self._end = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, value: float) -> None:
        """Remember one value."""
        if self._end == self._buffer.size:
            self._move()
        self._buffer[self._end] = value
        self._end += 1
        self._size = min(self._size + 1, self.keep)

    def extend(self, values: NDArray[np.float64]) -> None:
        """Remember many at once."""
        values = values[-self.keep :]
        if self._end + values.size > self._buffer.size:
            self._move()
        if self._end + values.size > self._buffer.size:  # more than the spare room: the oldest are not needed
            stay = self.keep - values.size
            self._buffer[:stay] = self._buffer[self._end - stay : self._end].copy()
            self._end = stay
            self._size = min(self._size, stay)
        self._buffer[self._end : self._end + values.size] = values
        self._end += values.size
        self._size = min(self._size + values.size, self.keep)

    def drop(self, count: int) -> None:
        """Forget the newest."""
        count = min(count, self._size)
        self._end -= count
        self._size -= count

    def clear(self) -> None:
        """Forget all."""
        self._end = self._size = 0

    def last(self, count: int | None = None) -> NDArray[np.float64]:
        """The newest values, oldest first; a view that the next change invalidates."""
        count = self._size if count is None else min(count, self._size)
        return self._buffer[self._end - count : self._end]

    def _move(self) -> None:
        self._buffer[: self._size] = self._buffer[self._end - self._size : self._end].copy()
        self._end = self._size
