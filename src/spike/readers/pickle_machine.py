"""What state does reading a pickle have? Stack, memo, names and a budget; nothing that is built can act.

The stack is a list for each open mark, as in CPython's own reader: taking more than was put there finds an empty list.
Memory is bounded by a multiple of the stream's length: an honest stream spells out each element once, in a byte or
more, and what is built by copying out of the memo is charged to a budget.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.readers.pickle_records import NO_ITEMS, NO_PAIRS, Constructor, Global, Record, hashable

Persistent = Callable[[Any], Any]


class Machine:
    """One stream being read."""

    def __init__(
        self, data: bytes, start: int, persistent: Persistent | None, constructors: Mapping[str, Constructor]
    ) -> None:
        self.data = data
        self.at = start
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        """The stacks under the open marks."""
        self.memo: list[Any] = []
        """Entries numbered without a gap, as every writer numbers them."""
        self.sparse: dict[int, Any] = {}
        """All other entries: a number of four billion costs nothing."""
        self.globals: dict[tuple[str, str], Global] = {}
        self.persistent = persistent
        self.constructors = constructors
        self.builders: dict[int, Constructor] = {}
        """Identity of a `Global` in `globals` -> its constructor."""
        self.budget = 8 * len(data) + 65536

    # -- the stream

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count < 0 or self.at + count > len(self.data):
            raise InputUnreadable(f"{count} bytes announced, {len(self.data) - self.at} left")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, layout: struct.Struct) -> int:
        """The next number."""
        value: int = layout.unpack_from(self.data, self.at)[0]
        self.at += layout.size
        return value

    def line(self) -> bytes:
        """The rest of the line."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise InputUnreadable("a line without its end")
        text = self.data[self.at : end]
        self.at = end + 1
        return text

    # -- the stack

    def push(self, value: Any) -> None:
        """Put a value on top."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the value on top."""
        if not self.stack:
            raise InputUnreadable("a value is needed where there is none")
        return self.stack.pop()

    def top(self) -> Any:
        """The value on top, which stays."""
        if not self.stack:
            raise InputUnreadable("a value is needed where there is none")
        return self.stack[-1]

    def mark(self) -> None:
        """Open a mark."""
        self.below.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        """Everything above the last mark, which is gone afterwards."""
        if not self.below:
            raise InputUnreadable("no mark on the stack")
        items, self.stack = self.stack, self.below.pop()
        return items

    def remember(self, index: int) -> None:
        """Put the value on top into the memo."""
        value = self.top()
        if index == len(self.memo):
            self.memo.append(value)
            self.sparse.pop(index, None)
        elif 0 <= index < len(self.memo):
            self.memo[index] = value
        else:
            self.sparse[index] = value

    def memoize(self) -> None:
        """Put the value on top into the memo under the next number."""
        self.remember(len(self.memo) + len(self.sparse))

    def recall(self, index: int) -> Any:
        """A value from the memo."""
        return self.memo[index] if 0 <= index < len(self.memo) else self.sparse[index]

    # -- building

    def refer(self, module: Any, name: Any) -> Global:
        """The inert stand-in of a name."""
        if not (isinstance(module, str) and isinstance(name, str)) or len(module) + len(name) > 1000:
            raise InputUnreadable("a global whose name is no short text")
        found = self.globals.get((module, name))
        if found is None:
            found = self.globals[module, name] = Global(module, name)
            build = self.constructors.get(str(found))
            if module == "copyreg" and name in ("__newobj__", "_reconstructor"):
                build = self._of_kind
            if build is not None:
                self.builders[id(found)] = build
        return found

    def _of_kind(self, args: tuple[Any, ...]) -> Any:
        """copyreg's own ways to make an object of the kind that is their first argument."""
        return self.call(args[0], args[1:])

    def call(self, callee: Any, args: Any, kwargs: Any = None) -> Any:
        """What a call would have made."""
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        build = self.builders.get(id(callee))
        if build is not None:
            return self.construct(build, args)
        return Record(callee, args, kwargs if isinstance(kwargs, dict) else NO_PAIRS)

    def construct(self, build: Constructor, args: tuple[Any, ...]) -> Any:
        """Plain data, charged for what it copies."""
        for arg in args:
            if isinstance(arg, _SIZED):
                self.budget -= len(arg)
        if self.budget < 0:
            raise InputUnreadable("the pickle expands far beyond its own size")
        return build(args)

    def put_pairs(self, target: Any, flat: list[Any]) -> None:
        """Set the keys and values that alternate in `flat`."""
        if len(flat) % 2:
            raise InputUnreadable("a key without its value")
        if isinstance(target, Record):
            if target.pairs is NO_PAIRS:
                target.pairs = {}
            target = target.pairs
        if type(target) is not dict:
            raise InputUnreadable("items set on something that is no mapping")
        pairs = iter(flat)
        for key in pairs:
            target[hashable(key) if type(key) is tuple else key] = next(pairs)

    def put_items(self, target: Any, items: list[Any], kind: type[list[Any]] | type[set[Any]]) -> None:
        """Append to a list, or add to a set."""
        if isinstance(target, Record):
            if target.items is NO_ITEMS:
                target.items = []
            target.items.extend(items)
        elif not isinstance(target, kind):
            raise InputUnreadable(f"items put into something that is no {kind.__name__}")
        elif isinstance(target, set):
            target.update(hashable(item) for item in items)
        else:
            target.extend(items)

    def build(self) -> None:
        """Give the object on top the state above it."""
        state = self.pop()
        target = self.top()
        if isinstance(target, Record):
            target.state = state
        # Plain containers may carry attributes (an OrderedDict's _metadata): nothing here needs them.


_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset)
