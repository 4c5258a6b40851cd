"""How are millions of rows of many ranks kept? One array a column; a rank's series are views into it.

8 bytes for each value and step. Rows are put in order of rank once, at the end, a column at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from spike.readers.metrics.arrow_stream import Cells
from spike.readers.metrics.contract import Column, shortest_digits
from spike.readers.metrics.numbers import HIGHEST_STEP

NO_RANK = -1
BAD_STEP = -1
"""A step that is absent or no step number; the row waits for the line-exact reader."""

HIGHEST_RANK = 2**31 - 1
_DIGITS_SAMPLE = 2000
_TURN_SAMPLE = 1 << 17
_FIRST_CAPACITY = 1 << 26
_T = TypeVar("_T", bound=np.generic)
_BLOCK = 1 << 16


class _Growing(Generic[_T]):
    """An array that is appended to; memory that is not written yet is not used yet."""

    def __init__(self, dtype: type[_T], capacity: int) -> None:
        self.data: NDArray[_T] = np.empty(min(capacity, _FIRST_CAPACITY), dtype)
        self.size = 0

    def extend(self, values: NDArray[_T]) -> None:
        end = self.size + values.size
        if end > self.data.size:
            self.data.resize(max(end, self.data.size * 5 // 4), refcheck=False)
        self.data[self.size : end] = values
        self.size = end

    def taken(self) -> NDArray[_T]:
        """The values; the rest of the memory is given back."""
        self.data.resize(self.size, refcheck=False)
        return self.data


class WideRows:
    """Rows in file order, column by column."""

    def __init__(self, names: list[str], capacity: int) -> None:
        self.names = names
        self.num_rows = 0
        self._steps = _Growing(np.int64, capacity)
        self._ranks = _Growing(np.int32, capacity)
        self._values = {name: _Growing(np.float64, capacity) for name in names}
        self._present: dict[str, _Growing[np.bool_]] = {}
        """Only of columns with an absent value."""
        self._capacity = capacity

    def extend(self, steps: Cells, ranks: Cells | None, columns: list[Cells]) -> NDArray[np.int64]:
        """Add a batch; returns the numbers of the rows whose step is no step. Raises ValueError on a huge rank."""
        count = steps.values.size
        whole, bad = _whole(steps, BAD_STEP)
        self._steps.extend(whole)
        self._ranks.extend(np.full(count, NO_RANK, np.int32) if ranks is None else _ranks(ranks))
        for name, cells in zip(self.names, columns, strict=True):
            self._values[name].extend(cells.values)
            if cells.present is not None or name in self._present:
                mask = self._mask(name)
                mask.extend(np.ones(count, bool) if cells.present is None else cells.present)
        self.num_rows += count
        return bad + (self.num_rows - count)

    def _mask(self, name: str) -> _Growing[np.bool_]:
        mask = self._present.get(name)
        if mask is None:
            mask = self._present[name] = _Growing(np.bool_, self._capacity)
            mask.extend(np.ones(self.num_rows, bool))
        return mask

    def keep(self, num_rows: int) -> None:
        """Forget the rows behind the first `num_rows`."""
        self.num_rows = num_rows
        every: list[_Growing[Any]] = [self._steps, self._ranks, *self._values.values(), *self._present.values()]
        for growing in every:
            growing.size = min(growing.size, num_rows)

    def set_row(self, row: int, step: int, rank: int | None, values: dict[str, float]) -> None:
        """Replace one row by what the line-exact reader found in it."""
        self._steps.data[row] = step
        self._ranks.data[row] = NO_RANK if rank is None else rank
        for name in values.keys() - self._values.keys():
            self.names.append(name)
            self._values[name] = _Growing(np.float64, self.num_rows)
            self._values[name].size = self.num_rows
            self._present[name] = _Growing(np.bool_, self.num_rows)
            self._present[name].extend(np.zeros(self.num_rows, bool))
        for name, growing in self._values.items():
            if name in values:
                growing.data[row] = values[name]
            if name not in values or name in self._present:
                self._mask(name).data[row] = name in values

    def step_of(self, row: int) -> int:
        """The step of one row."""
        return int(self._steps.data[row])

    def starts_again_in(self, epoch: str) -> bool:
        """Whether the steps of some rank start again where this column's whole number grows."""
        order = self._order(None)
        size = self.num_rows
        epochs = _gathered(self._values[epoch].data[:size], order)
        steps, ranks = _gathered(self._steps.data[:size], order), _gathered(self._ranks.data[:size], order)
        whole = np.isfinite(epochs) & (epochs == np.floor(epochs))
        if epoch in self._present:
            whole &= _gathered(self._present[epoch].data[:size], order)
        epochs, steps, ranks = epochs[whole], steps[whole], ranks[whole]
        again = (epochs[1:] > epochs[:-1]) & (steps[1:] <= steps[:-1]) & (ranks[1:] == ranks[:-1])
        return bool(again.any())

    def columns(
        self, dropped: NDArray[np.bool_] | None, *, held_out: bool = False, keep: bool = False
    ) -> Iterator[Column]:
        """One column for each name and rank, in file order. The rows are used up unless `keep`."""
        turns = None if keep else self._turns(dropped)
        if turns is not None:
            yield from self._by_turn(*turns, held_out)
            return
        order = self._order(dropped)
        size = self.num_rows

        def taken(growing: _Growing[_T]) -> NDArray[_T]:
            return growing.data[:size] if keep else growing.taken()

        ranks = _gathered(taken(self._ranks), order)
        starts = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), ranks.size]
        groups = [(int(ranks[a]), a, b) for a, b in pairwise(starts) if b > a]
        steps = _gathered(taken(self._steps), order)
        for name in self.names:
            values = _gathered(taken(self._values[name]), order)
            mask = self._present.get(name)
            present = None if mask is None else _gathered(taken(mask), order)
            if not keep:
                del self._values[name]
            some = slice(None, None, max(1, values.size // _DIGITS_SAMPLE))
            digits = shortest_digits((values[some] if present is None else values[some][present[some]]).tolist())
            for rank, a, b in groups:
                rows: slice | NDArray[np.int64] = slice(a, b)
                if present is not None and not present[a:b].all():
                    rows = np.flatnonzero(present[a:b]) + a
                column = Column(name, steps[rows], values[rows], None if rank < 0 else rank, digits, held_out)
                if column.steps.size:
                    yield column

    def _turns(
        self, dropped: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_] | None] | None:
        """(ranks, steps, rows dropped by turn) where ranks write in turn, every one at every step; else None.

        A dropped row may stand in the place of any row; the last turn may be unfinished.
        """
        size = self.num_rows
        out = np.zeros(size, bool) if dropped is None else dropped
        some = self._ranks.data[:_TURN_SAMPLE][:size][~out[:_TURN_SAMPLE]]
        ranks = np.unique(some)
        if ranks.size < 2:
            return None
        missing = -size % ranks.size
        for growing, filler in ((self._ranks, NO_RANK), (self._steps, BAD_STEP)):
            growing.extend(np.full(missing, filler, growing.data.dtype))
        out = np.concatenate([out, np.ones(missing, bool)]).reshape(-1, ranks.size)
        by_turn = self._ranks.data[: size + missing].reshape(out.shape)
        steps = self._steps.data[: size + missing].reshape(out.shape)
        steps[out] = BAD_STEP
        step = steps.max(axis=1)
        if bool(((by_turn == ranks) | out).all() and ((steps == step[:, None]) | out).all()):
            return ranks, step, out if out.any() else None
        self._ranks.size = self._steps.size = size
        return None

    def _by_turn(
        self, ranks: NDArray[np.int32], steps: NDArray[np.int64], out: NDArray[np.bool_] | None, held_out: bool
    ) -> Iterator[Column]:
        """The columns of such rows: all ranks share one array of steps, which saves a third of the memory."""
        del self._steps, self._ranks
        padding = steps.size * ranks.size - self.num_rows
        for name in self.names:
            growing = self._values.pop(name)
            growing.extend(np.zeros(padding))
            table = np.ascontiguousarray(growing.taken().reshape(-1, ranks.size).T)
            there = None if out is None else ~out.T
            mask = self._present.pop(name, None)
            if mask is not None:
                mask.extend(np.zeros(padding, bool))
                seen = mask.taken().reshape(-1, ranks.size).T
                there = seen if there is None else seen & there
            some = slice(None, None, max(1, table.size // _DIGITS_SAMPLE))
            sample = table[:, some] if there is None else table[:, some][there[:, some]]
            digits = shortest_digits(sample.T.ravel().tolist())
            for place, rank in enumerate(ranks.tolist()):
                kept = None if there is None or there[place].all() else there[place]
                values = table[place] if kept is None else table[place][kept]
                if values.size:
                    yield Column(name, steps if kept is None else steps[kept], values, int(rank), digits, held_out)

    def _order(self, dropped: NDArray[np.bool_] | None) -> NDArray[np.int32] | None:
        """Row numbers by rank; None where the rows stand right as they are."""
        ranks = self._ranks.data[: self.num_rows]
        kept = None if dropped is None or not dropped.any() else np.flatnonzero(~dropped).astype(np.int32)
        if bool((ranks[1:] >= ranks[:-1]).all()):
            return kept
        small = ranks.astype(np.int16) if int(ranks.max()) < 2**15 else ranks  # numpy sorts 16 bits by radix
        if kept is None:
            return np.argsort(small, kind="stable").astype(np.int32)
        return kept[np.argsort(small[kept], kind="stable")]


def _ranks(cells: Cells) -> NDArray[np.int32]:
    whole, _ = _whole(cells, NO_RANK)
    if whole.size and int(whole.max()) > HIGHEST_RANK:
        raise ValueError("a rank beyond 2**31")
    return whole.astype(np.int32)


def _whole(cells: Cells, instead: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values as whole numbers, `instead` where one is absent or none, and the places of those."""
    with np.errstate(invalid="ignore"):  # a NaN becomes some number that differs from it
        whole = cells.values.astype(np.int64)
    good = whole == cells.values
    if cells.present is not None:
        good &= cells.present
    if good.all() and (not whole.size or (whole.min() >= 0 and whole.max() <= HIGHEST_STEP)):
        return whole, np.empty(0, np.int64)
    good &= (cells.values >= 0) & (cells.values <= HIGHEST_STEP)
    bad = np.flatnonzero(~good)
    whole[bad] = instead
    return whole, bad


def _gathered(values: NDArray[_T], order: NDArray[np.int32] | None) -> NDArray[_T]:
    """values[order] without a second copy of the order in 64 bits."""
    if order is None:
        return values
    result = np.empty(order.size, values.dtype)
    for start in range(0, order.size, _BLOCK):
        block = order[start : start + _BLOCK]
        np.take(values, block, out=result[start : start + block.size], mode="clip")  # "raise" makes a copy
    return result
