"""Where are a run's checkpoints? By the operator's pattern, or by recognising layouts below a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.measured import NotMeasured
from spike.readers.checkpoints import readers
from spike.readers.checkpoints._parts import TORCH_SUFFIXES
from spike.readers.checkpoints.contract import NAMED_STACK, CheckpointReader

MAX_DEPTH = 6
MAX_ENTRIES = 200_000
MAX_READ = 64
"""Checkpoints whose indexes are read; of more, only those that matter. Each takes a few hundredths of a second, ..."""
MIN_READ, INDEX_BYTES = 16, 8 << 20
"""... and the index of a large sharded one about a second for two megabytes."""
_SKIPPED = re.compile(r"^(\..*|node_modules|__pycache__|site-packages|wandb|mlruns|.*\.spike|.*\.egg-info)$")
_NAMED_STEP = re.compile(r"(?:step|iter(?:ation)?|checkpoint|ckpt|global_step|ba)[-_=.]?0*(\d+)(?!\d)", re.I)
_LAST_NUMBER = re.compile(r"(?<![\d.])0*(\d+)(?:\.[a-z]+)*$", re.I)


def find(root: Path, pattern: str, near: int | None = None) -> tuple[Checkpoint, ...]:
    """See `find_checkpoints`."""
    if pattern:
        places = [
            (path, step, reader_for(path) or _directory_reader(path)) for path, step in match_pattern(root, pattern)
        ]
    else:
        places = [(path, None, reader) for path, reader in recognise(root)]
    wanted = _worth_reading(places, near)
    found = [_described(*place) if place[0] in wanted else _unread(*place, len(places)) for place in places]
    return tuple(sorted(filter(_is_checkpoint, found), key=_order))


Place = tuple[Path, int | None, CheckpointReader | None]
"""(path, step that the operator's pattern gives it, reader)"""


def _worth_reading(places: list[Place], near: int | None) -> set[Path]:
    """All of them, or of very many the newest and those around the step `near`, by what their names say."""
    limit = _limit(places)
    if len(places) <= limit:
        return {path for path, _, _ in places}
    named = [(step if step is not None else step_of_name(path), path) for path, step, _ in places]
    by_step = [path for step, path in sorted((s, p) for s, p in named if s is not None)]
    nameless = [path for step, path in named if step is None]
    after = len(by_step) if near is None else sum(step is not None and step < near for step, _ in named)
    around = by_step[max(0, after - limit // 2) : after + limit // 8]
    newest = by_step[-limit // 4 :]
    return {*around, *newest, *nameless[: limit // 8]}


def _limit(places: list[Place]) -> int:
    """How many can be read in about two seconds: fewer where the last one has a large index."""
    if not places:
        return MAX_READ
    indexes = (places[-1][0] / name for name in (".metadata", "model_and_optim/.metadata"))
    size = max((index.stat().st_size for index in indexes if index.is_file()), default=0)
    return max(MIN_READ, min(MAX_READ, INDEX_BYTES // max(1, size)))


def _unread(path: Path, step: int | None, reader: CheckpointReader | None, total: int) -> Checkpoint:
    """One of so many that reading the index of each would take minutes."""
    step = step if step is not None else step_of_name(path)
    stat = path.stat()
    return Checkpoint(
        path=str(path.absolute()),
        layout=reader.layout if reader is not None else "unknown",
        step=step if step is not None else NotMeasured("it was not read"),
        integrity=Integrity.UNVERIFIABLE,
        reason=f"not read: one of {total:,}, of which the newest and those nearest to the onset are looked into",
        num_tensors=0,
        num_bytes=stat.st_size if path.is_file() else 0,
        mtime_ns=stat.st_mtime_ns,
    )


def inspect(path: Path) -> Checkpoint:
    """See `inspect_checkpoint`."""
    reader = reader_for(path)
    if reader is None:
        what = "is not there" if not path.exists() else "is no checkpoint of a known layout"
        raise InputUnreadable(f"{path} {what}", hint="spike show formats lists the layouts that spike reads")
    return _with_step(_inspected(reader, path), None, getattr(reader, "step_name", None))


def _inspected(reader: CheckpointReader, path: Path) -> Checkpoint:
    """What the reader says; a path that vanishes or cannot be opened meanwhile is a verdict too."""
    try:
        return reader.inspect(path)
    except (OSError, InputUnreadable) as error:
        why = error.message if isinstance(error, InputUnreadable) else f"{error.strerror or error} while it was read"
        return Checkpoint(
            path=str(path.absolute()),
            layout=reader.layout,
            step=NotMeasured("it cannot be read"),
            integrity=Integrity.UNVERIFIABLE,
            reason=f"{path.name}: {why}",
            num_tensors=0,
            num_bytes=0,
            mtime_ns=0,
        )


def reader_for(path: Path) -> CheckpointReader | None:
    """The most specific reader that recognises the path."""
    names = _names(path)
    return next((reader for reader in readers() if reader.recognises(path, names)), None)


def recognise(root: Path) -> Iterator[tuple[Path, CheckpointReader]]:
    """(path, reader) of everything below `root` that some layout recognises; a directory hides its own files."""
    entries = 0
    waiting: list[tuple[Path, int]] = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            listing = sorted(os.scandir(folder), key=lambda entry: entry.name) if folder.is_dir() else []
        except OSError:
            continue
        entries += len(listing)
        if entries > MAX_ENTRIES:
            raise SpikeError(
                f"{root} holds more than {MAX_ENTRIES:,} files: too many to look for checkpoints in",
                hint="name them in spike.yaml: checkpoints: out/step-{step}",
            )
        names = frozenset(entry.name for entry in listing)
        whole = next((r for r in readers() if r.recognises(folder, names)), None) if names else None
        if whole is not None:
            yield folder, whole
            if whole.specificity >= NAMED_STACK:
                continue  # whatever lies below is a part of it
        for entry in reversed(listing):
            if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH and not _SKIPPED.match(entry.name):
                waiting.append((Path(entry.path), depth + 1))
        if whole is None:
            for entry in listing:
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                    reader = reader_for(Path(entry.path))
                    if reader is not None:
                        yield Path(entry.path), reader


def match_pattern(root: Path, pattern: str) -> Iterator[tuple[Path, int | None]]:
    """(path, step) of every path that matches; each real path once. Raises `SpikeError` for an unusable pattern."""
    if pattern.count("{step}") > 1 or re.search(r"[{}]", pattern.replace("{step}", "")):
        raise SpikeError(
            f"checkpoints: {pattern!r} may hold {{step}} once and no other braces", hint="checkpoints: out/step-{step}"
        )
    start = Path("/") if pattern.startswith("/") else root
    seen: set[str] = set()
    for path, step in _descend(start, [part for part in pattern.split("/") if part], None):
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield path, step


def step_of_name(path: Path) -> int | None:
    """The step that a path's last names seem to carry: "step-200", "ckpt_0100.pt", "global_step3"."""
    for name in (path.name, path.parent.name):
        match = _NAMED_STEP.search(name)
        if match:
            return int(match[1])
    match = _LAST_NUMBER.search(path.name)
    return int(match[1]) if match and len(match[1]) < 16 else None


def _descend(folder: Path, parts: list[str], step: int | None) -> Iterator[tuple[Path, int | None]]:
    if not parts:
        yield folder, step
        return
    first, rest = parts[0], parts[1:]
    if not re.search(r"[*?\[]|\{step\}", first):
        if (folder / first).exists():
            yield from _descend(folder / first, rest, step)
        return
    expression = _expression(first)
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return
    for name in names:
        match = expression.fullmatch(name)
        if match:
            found = int(match["step"]) if "step" in expression.groupindex else step
            yield from _descend(folder / name, rest, found)


def _expression(part: str) -> re.Pattern[str]:
    pieces = re.split(r"(\{step\}|\*|\?)", part)
    known = {"{step}": r"0*(?P<step>\d{1,15})", "*": r"[^/]*?", "?": r"[^/]"}
    return re.compile("".join(known.get(piece, re.escape(piece)) for piece in pieces))


def _names(path: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in path.iterdir()) if path.is_dir() else frozenset()
    except OSError:
        return frozenset()


def _described(path: Path, step: int | None, reader: CheckpointReader | None) -> Checkpoint:
    """A path that the operator's pattern names is always in the answer, understood or not."""
    if reader is not None:
        return _with_step(_inspected(reader, path), step, getattr(reader, "step_name", None))
    empty = not _names(path) if path.is_dir() else path.stat().st_size == 0
    return Checkpoint(
        path=str(path.absolute()),
        layout="unknown",
        step=step if step is not None else NotMeasured("no layout recognises it"),
        integrity=Integrity.TORN if empty else Integrity.UNVERIFIABLE,
        reason="holds nothing" if empty else "no layout recognises it",
        num_tensors=0,
        num_bytes=path.stat().st_size if path.is_file() else 0,
        mtime_ns=path.stat().st_mtime_ns,
    )


def _directory_reader(path: Path) -> CheckpointReader | None:
    """For a directory that the operator named: its torch files, whatever they are called."""
    if any(name.endswith(TORCH_SUFFIXES) for name in _names(path)):
        return next(reader for reader in readers() if reader.layout == "torch-parts")
    return None


def _with_step(checkpoint: Checkpoint, named: int | None, rule: re.Pattern[str] | None) -> Checkpoint:
    """Fill in the step: its own contents, else its path, else the optimizer's count; a contradiction is reported."""
    path = Path(checkpoint.path)
    match = rule.match(path.name) if rule is not None and named is None else None
    if match is not None:
        named = int(match[1])
    if not isinstance(checkpoint.step, NotMeasured):
        if named is not None and named != checkpoint.step:
            note = f"its path says step {named}, its contents say {checkpoint.step}"
            return replace(checkpoint, reason="; ".join(filter(None, (checkpoint.reason, note))))
        return checkpoint
    if named is None:
        named = step_of_name(path)
    counted = dict(checkpoint.scalars).get("optimizer.step")
    if named is None and counted is not None and counted >= 0 and float(counted).is_integer():
        named = int(counted)
    return checkpoint if named is None else replace(checkpoint, step=named)


def _is_checkpoint(checkpoint: Checkpoint) -> bool:
    """Drop files that only look like one: RNG states, token tensors, TorchScript modules."""
    if checkpoint.layout != "torch-zip" or not checkpoint.is_whole:
        return True
    return checkpoint.num_tensors > 0


def _order(checkpoint: Checkpoint) -> tuple[int, int, str]:
    step = -1 if isinstance(checkpoint.step, NotMeasured) else checkpoint.step
    return step, checkpoint.mtime_ns, checkpoint.path
