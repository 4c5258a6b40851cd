"""What does each opcode of a pickle do to the machine that reads it? One small function each, none of which calls.

Opcodes: CPython Lib/pickletools.py, protocols 0 to 5.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.readers.pickle_machine import Machine
from spike.readers.pickle_records import hashable

Handler = Callable[[Machine], None]
_U8, _U16, _U32, _U64, _I32 = (struct.Struct(code) for code in ("<B", "<H", "<I", "<Q", "<i"))


def _text_int(machine: Machine) -> None:
    line = machine.line()
    machine.push(line == b"01" if line in (b"00", b"01") else int(line))


def _text_long(machine: Machine) -> None:
    machine.push(int(machine.line().removesuffix(b"L")))


def _long(layout: struct.Struct) -> Handler:
    def handle(machine: Machine) -> None:
        machine.push(int.from_bytes(machine.take(machine.number(layout)), "little", signed=True))

    return handle


def _integer(layout: struct.Struct) -> Handler:
    return lambda machine: machine.push(machine.number(layout))


def _raw(layout: struct.Struct) -> Handler:
    return lambda machine: machine.push(machine.take(machine.number(layout)))


def _unicode(layout: struct.Struct) -> Handler:
    return lambda machine: machine.push(machine.take(machine.number(layout)).decode("utf-8", "surrogatepass"))


def _latin(layout: struct.Struct) -> Handler:
    """Python 2 strings: bytes that are nearly always names."""
    return lambda machine: machine.push(machine.take(machine.number(layout)).decode("latin-1"))


def _text_string(machine: Machine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise InputUnreadable("a quoted string without its quotes")
    machine.push(codecs.escape_decode(line[1:-1])[0].decode("latin-1"))


def _text_unicode(machine: Machine) -> None:
    machine.push(machine.line().decode("raw-unicode-escape"))


def _push(value: Any) -> Handler:
    return lambda machine: machine.stack.append(value)


def _new(kind: Callable[[], Any]) -> Handler:
    return lambda machine: machine.stack.append(kind())


def _tuple_of(count: int) -> Handler:
    def handle(machine: Machine) -> None:
        stack = machine.stack
        if len(stack) < count:
            raise InputUnreadable("a tuple of more values than there are")
        stack[-count:] = [tuple(stack[-count:])]

    return handle


def _get(read: Callable[[Machine], int]) -> Handler:
    return lambda machine: machine.push(machine.recall(read(machine)))


def _put(read: Callable[[Machine], int]) -> Handler:
    return lambda machine: machine.remember(read(machine))


def _drop(machine: Machine) -> None:
    """POP takes a mark where that is what lies on top."""
    if machine.stack:
        machine.pop()
    else:
        machine.to_mark()


def _pop_mark(machine: Machine) -> None:
    machine.to_mark()


def _dict_from_mark(machine: Machine) -> None:
    flat = machine.to_mark()
    made: dict[Any, Any] = {}
    machine.put_pairs(made, flat)
    machine.push(made)


def _set_item(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.put_pairs(machine.top(), [key, value])


def _set_items(machine: Machine) -> None:
    flat = machine.to_mark()
    machine.put_pairs(machine.top(), flat)


def _append(machine: Machine) -> None:
    item = machine.pop()
    machine.put_items(machine.top(), [item], list)


def _appends(machine: Machine) -> None:
    items = machine.to_mark()
    machine.put_items(machine.top(), items, list)


def _reduce(machine: Machine) -> None:
    args, callee = machine.pop(), machine.pop()
    if not isinstance(args, tuple):
        raise InputUnreadable("a call whose arguments are no tuple")
    machine.push(machine.call(callee, args))


def _new_object(machine: Machine) -> None:
    args, kind = machine.pop(), machine.pop()
    machine.push(machine.call(kind, args))


def _new_object_keywords(machine: Machine) -> None:
    kwargs, args, kind = machine.pop(), machine.pop(), machine.pop()
    machine.push(machine.call(kind, args, kwargs))


def _instance(machine: Machine) -> None:
    module, name = machine.line().decode(), machine.line().decode()
    kind = machine.refer(module, name)
    machine.push(machine.call(kind, tuple(machine.to_mark())))


def _object(machine: Machine) -> None:
    items = machine.to_mark()
    machine.push(machine.call(items[0], tuple(items[1:])))


def _global(machine: Machine) -> None:
    module, name = machine.line().decode(), machine.line().decode()
    machine.push(machine.refer(module, name))


def _stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push(machine.refer(module, name))


def _extension(layout: struct.Struct) -> Handler:
    """Codes of copyreg's extension registry mean something only inside the process that registered them."""
    return lambda machine: machine.push(machine.refer("copyreg.extension", str(machine.number(layout))))


def _persistent(read: Callable[[Machine], Any]) -> Handler:
    def handle(machine: Machine) -> None:
        if machine.persistent is None:
            raise InputUnreadable("a persistent id where none is expected")
        machine.push(machine.persistent(read(machine)))

    return handle


def _protocol(machine: Machine) -> None:
    version = machine.number(_U8)
    if version > 5:
        raise InputUnreadable(f"pickle protocol {version}")


def _frame(machine: Machine) -> None:
    length = machine.number(_U64)
    if machine.at + length > len(machine.data):
        raise InputUnreadable("a frame that ends after the stream")


def _duplicate(machine: Machine) -> None:
    machine.push(machine.top())


def _add_items(machine: Machine) -> None:
    items = machine.to_mark()
    machine.put_items(machine.top(), items, set)


_OPCODES: dict[bytes, Handler] = {
    b"(": Machine.mark,
    b"0": _drop,
    b"1": _pop_mark,
    b"2": _duplicate,
    b"F": lambda machine: machine.push(float(machine.line())),
    b"I": _text_int,
    b"J": _integer(_I32),
    b"K": _integer(_U8),
    b"L": _text_long,
    b"M": _integer(_U16),
    b"N": _push(None),
    b"P": _persistent(lambda machine: machine.line().decode()),
    b"Q": _persistent(lambda machine: machine.pop()),
    b"R": _reduce,
    b"S": _text_string,
    b"T": _latin(_I32),
    b"U": _latin(_U8),
    b"V": _text_unicode,
    b"X": _unicode(_U32),
    b"a": _append,
    b"b": Machine.build,
    b"c": _global,
    b"d": _dict_from_mark,
    b"}": _new(dict),
    b"e": _appends,
    b"g": _get(lambda machine: int(machine.line())),
    b"h": _get(lambda machine: machine.number(_U8)),
    b"i": _instance,
    b"j": _get(lambda machine: machine.number(_U32)),
    b"l": lambda machine: machine.push(machine.to_mark()),
    b"]": _new(list),
    b"o": _object,
    b"p": _put(lambda machine: int(machine.line())),
    b"q": _put(lambda machine: machine.number(_U8)),
    b"r": _put(lambda machine: machine.number(_U32)),
    b"s": _set_item,
    b"t": lambda machine: machine.push(tuple(machine.to_mark())),
    b")": _push(()),
    b"u": _set_items,
    b"G": lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    b"\x80": _protocol,
    b"\x81": _new_object,
    b"\x82": _extension(_U8),
    b"\x83": _extension(_U16),
    b"\x84": _extension(_I32),
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"\x88": _push(True),
    b"\x89": _push(False),
    b"\x8a": _long(_U8),
    b"\x8b": _long(_I32),
    b"B": _raw(_U32),
    b"C": _raw(_U8),
    b"\x8c": _unicode(_U8),
    b"\x8d": _unicode(_U64),
    b"\x8e": _raw(_U64),
    b"\x8f": _new(set),
    b"\x90": _add_items,
    b"\x91": lambda machine: machine.push(frozenset(hashable(item) for item in machine.to_mark())),
    b"\x92": _new_object_keywords,
    b"\x93": _stack_global,
    b"\x94": Machine.memoize,
    b"\x95": _frame,
    b"\x96": lambda machine: machine.push(bytearray(machine.take(machine.number(_U64)))),
}
# Out-of-band buffers (0x97, 0x98) live outside the stream: a file that uses them cannot be read from itself.

HANDLERS: list[Handler | None] = [_OPCODES.get(bytes([code])) for code in range(256)]
