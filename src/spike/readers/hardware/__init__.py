"""What did the machines record near the incident? One file a format, found by scanning this folder."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from spike.domain.errors import ExitCode, InputUnreadable, SpikeError
from spike.readers.hardware.contract import (
    CLEAN_PROVES_NOTHING,
    HEAD_BYTES,
    HardwareEvent,
    HardwareReader,
    HardwareRecord,
    Severity,
)

__all__ = [
    "CLEAN_PROVES_NOTHING",
    "HardwareEvent",
    "HardwareReader",
    "HardwareRecord",
    "Severity",
    "find_hardware_files",
    "read_hardware",
    "readers",
]

MAX_DEPTH = 5
MAX_ENTRIES = 50_000
_SKIPPED = (".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", "wandb")


@cache
def readers() -> tuple[HardwareReader, ...]:
    """Every reader of this folder. Raises `SpikeError` naming a file that is broken."""
    found: list[HardwareReader] = []
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.name == "contract":
            continue
        try:
            found.append(importlib.import_module(f"{__name__}.{module.name}").READER)
        except Exception as error:
            raise SpikeError(
                f"hardware reader {module.name!r} cannot be used: {type(error).__name__}: {error}",
                hint=f"fix or remove readers/hardware/{module.name}.py",
                exit_code=ExitCode.BUG,
            ) from error
    return tuple(sorted(found, key=lambda reader: reader.format))


def find_hardware_files(run: Path, named: Sequence[str] = ()) -> tuple[Path, ...]:
    """The files that `named` gives (files or directories, relative to `run`); without any, those recognised below it.

    A named file is always in the answer, whether it is there and recognised or not.
    """
    if named:
        given = [run / name for name in named]
        return tuple(dict.fromkeys(file for path in given for file in _expanded(path)))
    return tuple(path for path in _candidates(run) if reader_of(path) is not None)


def read_hardware(files: Sequence[Path]) -> HardwareRecord:
    """Events of all files, by time, those without a time last; what cannot be read is listed with its reason."""
    groups: dict[HardwareReader, list[Path]] = defaultdict(list)
    unreadable: list[tuple[str, str]] = []
    for path in files:
        reader = reader_of(path)
        if reader is not None:
            groups[reader].append(path)
        else:
            unreadable.append((str(path), "is not there" if not path.is_file() else "no reader recognises it"))
    events: list[HardwareEvent] = []
    read: list[tuple[str, str, int]] = []
    for reader, paths in groups.items():
        try:
            found = list(reader.read(paths))
            read += [(str(p), reader.format, sum(e.source == str(p) for e in found)) for p in paths]
        except InputUnreadable:
            # One broken file must not take the others with it.
            found = []
            for path in paths:
                try:
                    own = list(reader.read([path]))
                    found += own
                    read.append((str(path), reader.format, len(own)))
                except InputUnreadable as error:
                    unreadable.append((str(path), error.message))
        events += found
    events.sort(key=lambda event: (event.time is None, event.time or 0.0, event.source, event.line))
    return HardwareRecord(tuple(events), tuple(read), tuple(unreadable))


def reader_of(path: Path) -> HardwareReader | None:
    """The reader that recognises the file, from its first bytes."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return None
    return next((reader for reader in readers() if reader.recognises(path, head)), None)


def _expanded(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(entry for entry in path.rglob("*") if entry.is_file())
    else:
        yield path


def _candidates(run: Path) -> Iterator[Path]:
    """Files below a run whose names could be a machine's record; a bounded walk."""
    seen = 0
    for folder, directories, names in os.walk(run):
        depth = len(Path(folder).relative_to(run).parts)
        directories[:] = sorted(d for d in directories if depth < MAX_DEPTH and d not in _SKIPPED)
        for name in sorted(names):
            seen += 1
            if seen > MAX_ENTRIES:
                return
            if _is_likely(name):
                yield Path(folder) / name


def _is_likely(name: str) -> bool:
    low = name.lower()
    words = ("dmesg", "xid", "kern", "journal", "syslog", "nvidia-smi", "nvidia_smi", "sacct", "fr_trace", "nccl_trace")
    return low == "error.json" or any(word in low for word in words) or "_dump_" in low or low.startswith("dump_")
