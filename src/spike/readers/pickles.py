"""What does a pickle describe? An interpreter of pickle opcodes that builds inert records and runs nothing.

A pickle is a program. This reader executes its stack operations and none of its calls: every global becomes a
`Global`, every call a `Record` of what would have been called with what. The few constructions that are plain
data (an ordered dict, a set, bytes spelled as latin-1 text) become that data, through functions of spike's own.
Nothing is imported by name, no attribute of a loaded object is looked up, and a stream that this reader does not
understand is an error, never an empty result.

Not CPython's own reader with names refused: ten bytes make that one allocate 64 GB of memo, and it hashes a key of
nested tuples by recursing in C, until the stack ends or, where the tuples share their items, for ever.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.readers.pickle_machine import Machine, Persistent
from spike.readers.pickle_opcodes import HANDLERS
from spike.readers.pickle_records import PLAIN_CONSTRUCTORS, Constructor, Global, Record, hashable

__all__ = ["Constructor", "Global", "Persistent", "Pickle", "Record", "collection_paused", "read_pickle"]

MAX_BYTES = 1 << 30
"""Largest pickle stream that is read: index files of trillion-parameter jobs stay below 300 MB."""
LARGE_BYTES = 1 << 20
"""From here on the garbage collector would walk the growing records more often than it helps."""

_U32 = struct.Struct("<I")


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
    machine = Machine(bytes(data), start, persistent, {**PLAIN_CONSTRUCTORS, **(constructors or {})})
    try:
        with collection_paused(len(data) - start):
            value = _run(machine)
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
    return Pickle(value, tuple(sorted(machine.globals.values())), machine.at)


@contextmanager
def collection_paused(num_bytes: int) -> Iterator[None]:
    """Keep the garbage collector from walking millions of new records over and over, while a large stream is read."""
    if num_bytes < LARGE_BYTES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _run(machine: Machine) -> Any:
    """Read up to STOP.

    The opcodes that the index of a distributed checkpoint consists of are read here, on local names and together with
    what nearly always follows them (MEMOIZE): a function call for each would take most of the time. They do what their
    functions in `HANDLERS` do; those read every other opcode.
    """
    data, memo, below, builders = machine.data, machine.memo, machine.below, machine.builders
    stack, at, size = machine.stack, machine.at, len(machine.data)
    try:
        while True:
            code = data[at]
            at += 1
            if code < 0x80:
                if code == 0x6A or code == 0x68:  # LONG_BINGET, BINGET
                    if code == 0x68:
                        index, at = data[at], at + 1
                    else:
                        index, at = _U32.unpack_from(data, at)[0], at + 4
                    stack.append(memo[index] if index < len(memo) else machine.sparse[index])
                    continue
                if code == 0x4B:  # BININT1
                    stack.append(data[at])
                    at += 1
                    continue
                if code == 0x4D:  # BININT2
                    stack.append(data[at] | data[at + 1] << 8)
                    at += 2
                    continue
                if code == 0x28:  # MARK
                    below.append(stack)
                    stack = []
                    continue
                if code == 0x29:  # EMPTY_TUPLE
                    stack.append(())
                    continue
                if code == 0x75 and below and type(below[-1][-1]) is dict and not len(stack) & 1:  # SETITEMS
                    pairs, stack = iter(stack), below.pop()
                    target = stack[-1]
                    for key in pairs:
                        target[hashable(key) if type(key) is tuple else key] = next(pairs)
                    continue
                if code == 0x62:  # BUILD
                    state = stack.pop()
                    if type(stack[-1]) is Record:
                        stack[-1].state = state
                    continue
                if code == 0x7D:  # EMPTY_DICT
                    value: Any = {}
                elif code == 0x52 and type(stack[-1]) is tuple:  # REDUCE
                    args = stack.pop()
                    callee = stack.pop()
                    build = builders.get(id(callee))
                    value = Record(callee, args) if build is None else machine.construct(build, args)
                else:
                    machine.at, machine.stack = at, stack
                    if code == 0x2E:  # STOP
                        return machine.pop()
                    _handle(machine, code)
                    at, stack = machine.at, machine.stack
                    continue
            elif code == 0x81 and type(stack[-1]) is tuple:  # NEWOBJ
                args = stack.pop()
                callee = stack.pop()
                build = builders.get(id(callee))
                value = Record(callee, args) if build is None else machine.construct(build, args)
            elif code == 0x85:  # TUPLE1
                value = (stack.pop(),)
            elif code == 0x86:  # TUPLE2
                last = stack.pop()
                value = (stack.pop(), last)
            elif code == 0x8C and at + 1 + data[at] <= size:  # SHORT_BINUNICODE
                start, at = at + 1, at + 1 + data[at]
                value = data[start:at].decode("utf-8", "surrogatepass")
            else:
                machine.at, machine.stack = at, stack
                _handle(machine, code)
                at, stack = machine.at, machine.stack
                continue
            stack.append(value)
            if data[at] == 0x94 and not machine.sparse:  # MEMOIZE
                memo.append(value)
                at += 1
    except IndexError as error:
        if at >= size:
            raise InputUnreadable("the stream ends before STOP") from error
        raise
    finally:
        machine.at = max(at, machine.at)


def _handle(machine: Machine, code: int) -> None:
    handler = HANDLERS[code]
    if handler is None:
        raise InputUnreadable(f"unknown opcode 0x{code:02x}")
    handler(machine)
