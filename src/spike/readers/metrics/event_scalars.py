"""Which scalars do these event records hold? Records of one layout are decoded together, any other one by one.

Records of one length whose bytes are equal but for the time, the step and the value have the same fields in the same
places, so that one decoded example says where those are in all of them. Nothing is taken that does not fit exactly.

Payload: an Event message (1 wall_time, 2 step, 5 summary); Summary.value: 1 tag, 2 simple_value, 8 tensor.
TensorProto: 1 dtype, 4 tensor_content, 5 float_val, 6 double_val.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spike.readers.metrics.wire import BYTES, FIXED32, FIXED64, VARINT, float32, float64, signed, spans, varint

MAX_LAYOUTS = 64
"""Layouts tried among records of one length; what fits none of them is decoded one by one."""

SMALLEST_GROUP = 8
"""Fewer records than this are decoded one by one: making the arrays costs more."""

_FLOAT, _DOUBLE = 1, 2
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scalars:
    """Values of one tag, by the record that they stand in."""

    records: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a record with exactly one scalar keeps it."""

    tag: str
    value: Span
    step: Span | None
    """None: the step is left out, which means 0."""
    time: Span | None


def read_scalars(
    data: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[dict[str, Scalars], list[tuple[int, str]]]:
    """All scalars of the payloads at `starts`, and (record, why) for each that is no event."""
    found: dict[str, list[Scalars]] = defaultdict(list)
    odd: list[NDArray[np.int64]] = []
    view = np.frombuffer(data, dtype=np.uint8)
    for length in np.unique(lengths).tolist():
        left = np.flatnonzero(lengths == length)
        tried = 0
        while left.size >= SMALLEST_GROUP and tried < MAX_LAYOUTS:
            tried += 1
            at = int(starts[left[0]])
            layout = _layout(data[at : at + length])
            if layout is None:
                odd.append(left[:1])
                left = left[1:]
                continue
            fits = _fits(view, starts[left], data[at : at + length], layout)
            found[layout.tag].append(_decoded(view, left[fits], starts[left[fits]], layout))
            left = left[~fits]
        odd.append(left)
    refused = _one_by_one(data, np.concatenate(odd) if odd else np.empty(0, np.int64), starts, lengths, found)
    return {tag: _in_order(parts) for tag, parts in found.items()}, refused


def scalars(payload: bytes) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of each scalar of one event. Raises ValueError where it is none."""
    step = 0
    summaries: list[bytes] = []
    for number, kind, start, end in spans(payload):
        if number == 2 and kind == VARINT:
            step = signed(varint(memoryview(payload), start)[0])
        elif number == 5 and kind == BYTES:
            summaries.append(payload[start:end])
    for summary in summaries:
        for number, kind, start, end in spans(summary):
            if number == 1 and kind == BYTES:
                message = summary[start:end]
                tag, value = _value(message)
                if tag and value is not None:
                    yield step, tag, _number(message[slice(*value)])


def _value(message: bytes) -> tuple[str, Span | None]:
    """Tag of a Summary.value, and where its scalar is."""
    tag, place = "", None
    for number, kind, start, end in spans(message):
        if number == 1 and kind == BYTES:
            tag = message[start:end].decode("utf-8", errors="replace")
        elif number == 2 and kind == FIXED32:
            place = start, end
        elif number == 8 and kind == BYTES:
            inner = _tensor(message[start:end])
            place = None if inner is None else (start + inner[0], start + inner[1])
    return tag, place


def _tensor(message: bytes) -> Span | None:
    """Where the one number of a scalar TensorProto is."""
    dtype, content, found = 0, (0, 0), None
    for number, kind, start, end in spans(message):
        if number == 1 and kind == VARINT:
            dtype = varint(memoryview(message), start)[0]
        elif number == 4 and kind == BYTES:
            content = start, end
        elif (number == 5 and end - start == 4 and kind in (BYTES, FIXED32)) or (
            number == 6 and end - start == 8 and kind in (BYTES, FIXED64)
        ):
            found = start, end
    if found is None and (dtype, content[1] - content[0]) in ((_FLOAT, 4), (_DOUBLE, 8)):
        return content
    return found


def _number(raw: bytes) -> float:
    return float32(raw) if len(raw) == 4 else float64(raw)


def _layout(payload: bytes) -> _Layout | None:
    """The layout of a record with exactly one scalar; None for any other."""
    step: Span | None = None
    time: Span | None = None
    body: Span | None = None
    try:
        for number, kind, start, end in spans(payload):
            if (number, kind) == (1, FIXED64) and time is None:
                time = start, end
            elif (number, kind) == (2, VARINT) and step is None:
                step = start, end
            elif (number, kind) == (5, BYTES) and body is None:
                body = start, end
            else:
                return None
        if body is None:
            return None
        inside = list(spans(payload[slice(*body)]))
        if len(inside) != 1 or inside[0][:2] != (1, BYTES):
            return None
        start, end = body[0] + inside[0][2], body[0] + inside[0][3]
        tag, value = _value(payload[start:end])
    except (ValueError, struct.error):
        return None
    if not tag or value is None:
        return None
    return _Layout(tag, (start + value[0], start + value[1]), step, time)


def _fits(view: NDArray[np.uint8], starts: NDArray[np.int64], example: bytes, layout: _Layout) -> NDArray[np.bool_]:
    """Which records equal the example everywhere but in the time, the value and the bits of the step's number."""
    fixed = np.ones(len(example), dtype=bool)
    for span in (layout.time, layout.value, layout.step):
        if span is not None:
            fixed[slice(*span)] = False
    model = np.frombuffer(example, dtype=np.uint8)
    fits = np.ones(starts.size, dtype=bool)
    for place in np.flatnonzero(fixed).tolist():
        fits &= view[starts + place] == model[place]
    if layout.step is not None:
        for place in range(*layout.step):
            fits &= (view[starts + place] >= 0x80) == (model[place] >= 0x80)
    return fits


def _decoded(
    view: NDArray[np.uint8], records: NDArray[np.int64], starts: NDArray[np.int64], layout: _Layout
) -> Scalars:
    first, last = layout.value
    raw = view[starts[:, None] + np.arange(first, last)]
    values = raw.view("<f4" if last - first == 4 else "<f8").ravel().astype(np.float64)
    steps = np.zeros(starts.size, dtype=np.uint64)
    if layout.step is not None:
        for shift, place in enumerate(range(*layout.step)):
            steps |= (view[starts + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * shift)
    return Scalars(records, steps.view(np.int64), values)


def _one_by_one(
    data: bytes,
    records: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    found: dict[str, list[Scalars]],
) -> list[tuple[int, str]]:
    rows: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    refused: list[tuple[int, str]] = []
    for record in sorted(records.tolist()):
        start, length = int(starts[record]), int(lengths[record])
        try:
            for step, tag, value in scalars(data[start : start + length]):
                rows[tag].append((record, step, value))
        except (ValueError, struct.error) as error:
            refused.append((record, str(error)))
    for tag, triples in rows.items():
        numbers, steps, values = zip(*triples, strict=True)
        found[tag].append(Scalars(np.asarray(numbers), np.asarray(steps, np.int64), np.asarray(values, np.float64)))
    return refused


def _in_order(parts: list[Scalars]) -> Scalars:
    if len(parts) == 1:
        return parts[0]
    records = np.concatenate([part.records for part in parts])
    order = np.argsort(records, kind="stable")
    steps = np.concatenate([part.steps for part in parts])[order]
    values = np.concatenate([part.values for part in parts])[order]
    return Scalars(records[order], steps, values)
