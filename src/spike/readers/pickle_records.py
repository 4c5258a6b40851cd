"""What is left of a pickled object when nothing is run? Inert names and records, and the plainest kinds of data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spike.domain.errors import InputUnreadable

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


NO_PAIRS: dict[Any, Any] = {}
NO_ITEMS: list[Any] = []
"""Shared by all records that have none, and never written to: indexes hold millions of records."""


class Record:
    """What a call would have made: inert, compared by identity."""

    __slots__ = ("args", "items", "kind", "kwargs", "pairs", "state")

    def __init__(self, kind: Any, args: tuple[Any, ...] = (), kwargs: dict[Any, Any] = NO_PAIRS) -> None:
        self.kind = kind
        """The callee: a `Global`, or another `Record`."""
        self.args = args
        self.kwargs = kwargs
        self.state: Any = None
        """What BUILD handed over: usually the attribute dictionary."""
        self.items = NO_ITEMS
        self.pairs = NO_PAIRS

    @property
    def type_name(self) -> str:
        """Dotted name of the callee, "" for something more complicated."""
        return str(self.kind) if isinstance(self.kind, Global) else ""

    def attribute(self, name: str) -> Any:
        """Attribute from the stored state, or None."""
        if type(self.state) is dict:
            return self.state.get(name)
        states = self.state if isinstance(self.state, tuple) else ()
        return next((s[name] for s in states if isinstance(s, dict) and name in s), None)


Constructor = Callable[[tuple[Any, ...]], Any]


def hashable(key: Any) -> Any:
    """The key itself, if hashing it is safe."""
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
    return {hashable(key): value for key, value in pairs}


def _members(args: tuple[Any, ...]) -> list[Any]:
    source = args[0] if args else ()
    if not isinstance(source, list | tuple | set | frozenset | dict | str | bytes | bytearray):
        raise InputUnreadable("a container made of something that is no container")
    return [hashable(item) for item in source]


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


PLAIN_CONSTRUCTORS: dict[str, Constructor] = {
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": lambda _args: {},
    "collections.Counter": _ordered,
    "collections.deque": _members,
    "_codecs.encode": _encoded,
}
for _module in ("builtins", "__builtin__"):
    PLAIN_CONSTRUCTORS |= {
        f"{_module}.set": lambda args: set(_members(args)),
        f"{_module}.frozenset": lambda args: frozenset(_members(args)),
        f"{_module}.list": _members,
        f"{_module}.tuple": lambda args: tuple(_members(args)),
        f"{_module}.dict": _ordered,
        f"{_module}.bytes": _raw_bytes,
        f"{_module}.bytearray": lambda args: bytearray(_raw_bytes(args)),
        f"{_module}.complex": lambda args: complex(float(args[0]), float(args[1])),
    }
