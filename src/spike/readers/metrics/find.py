"""Which files below a run directory hold metrics? Recognised by content, within a bounded walk."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from spike.readers.metrics.contract import HEAD_BYTES, MetricReader
from spike.readers.metrics.plugins import metric_readers
from spike.readers.metrics.text_lines import looks_binary

MAX_DEPTH = 5
"""lightning_logs/version_0/..., wandb/offline-run-*/run-*.wandb and mlruns/<exp>/<run>/metrics/<group>/<key>."""

MAX_FILES = 20_000
"""A directory with more files than this is a data set; the walk stops there."""

_SKIPPED_DIRECTORIES = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "env", "site-packages", "node_modules", "__pycache__", ".cache"}
)
_SKIPPED_SUFFIXES = frozenset(
    f".{suffix}"
    for names in (
        "pt pth bin ckpt safetensors distcp npy npz pkl parquet arrow idx model",
        "zip gz tgz tar xz zst whl so png jpg jpeg gif pdf svg",
        "py pyc c cpp cu h rs ipynb sh md rst html yaml yml toml cfg ini lock patch diff",
    )
    for suffix in names.split()
)
_CHECKPOINT = re.compile(r"^(checkpoint|ckpt|step|iter|global_?step|epoch)[-_=]?\d+$|\.ckpt$", re.IGNORECASE)
EMPTY = "the file is empty"
LFS_POINTER = b"version https://git-lfs.github.com/spec"


def find_metric_files(directory: Path) -> tuple[Path, ...]:
    """Metric files below `directory`, naturally sorted.

    Checkpoints, version control, virtual environments and known binaries are passed over; of the
    trainer_state.json copies inside checkpoints the newest one counts.
    """
    return survey(directory)[0]


def survey(directory: Path) -> tuple[tuple[Path, ...], list[tuple[Path, str]]]:
    """The metric files, and (path, reason) of what could be one and cannot be read. Empty files are neither."""
    found: list[Path] = []
    unreadable: list[tuple[Path, str]] = []
    for path in candidates(directory, lambda error: unreadable.append((Path(error.filename), _reason(error)))):
        if recognise(path) is not None:
            found.append(path)
        elif (reason := why_unreadable(path)) and reason != EMPTY:
            unreadable.append((path, reason))
    return _newest_of(found), unreadable


def _newest_of(found: list[Path]) -> tuple[Path, ...]:
    newest: dict[Path, Path] = {}
    for path in (path for path in found if path.name == "trainer_state.json"):
        run = path.parent.parent if _CHECKPOINT.search(path.parent.name) else path.parent
        newest[run] = max(path, newest.get(run, path), key=_size_and_age)
    kept = [path for path in found if path.name != "trainer_state.json" or path in newest.values()]
    kept = _newest_store(kept)
    return tuple(sorted(kept, key=natural_key))


def _newest_store(paths: list[Path]) -> list[Path]:
    """Of the runs side by side in one MLflow file store, the one that logged last."""
    runs: dict[Path, dict[Path, int]] = {}
    for path in paths:
        run = _store_run(path)
        if run is not None:
            ages = runs.setdefault(run.parent, {})
            ages[run] = max(ages.get(run, 0), path.stat().st_mtime_ns)
    newest = {max(ages, key=lambda run: ages[run]) for ages in runs.values()}
    return [path for path in paths if (run := _store_run(path)) is None or run in newest]


def _store_run(path: Path) -> Path | None:
    """<run> of .../<experiment>/<run>/metrics/<key>, told by the meta.yaml beside `metrics`."""
    return next((p.parent for p in path.parents if p.name == "metrics" and (p.parent / "meta.yaml").is_file()), None)


def _size_and_age(path: Path) -> tuple[int, int]:
    """A later trainer state holds the whole history, so it is the larger one."""
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


def candidates(directory: Path, refused: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Files that could hold metrics, by their name and place alone; `refused` is told of directories not listed."""
    seen = 0
    root_depth = len(directory.parts)
    for where, names, files in os.walk(directory, onerror=refused):
        here = Path(where)
        depth = len(here.parts) - root_depth
        inside_checkpoint = depth > 0 and _CHECKPOINT.search(here.name) is not None
        names[:] = sorted(
            name
            for name in names
            if depth < MAX_DEPTH
            and name not in _SKIPPED_DIRECTORIES
            and not inside_checkpoint
            and not name.endswith(".spike")
        )
        for name in sorted(files):
            seen += 1
            if seen > MAX_FILES:
                return
            path = here / name
            if inside_checkpoint and name != "trainer_state.json":
                continue
            if path.suffix.lower() not in _SKIPPED_SUFFIXES and path.is_file():
                yield path


def why_unreadable(path: Path) -> str:
    """Why this is no file with anything in it, or ""."""
    if not path.exists():
        return "a link to a file that does not exist" if path.is_symlink() else "there is no such file"
    if not path.is_file():
        return "not a regular file"
    try:
        with path.open("rb") as stream:
            head = stream.read(len(LFS_POINTER))
    except OSError as error:
        return _reason(error)
    if not head:
        return EMPTY
    return "a Git LFS pointer, not the file itself: run `git lfs pull`" if head == LFS_POINTER else ""


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def head_of(path: Path) -> bytes:
    """The first bytes of the file; b"" where it cannot be read, or where reading could wait for ever (a pipe)."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as stream:
            return stream.read(HEAD_BYTES)
    except OSError:
        return b""


def recognise(path: Path, chosen: Mapping[str, str] | None = None) -> MetricReader | None:
    """The first reader that knows this file, or None.

    Where the operator has named columns (`chosen`: signal -> column), JSON lines or a table that has one of them.
    """
    head = head_of(path)
    if not head or head.startswith(LFS_POINTER):
        return None
    known = next((reader for reader in metric_readers() if reader.sniff(path, head)), None)
    if known is not None or not chosen or looks_binary(head):
        return known
    if not any(column.encode() in head for column in chosen.values()):
        return None
    by_name = {reader.format: reader for reader in metric_readers()}
    return by_name["jsonl" if head.lstrip().startswith(b"{") else "csv"]


def natural_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which version_2 comes before version_10."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", path.as_posix()) if part
    )
