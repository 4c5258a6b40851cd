"""Is an event file decoded in groups read as it is record by record, and is damage in it located?"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.readers.metrics.samples import event, field, record, varint

from spike.readers.metrics import event_scalars
from spike.readers.metrics.contract import Parsed
from spike.readers.metrics.event_scalars import read_scalars, scalars
from spike.readers.metrics.formats.tensorboard import READER

FIRST = record(varint(1 << 3 | 1) + struct.pack("<d", 1.0) + field(3, b"brain.Event:2"))
LOSS = st.floats(width=32)


def payload(step: int | None, values: list[bytes], time: float = 1.0, *, swapped: bool = False) -> bytes:
    count = b"" if step is None else varint(2 << 3) + varint(step % (1 << 64))
    parts = [varint(1 << 3 | 1) + struct.pack("<d", time), count, field(5, b"".join(field(1, v) for v in values))]
    return b"".join(parts[::-1] if swapped else parts)


def simple(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(tag: str, value: float, how: int) -> bytes:
    inner = {
        0: varint(1 << 3) + varint(1) + field(4, struct.pack("<f", value)),
        1: varint(1 << 3) + varint(2) + field(4, struct.pack("<d", value)),
        2: varint(1 << 3) + varint(1) + field(5, struct.pack("<f", value)),
        3: varint(1 << 3) + varint(2) + field(6, struct.pack("<d", value)),
    }[how]
    return field(1, tag.encode()) + field(8, inner) + field(9, field(1, b"scalars"))


TAGS = st.sampled_from(["loss", "grad_norm", "train/loss", "lr", "é"])
VALUES = st.one_of(
    st.builds(simple, TAGS, LOSS),
    st.builds(tensor, TAGS, LOSS, st.integers(0, 3)),
    st.builds(lambda tag: field(1, tag.encode()) + field(5, b"a histogram"), TAGS),
)
STEPS = st.one_of(st.none(), st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))
EVENTS = st.one_of(
    st.builds(payload, STEPS, st.lists(VALUES, min_size=1, max_size=1), st.floats(), swapped=st.booleans()),
    st.builds(payload, STEPS, st.lists(VALUES, max_size=3)),
    st.binary(max_size=40),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.integers(1, 12)), max_size=12), st.randoms(use_true_random=False))
def test_groups_of_records_give_what_each_record_gives_alone(made: list[tuple[bytes, int]], random: object) -> None:
    payloads = [body for body, count in made for _ in range(count)]
    random.shuffle(payloads)  # type: ignore[attr-defined]
    data = b"".join(payloads)
    lengths = np.asarray([len(body) for body in payloads], np.int64)
    starts = np.cumsum(lengths) - lengths
    found, refused = read_scalars(data, starts, lengths)
    alone: dict[str, list[tuple[int, int, float]]] = {}
    bad: list[int] = []
    for number, body in enumerate(payloads):
        try:
            for step, tag, value in list(scalars(body)):
                alone.setdefault(tag, []).append((number, step, value))
        except (ValueError, struct.error):
            bad.append(number)
    together = {
        tag: list(zip(rows.records.tolist(), rows.steps.tolist(), rows.values.tolist(), strict=True))
        for tag, rows in found.items()
    }
    assert {tag: str(rows) for tag, rows in together.items()} == {tag: str(rows) for tag, rows in alone.items()}
    assert [number for number, _ in refused] == bad


def test_records_of_one_tag_are_decoded_together_and_not_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_scalars, "scalars", lambda _: pytest.fail("decoded alone"))
    payloads = [payload(step, [simple("loss", step / 3)], time=step * 1.5) for step in range(128, 328)]
    lengths = np.asarray([len(body) for body in payloads], np.int64)
    found, _ = read_scalars(b"".join(payloads), np.cumsum(lengths) - lengths, lengths)
    assert found["loss"].steps.tolist() == list(range(128, 328))


def whole(directory: Path, data: bytes) -> Parsed:
    path = directory / "events.out.tfevents.1.host.1.0"
    path.write_bytes(data)
    return READER.read(path)


def steps(parsed: Parsed) -> list[int]:
    return [step for column in parsed.columns for step in column.steps.tolist()]


EVENTS_OF_20 = [event(step, "loss", 3.0) for step in range(1, 21)]


@pytest.mark.parametrize("in_c", [True, False])
def test_a_header_that_is_wrong_costs_one_record_and_the_next_is_found_again(
    in_c: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_c:
        monkeypatch.setattr("spike.readers.metrics.formats.tensorboard.in_c", lambda: None)
        monkeypatch.setattr("spike.readers.metrics.crc32c.in_c", lambda: None)
    else:
        pytest.importorskip("crc32c")
    at = len(FIRST) + sum(map(len, EVENTS_OF_20[:9]))
    data = bytearray(FIRST + b"".join(EVENTS_OF_20))
    data[at : at + 8] = b"\xff" * 8
    parsed = whole(tmp_path, bytes(data))
    assert steps(parsed) == [*range(1, 10), *range(11, 21)]
    assert [(d.byte_offset, d.benign) for d in parsed.damages] == [(at, False)]
    assert f"{len(EVENTS_OF_20[9])} bytes are lost" in parsed.damages[0].reason


def test_a_value_that_was_changed_on_disk_is_found_by_its_checksum_and_not_read(tmp_path: Path) -> None:
    pytest.importorskip("crc32c")
    at = len(FIRST) + sum(map(len, EVENTS_OF_20[:4]))
    data = bytearray(FIRST + b"".join(EVENTS_OF_20))
    data[at + len(EVENTS_OF_20[4]) - 5] ^= 0x40
    parsed = whole(tmp_path, bytes(data))
    assert 5 not in steps(parsed)
    assert len(steps(parsed)) == 19
    assert [(d.byte_offset, d.reason) for d in parsed.damages] == [(at, "a record with a wrong checksum")]


def test_without_the_checksum_package_a_note_says_what_was_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spike.readers.metrics.formats.tensorboard.in_c", lambda: None)
    parsed = whole(tmp_path, FIRST + b"".join(EVENTS_OF_20))
    assert [pattern for pattern, _ in parsed.notes] == ["checksums"]


def test_an_event_file_without_a_scalar_is_called_so_and_a_cut_one_is_benign(tmp_path: Path) -> None:
    empty = whole(tmp_path, FIRST)
    assert "holds no scalar" in empty.damages[0].reason
    cut = whole(tmp_path, FIRST + EVENTS_OF_20[0] + EVENTS_OF_20[1][:-7])
    assert steps(cut) == [1]
    assert [(d.byte_offset, d.benign) for d in cut.damages] == [(len(FIRST) + len(EVENTS_OF_20[0]), True)]


def test_a_hole_of_zeros_in_the_middle_is_damage_and_what_follows_is_read(tmp_path: Path) -> None:
    parsed = whole(tmp_path, FIRST + EVENTS_OF_20[0] + b"\0" * 4096 + b"".join(EVENTS_OF_20[1:]))
    assert steps(parsed) == list(range(1, 21))
    assert [(d.byte_offset, d.benign) for d in parsed.damages] == [(len(FIRST) + len(EVENTS_OF_20[0]), False)]
    assert "4096 bytes are lost" in parsed.damages[0].reason


def test_nan_and_infinity_stay_what_they_are(tmp_path: Path) -> None:
    written = [event(step, "loss", value) for step, value in enumerate((1.0, math.nan, math.inf, -math.inf) * 5)]
    values = whole(tmp_path, FIRST + b"".join(written)).columns[0].values
    np.testing.assert_array_equal(values, [1.0, math.nan, math.inf, -math.inf] * 5)
