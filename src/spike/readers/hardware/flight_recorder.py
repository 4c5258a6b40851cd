"""Where did the ranks stop meeting? Dumps of torch's collective flight recorder, one a rank, as pickle or JSON.

An honest dump is made of dictionaries, lists, text and numbers only; a pickle that names anything else is refused.
Ranks of one group must enqueue the same collectives in the same order: a rank that stopped earlier, or enqueued
another operation under the same number, is where to look. (torch/csrc/distributed/c10d/FlightRecorder.hpp)
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.readers.hardware.contract import HardwareEvent, Severity
from spike.readers.pickles import read_pickle

MAX_BYTES = 512 << 20
_RANK = re.compile(r"(\d+)(?:\.\w+)?$")
_SAME_SIZES = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "reduce_scatter_tensor")
"""Collectives in which every rank hands over the same shape."""
MAX_LISTED = 20

Group = tuple[str, tuple[int, ...]]
"""(description, global ranks): what identifies a group across ranks, whose own numbers for it differ."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of a dump."""

    group: Group
    sequence: int
    operation: str
    sizes: str
    dtypes: str
    is_done: bool
    created_ns: int

    @property
    def signature(self) -> tuple[str, str, str]:
        """What must be equal on all ranks of the group."""
        same = any(self.operation.endswith(name) for name in _SAME_SIZES)
        return self.operation, self.dtypes, self.sizes if same else ""


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded."""

    rank: int
    source: str
    groups: tuple[Group, ...]
    collectives: tuple[Collective, ...]
    """Point-to-point operations are left out: their numbers are a pair's own."""


class FlightRecorder:
    """One file a rank."""

    format = "flight-recorder"

    def recognises(self, path: Path, head: bytes) -> bool:
        """A dump's keys near the start, in a pickle or a JSON object."""
        if head.startswith(b"\x80"):
            return b"pg_config" in head or b"collective_seq_id" in head
        return head.lstrip().startswith(b"{") and (b'"collective_seq_id"' in head or b'"pg_config"' in head)

    def read(self, files: Sequence[Path]) -> Iterator[HardwareEvent]:
        """Mismatches, ranks that stopped early, ranks without a dump, and who waits longest."""
        dumps = [read_dump(path) for path in files]
        by_folder: dict[Path, list[Dump]] = defaultdict(list)
        for path, dump in zip(files, dumps, strict=True):
            by_folder[path.parent].append(dump)
        for found in by_folder.values():
            yield from compare_dumps(found)


def read_dump(path: Path) -> Dump:
    """One dump. Raises `InputUnreadable` for a pickle that holds more than data, and for anything broken."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputUnreadable(f"{path}: {path.stat().st_size:,} bytes, too large for a dump")
        data = path.read_bytes()
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror}") from error
    document = _from_pickle(path, data) if data.startswith(b"\x80") else _from_json(path, data)
    match = _RANK.search(path.name)
    if not isinstance(document, dict) or match is None:
        raise InputUnreadable(f"{path}: no flight-recorder dump with a rank at the end of its name")
    return _dump(document, int(match[1]), str(path))


def compare_dumps(dumps: Sequence[Dump]) -> Iterator[HardwareEvent]:
    """What the dumps of one moment say together."""
    by_rank = {dump.rank: dump for dump in dumps}
    for group in sorted({group for dump in dumps for group in dump.groups}):
        members = [by_rank[rank] for rank in group[1] if rank in by_rank]
        if len(members) > 1:
            yield from _mismatches(group, members)
            yield from _stragglers(group, members)
    everyone = {rank for dump in dumps for _, ranks in dump.groups for rank in ranks}
    absent = sorted(everyone - set(by_rank))
    if absent:
        statement = f"{len(absent)} of {len(everyone)} ranks left no dump: {_listed(absent)}"
        yield HardwareEvent("collective", Severity.NOTE, statement, dumps[0].source)
    yield from _waiting(dumps)


def _mismatches(group: Group, members: Sequence[Dump]) -> Iterator[HardwareEvent]:
    by_sequence: dict[int, dict[int, Collective]] = defaultdict(dict)
    for dump in members:
        for one in dump.collectives:
            if one.group == group:
                by_sequence[one.sequence][dump.rank] = one
    for sequence in sorted(by_sequence):
        found = by_sequence[sequence]
        if len({one.signature for one in found.values()}) > 1:
            shown = "; ".join(
                f"rank {rank}: {one.operation} {one.sizes} {one.dtypes}" for rank, one in sorted(found.items())[:4]
            )
            statement = f"ranks of {group[0] or 'the group'} differ in collective {sequence}: {shown}"
            time = min(one.created_ns for one in found.values()) / 1e9
            yield HardwareEvent(
                "collective", Severity.UNCLEAR, statement, members[0].source, 0, time, f"rank {min(found)}", sequence
            )
            return


def _stragglers(group: Group, members: Sequence[Dump]) -> Iterator[HardwareEvent]:
    last = {
        dump.rank: max(own, key=lambda one: one.sequence)
        for dump in members
        if (own := [one for one in dump.collectives if one.group == group])
    }
    if len(last) < 2:
        return
    newest = max(one.sequence for one in last.values())
    behind = sorted(rank for rank, one in last.items() if one.sequence < newest)
    if behind:
        first = last[behind[0]]
        statement = (
            f"{_listed(behind)} of {group[0] or 'the group'} stopped at collective {first.sequence} "
            f"({first.operation}), other ranks went on to {newest}"
        )
        yield HardwareEvent(
            "collective",
            Severity.UNCLEAR,
            statement,
            members[0].source,
            0,
            first.created_ns / 1e9,
            f"rank {behind[0]}",
            first.sequence,
        )


def _waiting(dumps: Sequence[Dump]) -> Iterator[HardwareEvent]:
    """The rank with the oldest collective that never finished, as a note."""
    pending = [(min(open_ones, key=lambda one: one.created_ns), dump) for dump in dumps if (open_ones := _open(dump))]
    if not pending:
        return
    oldest, dump = min(pending, key=lambda pair: pair[0].created_ns)
    statement = (
        f"rank {dump.rank} waits longest: {oldest.operation} number {oldest.sequence} of "
        f"{oldest.group[0] or 'its group'} never finished ({len(_open(dump))} of its collectives are open)"
    )
    yield HardwareEvent(
        "collective", Severity.NOTE, statement, dump.source, 0, oldest.created_ns / 1e9, f"rank {dump.rank}"
    )


def _open(dump: Dump) -> list[Collective]:
    return [one for one in dump.collectives if not one.is_done]


def _from_pickle(path: Path, data: bytes) -> Any:
    read = read_pickle(data, source=str(path))
    if read.globals:
        names = ", ".join(str(name)[:80] for name in read.globals[:3])
        raise InputUnreadable(f"{path}: its pickle names {names}; a dump holds only data, so it was refused")
    return read.value


def _from_json(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputUnreadable(f"{path}: broken JSON ({str(error)[:120]})") from error


def _dump(document: dict[Any, Any], rank: int, source: str) -> Dump:
    groups = _groups(document.get("pg_config"))
    default = max(groups.values(), key=lambda group: len(group[1]), default=("", ()))
    collectives = []
    entries = document.get("entries")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and not entry.get("is_p2p"):
            collectives.append(_collective(entry, groups, default))
    return Dump(rank, source, tuple(dict.fromkeys(groups.values())), tuple(collectives))


def _groups(config: Any) -> dict[str, Group]:
    found: dict[str, Group] = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks", "")
        numbers = re.findall(r"\d{1,9}", ranks) if isinstance(ranks, str) else ranks if isinstance(ranks, list) else []
        found[str(name)] = (str(group.get("desc", ""))[:100], tuple(int(n) for n in numbers))
    return found


def _collective(entry: Mapping[Any, Any], groups: Mapping[str, Group], default: Group) -> Collective:
    named = entry.get("process_group")
    name = str(named[0]) if isinstance(named, list | tuple) and named else ""
    # Without a configuration of its own the group is the job's: older dumps and gloo name none.
    group = groups.get(name, default)
    state = str(entry.get("state", ""))
    return Collective(
        group=group,
        sequence=_whole(entry.get("collective_seq_id")),
        operation=str(entry.get("profiling_name", "")).partition(":")[2] or str(entry.get("profiling_name", "")),
        sizes=str(entry.get("input_sizes", ""))[:200],
        dtypes=str(entry.get("input_dtypes", ""))[:100],
        is_done=state == "completed" or bool(entry.get("retired")),
        created_ns=_whole(entry.get("time_created_ns")),
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MAX_LISTED])) + (", ..." if len(ranks) > MAX_LISTED else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


READER = FlightRecorder()
