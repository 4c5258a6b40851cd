"""What does a W&B run file say? The history records of run-*.wandb, without the wandb package.

Seven bytes of header, then a LevelDB log: blocks of 32 KiB, each record fragment with CRC-32 (over type and data),
length u16 and type (1 full, 2 first, 3 middle, 4 last). A record is a wandb_internal.Record message: 2 history,
with items (1) of key (1) or nested_key (2) and value_json (16). Console output in the file is passed over.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

from spike.readers.metrics.contract import Parsed, Session, Table
from spike.readers.metrics.json_rows import add_row
from spike.readers.metrics.pieces import read_through
from spike.readers.metrics.wire import BYTES, fields

_MAGIC = b":W&B"
_HEADER = 7
_BLOCK = 32_768
_FRAGMENT = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandbFile:
    """run-<id>.wandb, as offline and online runs write it."""

    format = "wandb"
    order = 12

    def sniff(self, path: Path, head: bytes) -> bool:
        """The magic bytes."""
        return head.startswith(_MAGIC)

    def read(self, path: Path) -> Parsed:
        """Every history row. A cut last record is benign; a fragment that fails its checksum is damage."""
        return read_through(self.session(path), path)

    def session(self, path: Path) -> Session:
        """Record by record."""
        return _Records(Table(self.format))


class _Records:
    """The records of a file, piece by piece."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._pieces: list[bytes] = []
        """Fragments of a record that is not whole yet."""
        self._start = 0
        """Where that record begins."""
        self._go_on_at = _HEADER
        self._end: int | None = None

    def take(self, data: bytes, offset: int, *, is_end: bool) -> int:
        """Read every whole fragment."""
        while (after := self._fragment(data, offset, self._go_on_at)) is not None:
            self._go_on_at = after
        used = min(self._go_on_at - offset, len(data))
        if is_end:
            self._end = offset + len(data)
            if any(data[used:]):
                self._table.damage(0, offset + used, "the last record is not finished yet", benign=True)
        return used

    def drain(self) -> Parsed:
        """The rows since the last call."""
        if self._end is not None and self._table.num_rows == 0 and not self._table.damages:
            self._table.damage(0, self._end, "a W&B file without a history record: nothing was logged", benign=True)
        return self._table.drain()

    def _fragment(self, data: bytes, offset: int, at: int) -> int | None:
        """Byte behind the fragment at `at`; None where it is not whole."""
        left = _BLOCK - at % _BLOCK
        if left < _FRAGMENT:
            return at + left if at + left <= offset + len(data) else None
        if at + _FRAGMENT > offset + len(data):
            return None
        check, length, kind = struct.unpack_from("<IHB", data, at - offset)
        if kind == 0 and length == 0 and check == 0:
            # The rest of a block is zeros; in a file that is being written they may be a hole that is filled later.
            return at + left if at + left <= offset + len(data) else None
        end = at + _FRAGMENT + int(length)
        if end > offset + len(data):
            return None
        body = data[at - offset + _FRAGMENT : end - offset]
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != check or kind > _LAST:
            self._table.damage(0, at, "a record fragment with a wrong checksum; the rest of its block is lost")
            self._pieces = []
            return at + left
        if kind in (_FULL, _FIRST):
            self._pieces, self._start = [], at
        self._pieces.append(body)
        if kind in (_FULL, _LAST):
            self._record(b"".join(self._pieces))
            self._pieces = []
        return end

    def _record(self, record: bytes) -> None:
        try:
            row = _history(record)
        except ValueError as error:
            self._table.damage(0, self._start, f"a record that is no W&B record: {error}")
            return
        if row:
            add_row(self._table, row, self._table.num_rows + 1)


def _history(record: bytes) -> dict[str, object]:
    row: dict[str, object] = {}
    for number, kind, value in fields(record):
        if number != 2 or kind != BYTES or not isinstance(value, bytes):
            continue
        for inner, kind_of, item in fields(value):
            if inner == 1 and kind_of == BYTES and isinstance(item, bytes):
                name, number_or_text = _item(item)
                if name:
                    row[name] = number_or_text
    return row


def _item(message: bytes) -> tuple[str, object]:
    key, nested, text = "", [], ""
    for number, _kind, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            key = value.decode("utf-8", errors="replace")
        elif number == 2:
            nested.append(value.decode("utf-8", errors="replace"))
        elif number == 16:
            text = value.decode("utf-8", errors="replace")
    try:
        return "/".join(nested) or key, json.loads(text)
    except ValueError:
        return "", None


READER = WandbFile()
