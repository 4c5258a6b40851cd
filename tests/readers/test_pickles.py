"""Does the pickle reader read data, refuse everything else, and never run anything?"""

import argparse
import collections
import copyreg
import enum
import gc
import io
import os
import pathlib
import pickle
import random
import struct
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spike.domain.errors import InputUnreadable
from spike.readers.pickles import Global, Record, read_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.frozensets(st.integers())
    ),
    max_leaves=30,
)


class Colour(enum.Enum):
    RED = "red"


class Hostile:
    """Its pickle makes a file, when a loader that executes reads it."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def outcome(stream):
    try:
        read_pickle(stream)
    except InputUnreadable as error:
        return "refused" if error.message else "refused without a reason"
    return "read"


@settings(max_examples=150, deadline=None)
@given(PLAIN, st.integers(0, 5))
def test_plain_data_of_every_protocol_reads_back_as_it_was_written(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol)).value == value


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_hostile_pickle_runs_nothing_and_is_named(tmp_path, protocol):
    marker = tmp_path / "was-run"
    data = pickle.dumps({"model": Hostile(marker)}, protocol)
    read = read_pickle(data)
    assert not marker.exists()
    assert [str(name) for name in read.dangerous()] == ["posix.system"]
    record = read.value["model"]
    assert isinstance(record, Record)
    assert record.args == (f"touch {marker}",)
    pickle.loads(data)  # the control: a loader that executes does make the file
    assert marker.exists()


@pytest.mark.parametrize(
    "stream",
    [
        b"cbuiltins\neval\n(S'1/0'\ntR.",
        b"c__builtin__\nexec\n(S'raise SystemExit'\ntR.",
        b"(S'touch x'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch x'\no.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        b"cimportlib\nimport_module\n(S'antigravity'\ntR.",
        b"csubprocess\nPopen\n(S'true'\ntR.",
        b"crunpy\nrun_path\n(S'x.py'\ntR.",
    ],
)
def test_every_way_to_name_a_function_of_the_system_is_dangerous_and_inert(stream, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_pickle(stream).dangerous()
    assert list(tmp_path.iterdir()) == []


def test_objects_of_training_stacks_become_records_with_their_attributes():
    args = argparse.Namespace(lr=1e-3, layers=[1, 2], path=pathlib.PurePosixPath("/data"))
    read = read_pickle(pickle.dumps({"args": args, "kind": Colour.RED, "deep": types.SimpleNamespace(a=1)}))
    record = read.value["args"]
    assert record.type_name == "argparse.Namespace"
    assert record.attribute("lr") == 1e-3
    assert record.attribute("layers") == [1, 2]
    assert record.attribute("path").args[-1] == "data"
    assert read.value["kind"].args == ("red",)
    assert not read.dangerous()


def test_ordered_dictionaries_sets_and_bytes_become_plain_data():
    value = {"a": collections.OrderedDict(x=1, y=2), "s": {1, 2}, "b": b"\x00\xff", "d": collections.deque([1, 2])}
    for protocol in range(6):
        read = read_pickle(pickle.dumps(value, protocol)).value
        assert read == {"a": {"x": 1, "y": 2}, "s": {1, 2}, "b": b"\x00\xff", "d": [1, 2]}


def test_shared_and_recursive_structures_keep_their_identity():
    shared = [1]
    loop: list[object] = [shared, shared]
    loop.append(loop)
    read = read_pickle(pickle.dumps(loop)).value
    assert read[0] is read[1]
    assert read[2] is read


def test_persistent_ids_go_to_the_caller_and_nowhere_else():
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return ("storage", len(obj)) if isinstance(obj, bytearray) else None

    stream = io.BytesIO()
    Pickler(stream, 2).dump([bytearray(b"x")])
    data = stream.getvalue()
    assert read_pickle(data, persistent=lambda identity: identity[0]).value == ["storage"]
    with pytest.raises(InputUnreadable, match="persistent id"):
        read_pickle(data)


def test_several_streams_in_a_row_are_read_one_after_another():
    data = pickle.dumps(1) + pickle.dumps({"a": 2})
    first = read_pickle(data)
    assert (first.value, read_pickle(data, start=first.end).value) == (1, {"a": 2})


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_truncated_stream_is_unreadable_and_never_empty(cut):
    data = pickle.dumps({"model": [1.5, "text", (1, 2)], "step": 7}, 4)
    with pytest.raises(InputUnreadable):
        read_pickle(data[: len(data) * cut // 40])


def test_a_memo_bomb_is_refused_before_it_fills_memory():
    # Builds a list of a hundred items, then copies it a million times through a constructor.
    body = b"\x80\x02]q\x00(" + b"K\x01" * 100 + b"e0" + b"c__builtin__\nlist\nq\x01" + b"0"
    body += b"(" + b"h\x01h\x00\x85R" * 50_000 + b"l."
    with pytest.raises(InputUnreadable, match="expands"):
        read_pickle(body)


def test_a_memo_index_of_four_billion_costs_nothing():
    assert read_pickle(b"\x80\x02K\x01r\xff\xff\xff\xff.").value == 1


def test_a_key_nested_very_deep_is_refused_instead_of_exhausting_the_stack():
    body = b"}" + b")" + b"\x85" * 300_000 + b"K\x01s."
    with pytest.raises(InputUnreadable, match="nested"):
        read_pickle(body)


@pytest.mark.parametrize("end", [b"K\x01s.", b"K\x01u.", b"\x90.", b"\x91."])
def test_a_small_key_that_would_take_for_ever_to_hash_is_refused_at_once(end):
    # Sixty pairs of the pair before: 2^60 items to hash, in three bytes each.
    start = {b"s": b"}", b"u": b"}(", b"\x90": b"\x8f(", b"\x91": b"("}[end[-2:-1]]
    with pytest.raises(InputUnreadable, match="nested"):
        read_pickle(start + b")" + b"2\x86" * 60 + end)


def test_codes_of_the_extension_registry_never_reach_the_registry():
    copyreg.add_extension("os", "system", 77)
    try:
        read = read_pickle(b"\x82\x4d(S'true'\ntR.")
    finally:
        copyreg.remove_extension("os", "system", 77)
    assert isinstance(read.value, Record)
    assert read.value.kind == Global("copyreg.extension", "77")


OPCODES = [
    b"N", b"K\x01", b"M\x02\x03", b"J\xff\xff\xff\xff", b"G" + bytes(8), b"\x88", b"\x89", b")", b"]", b"}", b"\x8f",
    b"(", b"(", b"t", b"l", b"d", b"0", b"1", b"2", b"\x85", b"\x86", b"\x87", b"s", b"u", b"a", b"e", b"\x90", b"\x91",
    b"\x94", b"\x94", b"q\x00", b"q\x03", b"r\x05\x00\x00\x00", b"p2\n",
    b"h\x00", b"h\x03", b"j\x05\x00\x00\x00", b"g1\n",
    b"\x8c\x02ab", b"X\x01\x00\x00\x00c", b"C\x01x", b"\x8a\x01\x07", b"I01\n", b"V\xe9\n", b"\x8a\x00",
]  # fmt: skip


def test_what_is_read_is_what_cpython_reads_for_any_program_without_calls():
    """Programs of opcodes in random order; a program that only CPython accepts is none that an honest writer makes."""
    generator, num_read = random.Random(0), 0
    for _ in range(60_000):
        stream = b"".join(generator.choices(OPCODES, k=generator.randint(1, 14))) + b"."
        try:
            found = read_pickle(stream).value
        except InputUnreadable:
            continue
        num_read += 1
        assert repr(found) == repr(pickle.loads(stream)), stream
    assert num_read > 5_000


def test_memo_entries_are_numbered_as_cpython_numbers_them():
    # PUT 5, then MEMOIZE: the next number is how many entries there are.
    stream = b"K\x01r\x05\x00\x00\x00K\x02\x94K\x03q\x00h\x05h\x01h\x00\x87."
    assert read_pickle(stream).value == pickle.loads(stream) == (1, 2, 3)


def test_a_large_stream_does_not_leave_the_garbage_collector_off():
    data = pickle.dumps([{"n": n, "text": f"{n:050}"} for n in range(20_000)])
    assert len(data) > 1 << 20
    assert len(read_pickle(data).value) == 20_000
    assert gc.isenabled()
    with pytest.raises(InputUnreadable):
        read_pickle(data[:-1])
    assert gc.isenabled()


def test_a_value_nested_very_deep_is_read_and_freed():
    assert isinstance(read_pickle(b")" + b"\x85" * 300_000 + b".").value, tuple)


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b".",
        b"0.",
        b"(.",
        b"\x80\x06N.",
        b"\xff.",
        b"X\xff\xff\xff\x7fabc.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"\x8b\xff\xff\xff\xff.",
        b"h\x07.",
        b"}K\x01s.",
        b"K\x01K\x02a.",
        b"](K\x01s.",
        b"}]K\x01s.",
        b"\x97.",
        b"I" + b"9" * 5000 + b"\n.",
        b"F1e\n.",
        b"S'unterminated\n.",
        b"\x95" + struct.pack("<Q", 1 << 40) + b"N.",
        b"c" + b"m" * 2000 + b"\nn\n.",
        b"K\x01K\x02R.",
    ],
)
def test_malformed_streams_are_unreadable(stream):
    with pytest.raises(InputUnreadable):
        read_pickle(stream)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_never_do_anything_but_read_or_refuse(data):
    assert outcome(data) in ("read", "refused")


@settings(max_examples=300, deadline=None)
@given(PLAIN, st.integers(0, 5), st.data())
def test_a_damaged_honest_stream_never_does_anything_but_read_or_refuse(value, protocol, data):
    stream = bytearray(pickle.dumps({"args": argparse.Namespace(a=value)}, protocol))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    assert outcome(bytes(stream)) in ("read", "refused")


def test_plain_modules_are_plain_and_all_other_parts_of_the_library_are_not():
    assert not Global("collections", "OrderedDict").is_dangerous
    assert not Global("torch._utils", "_rebuild_tensor_v2").is_dangerous
    assert not Global("numpy", "dtype").is_dangerous
    assert not Global("builtins", "set").is_dangerous
    for module, name in [("os", "system"), ("builtins", "eval"), ("socket", "socket"), ("pty", "spawn")]:
        assert Global(module, name).is_dangerous
