"""What does a pickle describe? An interpreter of pickle opcodes that builds inert records and runs nothing.

A pickle is a program. This reader executes its stack operations and none of its calls: every global becomes a
`Global`, every call a `Record` of what would have been called with what. The few constructions that are plain
data (an ordered dict, a set, bytes spelled as latin-1 text) become that data, through functions of this file.
Nothing is imported by name, no attribute of a loaded object is looked up, and a stream that this reader does not
understand is an error, never an empty result.

Opcodes: CPython Lib/pickletools.py, protocols 0 to 5.
"""

from __future__ import annotations

import codecs
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spike.domain.errors import InputUnreadable

MAX_BYTES = 1 << 30
"""Largest pickle stream that is read: index files of trillion-parameter jobs stay below 300 MB."""
MAX_KEY_DEPTH = 32
"""Nesting of tuples in a dictionary key; hashing a deeper one would exhaust the C stack."""

# Standard-library modules whose objects are plain data in a checkpoint. Any other standard-library name in a
# pickle is a call that a loader would make on the machine, and no training stack stores one.
PLAIN_MODULES = frozenset(
    (
        "_codecs",
        "argparse",
        "array",
        "collections",
        "copyreg",
        "datetime",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "io",
        "ipaddress",
        "logging",
        "pathlib",
        "random",
        "re",
        "signal",
        "types",
        "uuid",
        "zoneinfo",
    )
)
PLAIN_BUILTINS = frozenset(
    (
        "bool",
        "bytearray",
        "bytes",
        "complex",
        "dict",
        "float",
        "frozenset",
        "int",
        "list",
        "object",
        "range",
        "set",
        "slice",
        "str",
        "tuple",
        "type",
    )
)


@dataclass(frozen=True, slots=True, order=True)
class Global:
    """A name that the pickle refers to. Never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def is_dangerous(self) -> bool:
        """True where the name is no data type: a loader that imports it hands over the machine."""
        top = self.module.partition(".")[0]
        if top in ("builtins", "__builtin__"):
            return self.name not in PLAIN_BUILTINS
        if top in ("nt", "posix", "commands", "__builtin__"):
            return True
        return top in sys.stdlib_module_names and top not in PLAIN_MODULES


_NO_PAIRS: dict[Any, Any] = {}
_NO_ITEMS: list[Any] = []
"""Shared by all records that have none, and never written to: indexes hold millions of records."""


@dataclass(slots=True, eq=False)
class Record:
    """What a call would have made: inert, compared by identity."""

    kind: Any
    """The callee: a `Global`, or another `Record`."""
    args: tuple[Any, ...] = ()
    kwargs: dict[Any, Any] = field(default_factory=lambda: _NO_PAIRS)
    state: Any = None
    """What BUILD handed over: usually the attribute dictionary."""
    items: list[Any] = field(default_factory=lambda: _NO_ITEMS)
    pairs: dict[Any, Any] = field(default_factory=lambda: _NO_PAIRS)

    @property
    def type_name(self) -> str:
        """Dotted name of the callee, "" for something more complicated."""
        return str(self.kind) if isinstance(self.kind, Global) else ""

    def attribute(self, name: str) -> Any:
        """Attribute from the stored state, or None."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        return next((s[name] for s in states if isinstance(s, dict) and name in s), None)


@dataclass(frozen=True, slots=True)
class Pickle:
    """One stream, read."""

    value: Any
    globals: tuple[Global, ...]
    """Every name that the stream refers to, sorted."""
    end: int
    """Offset after STOP: old torch files hold several streams in a row."""

    def dangerous(self) -> tuple[Global, ...]:
        """Names that no checkpoint needs and an attacker does."""
        return tuple(name for name in self.globals if name.is_dangerous)


Constructor = Callable[[tuple[Any, ...]], Any]
Persistent = Callable[[Any], Any]


def read_pickle(
    data: bytes | memoryview,
    *,
    source: str = "pickle",
    start: int = 0,
    persistent: Persistent | None = None,
    constructors: Mapping[str, Constructor] | None = None,
) -> Pickle:
    """Read one stream from `start`.

    `persistent` turns a persistent id into a value, `constructors` names callees ("torch.Size") that a function
    of the caller's replaces; it gets the arguments and must only build data. Raises `InputUnreadable` naming
    `source` and the offset for everything that is not a well-formed stream.
    """
    if len(data) > MAX_BYTES:
        raise InputUnreadable(f"{source}: a pickle of {len(data):,} bytes; the limit is {MAX_BYTES:,}")
    machine = _Machine(bytes(data), start, persistent, {**_PLAIN, **(constructors or {})})
    try:
        value = machine.run()
    except InputUnreadable as error:
        raise InputUnreadable(f"{source}: {error.message} at byte {machine.at}") from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        struct.error,
        TypeError,
        ValueError,
    ) as error:
        what = f"{type(error).__name__}: {error}"[:200]
        raise InputUnreadable(f"{source}: broken pickle at byte {machine.at} ({what})") from error
    return Pickle(value, tuple(sorted(machine.globals)), machine.at)


class _Machine:
    """The stack machine. Memory is bounded by a multiple of the stream's length."""

    def __init__(
        self, data: bytes, start: int, persistent: Persistent | None, constructors: Mapping[str, Constructor]
    ) -> None:
        self.data = data
        self.at = start
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.fence = 0
        """Height of the stack at the last mark: nothing below it may be taken."""
        self.memo: dict[int, Any] = {}
        self.globals: set[Global] = set()
        self.persistent = persistent
        self.constructors = constructors
        # An honest stream spells out each element once, in a byte or more. What is built by copying out of the
        # memo is charged here, so that a few kilobytes cannot ask for gigabytes.
        self.budget = 8 * len(data) + 65536

    def run(self) -> Any:
        data, handlers = self.data, _HANDLERS
        while True:
            if self.at >= len(data):
                raise InputUnreadable("the stream ends before STOP")
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                return self.pop()
            handler = handlers[code]
            if handler is None:
                raise InputUnreadable(f"unknown opcode 0x{code:02x}")
            handler(self)

    # -- the stream

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise InputUnreadable(f"{count} bytes announced, {len(self.data) - self.at} left")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self.data, self.at)[0]
        self.at += layout.size
        return value

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise InputUnreadable("a line without its end")
        text = self.data[self.at : end]
        self.at = end + 1
        return text

    def charge(self, amount: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            raise InputUnreadable("the pickle expands far beyond its own size")

    # -- the stack

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if len(self.stack) <= self.fence:
            raise InputUnreadable("a value is needed where there is none")
        return self.stack.pop()

    def top(self) -> Any:
        if len(self.stack) <= self.fence:
            raise InputUnreadable("a value is needed where there is none")
        return self.stack[-1]

    def mark(self) -> None:
        self.fence = len(self.stack)
        self.marks.append(self.fence)

    def to_mark(self) -> list[Any]:
        if not self.marks:
            raise InputUnreadable("no mark on the stack")
        place = self.marks.pop()
        self.fence = self.marks[-1] if self.marks else 0
        items = self.stack[place:]
        del self.stack[place:]
        return items

    def remember(self, index: int) -> None:
        self.memo[index] = self.top()

    # -- building

    def refer(self, module: Any, name: Any) -> Global:
        if not (isinstance(module, str) and isinstance(name, str)) or len(module) + len(name) > 1000:
            raise InputUnreadable("a global whose name is no short text")
        found = Global(module, name)
        self.globals.add(found)
        return found

    def call(self, callee: Any, args: Any, kwargs: Any = None) -> Any:
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        if isinstance(callee, Global):
            if callee.module == "copyreg" and callee.name in ("__newobj__", "_reconstructor") and args:
                return self.call(args[0], args[1:])
            build = self.constructors.get(str(callee))
            if build is not None:
                self.charge(sum(len(arg) for arg in args if isinstance(arg, _SIZED)))
                return build(args)
        return Record(callee, args, kwargs if isinstance(kwargs, dict) else _NO_PAIRS)

    def put_pairs(self, target: Any, flat: list[Any]) -> None:
        if len(flat) % 2:
            raise InputUnreadable("a key without its value")
        if isinstance(target, Record) and target.pairs is _NO_PAIRS:
            target.pairs = {}
        into = target.pairs if isinstance(target, Record) else target
        if not isinstance(into, dict):
            raise InputUnreadable("items set on something that is no mapping")
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            into[_hashable(key)] = value

    def put_items(self, target: Any, items: list[Any]) -> None:
        if isinstance(target, Record) and target.items is _NO_ITEMS:
            target.items = []
        into = target.items if isinstance(target, Record) else target
        if isinstance(into, set):
            into.update(_hashable(item) for item in items)
        elif isinstance(into, list):
            into.extend(items)
        else:
            raise InputUnreadable("items appended to something that is no list")

    def build(self) -> None:
        state = self.pop()
        target = self.top()
        if isinstance(target, Record):
            target.state = state
        # Plain containers may carry attributes (an OrderedDict's _metadata): nothing here needs them.


_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset)


def _hashable(key: Any) -> Any:
    """The key itself, if hashing it is safe; a mutable one becomes its own inert stand-in."""
    if isinstance(key, tuple):
        level: list[Any] = [key]
        for _ in range(MAX_KEY_DEPTH):
            level = [item for outer in level for item in outer if isinstance(item, tuple)]
            if not level:
                return key
            if len(level) > 4096:
                break
        raise InputUnreadable("a key nested too deeply")
    return key


def _ordered(args: tuple[Any, ...]) -> dict[Any, Any]:
    pairs = args[0] if args else ()
    if isinstance(pairs, dict):
        return dict(pairs)
    return {_hashable(key): value for key, value in pairs}


def _members(args: tuple[Any, ...]) -> list[Any]:
    source = args[0] if args else ()
    if not isinstance(source, list | tuple | set | frozenset | dict | str | bytes | bytearray):
        raise InputUnreadable("a container made of something that is no container")
    return [_hashable(item) for item in source]


def _encoded(args: tuple[Any, ...]) -> bytes:
    if len(args) == 2 and isinstance(args[0], str) and args[1] in ("latin1", "latin-1"):
        return args[0].encode("latin-1")
    raise InputUnreadable("bytes in an unexpected encoding")


def _raw_bytes(args: tuple[Any, ...]) -> bytes:
    if not args:
        return b""
    if len(args) == 2 and isinstance(args[0], str):
        return _encoded(args)
    if isinstance(args[0], bytes | bytearray | list | tuple):
        return bytes(args[0])
    raise InputUnreadable("bytes made of something that is no bytes")


_PLAIN: dict[str, Constructor] = {
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": lambda _args: {},
    "collections.Counter": _ordered,
    "collections.deque": _members,
    "_codecs.encode": _encoded,
}
for _module in ("builtins", "__builtin__"):
    _PLAIN |= {
        f"{_module}.set": lambda args: set(_members(args)),
        f"{_module}.frozenset": lambda args: frozenset(_members(args)),
        f"{_module}.list": _members,
        f"{_module}.tuple": lambda args: tuple(_members(args)),
        f"{_module}.dict": _ordered,
        f"{_module}.bytes": _raw_bytes,
        f"{_module}.bytearray": lambda args: bytearray(_raw_bytes(args)),
        f"{_module}.complex": lambda args: complex(float(args[0]), float(args[1])),
    }


# -- opcodes ------------------------------------------------------------------------------------------------

_Handler = Callable[[_Machine], None]
_U8, _U16, _U32, _U64, _I32 = (struct.Struct(code) for code in ("<B", "<H", "<I", "<Q", "<i"))


def _text_int(machine: _Machine) -> None:
    line = machine.line()
    machine.push(line == b"01" if line in (b"00", b"01") else int(line))


def _text_long(machine: _Machine) -> None:
    machine.push(int(machine.line().removesuffix(b"L")))


def _long(layout: struct.Struct) -> _Handler:
    def handle(machine: _Machine) -> None:
        machine.push(int.from_bytes(machine.take(machine.number(layout)), "little", signed=True))

    return handle


def _integer(layout: struct.Struct) -> _Handler:
    return lambda machine: machine.push(machine.number(layout))


def _raw(layout: struct.Struct) -> _Handler:
    return lambda machine: machine.push(machine.take(machine.number(layout)))


def _unicode(layout: struct.Struct) -> _Handler:
    return lambda machine: machine.push(machine.take(machine.number(layout)).decode("utf-8", "surrogatepass"))


def _latin(layout: struct.Struct) -> _Handler:
    """Python 2 strings: bytes that are nearly always names."""
    return lambda machine: machine.push(machine.take(machine.number(layout)).decode("latin-1"))


def _text_string(machine: _Machine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise InputUnreadable("a quoted string without its quotes")
    machine.push(codecs.escape_decode(line[1:-1])[0].decode("latin-1"))


def _text_unicode(machine: _Machine) -> None:
    machine.push(machine.line().decode("raw-unicode-escape"))


def _short_number(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.at])
    machine.at += 1


def _short_get(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.at]])
    machine.at += 1


def _long_get(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.number(_U32)])


def _short_put(machine: _Machine) -> None:
    machine.remember(machine.data[machine.at])
    machine.at += 1


def _long_put(machine: _Machine) -> None:
    machine.remember(machine.number(_U32))


def _memoize(machine: _Machine) -> None:
    if len(machine.stack) <= machine.fence:
        raise InputUnreadable("a value is needed where there is none")
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _push(value: Any) -> _Handler:
    return lambda machine: machine.stack.append(value)


def _new(kind: Callable[[], Any]) -> _Handler:
    return lambda machine: machine.stack.append(kind())


def _tuple_of(count: int) -> _Handler:
    def handle(machine: _Machine) -> None:
        stack = machine.stack
        if len(stack) - count < machine.fence:
            raise InputUnreadable("a tuple of more values than there are")
        stack[-count:] = [tuple(stack[-count:])]

    return handle


def _get(read: Callable[[_Machine], int]) -> _Handler:
    return lambda machine: machine.push(machine.memo[read(machine)])


def _put(read: Callable[[_Machine], int]) -> _Handler:
    return lambda machine: machine.remember(read(machine))


def _drop(machine: _Machine) -> None:
    """POP takes a mark where that is what lies on top."""
    if machine.marks and len(machine.stack) == machine.fence:
        machine.to_mark()
    else:
        machine.pop()


def _pop_mark(machine: _Machine) -> None:
    machine.to_mark()


def _dict_from_mark(machine: _Machine) -> None:
    flat = machine.to_mark()
    made: dict[Any, Any] = {}
    machine.put_pairs(made, flat)
    machine.push(made)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.put_pairs(machine.top(), [key, value])


def _set_items(machine: _Machine) -> None:
    flat = machine.to_mark()
    machine.put_pairs(machine.top(), flat)


def _append(machine: _Machine) -> None:
    item = machine.pop()
    machine.put_items(machine.top(), [item])


def _appends(machine: _Machine) -> None:
    items = machine.to_mark()
    machine.put_items(machine.top(), items)


def _reduce(machine: _Machine) -> None:
    args, callee = machine.pop(), machine.pop()
    if not isinstance(args, tuple):
        raise InputUnreadable("a call whose arguments are no tuple")
    machine.push(machine.call(callee, args))


def _new_object(machine: _Machine) -> None:
    args, kind = machine.pop(), machine.pop()
    machine.push(machine.call(kind, args))


def _new_object_keywords(machine: _Machine) -> None:
    kwargs, args, kind = machine.pop(), machine.pop(), machine.pop()
    machine.push(machine.call(kind, args, kwargs))


def _instance(machine: _Machine) -> None:
    module, name = machine.line().decode(), machine.line().decode()
    kind = machine.refer(module, name)
    machine.push(machine.call(kind, tuple(machine.to_mark())))


def _object(machine: _Machine) -> None:
    items = machine.to_mark()
    machine.push(machine.call(items[0], tuple(items[1:])))


def _global(machine: _Machine) -> None:
    module, name = machine.line().decode(), machine.line().decode()
    machine.push(machine.refer(module, name))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push(machine.refer(module, name))


def _extension(layout: struct.Struct) -> _Handler:
    """Codes of copyreg's extension registry mean something only inside the process that registered them."""
    return lambda machine: machine.push(machine.refer("copyreg.extension", str(machine.number(layout))))


def _persistent(read: Callable[[_Machine], Any]) -> _Handler:
    def handle(machine: _Machine) -> None:
        if machine.persistent is None:
            raise InputUnreadable("a persistent id where none is expected")
        machine.push(machine.persistent(read(machine)))

    return handle


def _protocol(machine: _Machine) -> None:
    version = machine.number(_U8)
    if version > 5:
        raise InputUnreadable(f"pickle protocol {version}")


def _frame(machine: _Machine) -> None:
    length = machine.number(_U64)
    if machine.at + length > len(machine.data):
        raise InputUnreadable("a frame that ends after the stream")


def _duplicate(machine: _Machine) -> None:
    machine.push(machine.top())


def _add_items(machine: _Machine) -> None:
    items = machine.to_mark()
    machine.put_items(machine.top(), items)


_OPCODES: dict[bytes, _Handler] = {
    b"(": _Machine.mark,
    b"0": _drop,
    b"1": _pop_mark,
    b"2": _duplicate,
    b"F": lambda machine: machine.push(float(machine.line())),
    b"I": _text_int,
    b"J": _integer(_I32),
    b"K": _short_number,
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
    b"b": _Machine.build,
    b"c": _global,
    b"d": _dict_from_mark,
    b"}": _new(dict),
    b"e": _appends,
    b"g": _get(lambda machine: int(machine.line())),
    b"h": _short_get,
    b"i": _instance,
    b"j": _long_get,
    b"l": lambda machine: machine.push(machine.to_mark()),
    b"]": _new(list),
    b"o": _object,
    b"p": _put(lambda machine: int(machine.line())),
    b"q": _short_put,
    b"r": _long_put,
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
    b"\x91": lambda machine: machine.push(frozenset(_hashable(item) for item in machine.to_mark())),
    b"\x92": _new_object_keywords,
    b"\x93": _stack_global,
    b"\x94": _memoize,
    b"\x95": _frame,
    b"\x96": lambda machine: machine.push(bytearray(machine.take(machine.number(_U64)))),
}
# Out-of-band buffers (0x97, 0x98) live outside the stream: a file that uses them cannot be read from itself.

_HANDLERS: list[_Handler | None] = [_OPCODES.get(bytes([code])) for code in range(256)]
