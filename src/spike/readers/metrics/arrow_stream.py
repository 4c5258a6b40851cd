"""How do numbers come out of duckdb in bounded memory? Through Arrow's C stream interface, a batch at a time.

fetchnumpy holds a whole result twice, and pyarrow would be one more package for five structures.
https://arrow.apache.org/docs/format/CDataInterface.html and CStreamInterface.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    pass


_Stream._fields_ = [
    ("get_schema", ctypes.c_void_p),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of a batch. Valid until the next batch is asked for: copy what is kept."""

    values: NDArray[np.float64]
    present: NDArray[np.bool_] | None
    """None: every value is there."""

    @property
    def num_present(self) -> int:
        """Values that are there; a NaN is."""
        return self.values.size if self.present is None else int(np.count_nonzero(self.present))


def batches(relation: Any) -> Iterator[list[Cells]]:
    """The rows of a duckdb relation whose columns are all DOUBLE, in order. Raises ValueError where the query fails."""
    capsule = relation.__arrow_c_stream__()  # owns the stream, and must outlive it
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    stream = _Stream.from_address(pointer(capsule, b"arrow_array_stream"))
    while True:
        batch = _Array()
        if stream.get_next(ctypes.byref(stream), ctypes.byref(batch)):
            message = stream.get_last_error(ctypes.byref(stream)) or b"unknown"
            raise ValueError(message.decode("utf-8", errors="replace"))
        if not batch.release:
            return
        try:
            yield [_cells(batch.children[i].contents, batch.length) for i in range(batch.n_children)]
        finally:
            batch.release(ctypes.byref(batch))


def _cells(array: _Array, length: int) -> Cells:
    if length == 0:
        return Cells(np.empty(0), None)
    start = int(array.offset)
    values = _memory(array.buffers[1], 8 * (start + length)).view(np.float64)[start:]
    if array.null_count == 0 or not array.buffers[0]:
        return Cells(values, None)
    bits = _memory(array.buffers[0], (start + length + 7) // 8)
    return Cells(values, np.unpackbits(bits, bitorder="little")[start : start + length].astype(bool))


def _memory(address: int, num_bytes: int) -> NDArray[np.uint8]:
    """Memory that belongs to the batch."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))
