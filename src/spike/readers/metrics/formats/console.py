"""What does a console log say? Every line shape of `lines/`, whatever is printed between the rows."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from spike.domain.signals import LOSS
from spike.readers.metrics.columns import canonical, looks_like_metrics
from spike.readers.metrics.console_text import Anchor, LineShape, Match, Message, messages
from spike.readers.metrics.contract import Parsed, Table, significant_digits
from spike.readers.metrics.numbers import parse_number
from spike.readers.metrics.plugins import line_shapes
from spike.readers.metrics.text_lines import Line, looks_binary, read_lines

SNIFF_BYTES = 4_000_000
"""A log may print its configuration for megabytes before the first row."""

_WORTH_A_LOOK = re.compile(r"loss|norm|\blr\b|learning|OVERFLOW|\[step=|^\s{2,}\S[^=]*=", re.IGNORECASE)
_TEXT_SUFFIXES = frozenset({".log", ".txt", ".out", ".err", ".stdout", ".stderr", ""})


@dataclass(frozen=True, slots=True)
class _Row:
    shape: str
    match: Match
    rank: int | None
    progress: int | None


@dataclass(slots=True)
class _State:
    """What has to be remembered from one row to the next."""

    rows: list[tuple[int | None, _Row]] = field(default_factory=list)
    current: int | None = None
    in_block: bool = False
    pending: list[Match] = field(default_factory=list)

    def take(self, row: _Row) -> None:
        """File one match under its step."""
        match row.match.anchor:
            case Anchor.NEXT:
                self.pending.append(row.match)
            case Anchor.CURRENT:
                if self.in_block or row.shape == "hf-dict":
                    self.rows.append((self.current, row))
            case Anchor.ROW:
                self.rows.append((None, row))
            case Anchor.OWN:
                self.current = row.match.step
                self.in_block = not row.match.values
                self.rows.append((self.current, row))
                if row.match.values and not row.match.held_out:
                    self._settle(row)

    def _settle(self, row: _Row) -> None:
        if self.pending:
            scale = self.pending[-1].values["overflow loss scale"]
            values = {"overflow": str(len(self.pending)), "overflow loss scale": scale}
            self.rows.append((self.current, _Row("deepspeed", Match(values, self.current), row.rank, None)))
            self.pending.clear()


class Console:
    """Standard output of a training command, or its log file."""

    format = "console"
    order = 80

    def sniff(self, path: Path, head: bytes) -> bool:
        """One line within the first megabytes is a row with a known signal."""
        if looks_binary(head):
            return False
        if any(True for _ in _matches(head.decode("utf-8", errors="replace").split("\n"))):
            return True
        if path.suffix.lower() not in _TEXT_SUFFIXES:
            return False
        with path.open("rb") as stream:
            text = stream.read(SNIFF_BYTES).decode("utf-8", errors="replace")
        return any(True for _ in _matches(text.split("\n")))

    def read(self, path: Path) -> Parsed:
        """Parse every line. Lines that are no row are no damage; a block of NUL bytes is."""
        table, state = Table(self.format), _State()
        held: tuple[LineShape, Message] | None = None
        for line in read_lines(path):
            if b"\0" in line.raw:
                table.damage(line.number, line.offset, "a block of NUL bytes, as a crash leaves it")
            found = _worthwhile(line, held is not None)
            if not found and line.raw[:1].strip():
                state.in_block = False
            for message in found:
                held = self._message(state, message, held)
        if held is not None:
            self._message(state, None, held)
        _fill(table, state)
        return table.parsed()

    def _message(
        self, state: _State, message: Message | None, held: tuple[LineShape, Message] | None
    ) -> tuple[LineShape, Message] | None:
        """Match one message; a wrapped row is held back until its rest has come."""
        if held is not None:
            shape, first = held
            if message is not None and _match(message) is None and not message.text.lstrip().startswith("["):
                message = Message(first.text.rstrip() + " " + message.text.strip(), first.rank, first.progress)
            else:
                found = shape.match(first.text)
                if found is not None:
                    state.take(_Row(shape.name, found, first.rank, first.progress))
        if message is None:
            return None
        hit = _match(message)
        if hit is None:
            if not message.text.startswith((" ", "\t")):
                state.in_block = False
            return None
        shape, found = hit
        if shape.wants_more(message.text):
            return shape, message
        state.take(_Row(shape.name, found, message.rank, message.progress))
        return None


def _worthwhile(line: Line, waiting: bool) -> list[Message]:
    text = line.text
    if not waiting and _WORTH_A_LOOK.search(text) is None:
        return []
    return messages(text)


def _match(message: Message) -> tuple[LineShape, Match] | None:
    for shape in line_shapes():
        found = shape.match(message.text)
        if found is not None:
            return shape, found
    return None


def _matches(lines: list[str]) -> Iterator[Match]:
    in_block = False
    for line in lines:
        if _WORTH_A_LOOK.search(line) is None:
            continue
        for message in messages(line):
            hit = _match(message)
            if hit is None:
                continue
            shape, found = hit
            in_block = in_block or (shape.name == "olmo-core" and found.step is not None)
            if shape.name == "olmo-core" and not in_block:
                continue
            if shape.name == "deepspeed" or looks_like_metrics(found.values):
                yield found


def _fill(table: Table, state: _State) -> None:
    rows = _with_steps(table, state)
    ranked = len({row.rank for _, row in rows} - {None}) > 1
    vanished = _vanished(table, rows)
    for step, row in rows:
        texts = dict(row.match.values) | dict.fromkeys(vanished.get(id(row), ()), "nan")
        numbers = {name: number for name, text in texts.items() if (number := parse_number(text)) is not None}
        if numbers:
            digits = {name: significant_digits(texts[name]) for name in numbers}
            rank = row.rank if ranked else None
            table.add(step, numbers, rank=rank, digits=digits, held_out=row.match.held_out)
    if state.pending:
        count = len(state.pending)
        table.notes.append(("skipped-at-end", f"{count} skipped steps after the last row of the log"))


def _with_steps(table: Table, state: _State) -> list[tuple[int, _Row]]:
    """Rows with a step each; rows of a stack that prints none are counted, by its progress bar where it has one."""
    counted = [row for step, row in state.rows if step is None and row.match.anchor is Anchor.ROW]
    if not counted:
        return [(step, row) for step, row in state.rows if step is not None]
    shown = [row.progress for row in counted if row.progress is not None]
    interval, why = 1, "rows without a step were numbered in file order"
    if len(shown) == len(counted) and len(shown) > 1:
        gaps = [later - earlier for earlier, later in pairwise(shown) if later > earlier]
        interval = max(1, round(statistics.median(gaps))) if gaps else 1
        why = f"rows without a step were numbered by the progress bar, every {interval} steps"
    first = interval if not shown else interval * max(1, math.ceil(shown[0] / interval))
    table.notes.append(("assumed-steps", why))
    result: list[tuple[int, _Row]] = []
    step = first - interval
    for known, row in state.rows:
        if known is None and row.match.anchor is Anchor.ROW:
            step += interval
        result.append((step if known is None else known, row))
    return [(max(step, 0), row) for step, row in result]


def _vanished(table: Table, rows: list[tuple[int, _Row]]) -> dict[int, list[str]]:
    """Losses that Megatron left out of a row, by the row's identity.

    It prints no loss that is not finite, so a row without it stands for a NaN, unless the step was skipped.
    """
    train = [(step, row) for step, row in rows if row.shape == "megatron" and not row.match.held_out]
    overflowed = {step for step, row in rows if row.shape == "deepspeed"}
    lost: dict[int, list[str]] = {}
    for name, count in Counter(name for _, row in train for name in row.match.values).items():
        hit = canonical(name)
        if hit is None or hit[0] != LOSS or count == len(train) or count < len(train) / 4:
            continue
        missing = [(s, r) for s, r in train if name not in r.match.values]
        steps = [s for s, r in missing if s not in overflowed and not _was_skipped(r)]
        for _, row in missing:
            if row.match.step in steps:
                lost.setdefault(id(row), []).append(name)
        if steps:
            shown = ", ".join(map(str, steps[:6])) + (", ..." if len(steps) > 6 else "")
            table.notes.append(("vanished-field", f"no {name!r} in the rows of steps {shown}: read as NaN"))
    return lost


def _was_skipped(row: _Row) -> bool:
    return (parse_number(row.match.values.get("number of skipped iterations", "0")) or 0.0) > 0


READER = Console()
