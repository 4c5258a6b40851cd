"""What does a W&B run file say? The history records of run-*.wandb, without the wandb package.

Seven bytes of header, then a LevelDB log: blocks of 32 KiB, each record fragment with CRC-32 (over type and data),
length u16 and type (1 full, 2 first, 3 middle, 4 last). A record is a wandb_internal.Record message: 2 history,
with items (1) of key (1) or nested_key (2) and value_json (16). Console output in the file is passed over.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from spike.readers.metrics.contract import Parsed, Table
from spike.readers.metrics.formats.jsonl import add_row
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
        table = Table(self.format)
        data = path.read_bytes()
        for offset, record in _records(table, data):
            try:
                row = _history(record)
            except ValueError as error:
                table.damage(0, offset, f"a record that is no W&B record: {error}")
                continue
            if row:
                add_row(table, row, table.num_rows + 1)
        if table.num_rows == 0 and not table.damages:
            table.damage(0, len(data), "a W&B file without a history record: nothing was logged", benign=True)
        return table.parsed()


def _records(table: Table, data: bytes) -> Iterator[tuple[int, bytes]]:
    at, start = _HEADER, _HEADER
    pieces: list[bytes] = []
    while at + _FRAGMENT <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _FRAGMENT:
            at += left
            continue
        check, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 and length == 0:
            at += left  # the rest of a block is zeros
            continue
        end = at + _FRAGMENT + length
        if end > len(data):
            table.damage(0, at, "the last record is not finished yet", benign=True)
            return
        body = data[at + _FRAGMENT : end]
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != check or kind > _LAST:
            table.damage(0, at, "a record fragment with a wrong checksum; the rest of its block is lost")
            at, pieces = at + left, []
            continue
        if kind in (_FULL, _FIRST):
            pieces, start = [], at
        pieces.append(body)
        if kind in (_FULL, _LAST):
            yield start, b"".join(pieces)
            pieces = []
        at = end
    if at < len(data) and any(data[at:]):
        table.damage(0, at, "the last record is not finished yet", benign=True)


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
