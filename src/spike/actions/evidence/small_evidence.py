"""Which small files of the run belong to the evidence? Description, configuration, logs, hardware reports, loose code.

Everything is found below the directories that spike.yaml names; symlinks are not followed, and what is left out is
listed with its reason.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spike.casefile.small_files import MAX_COPY_BYTES, Kept, copy_small_file
from spike.domain.manifest import Exclusion, ManifestEntry, encode_path
from spike.domain.measured import NotMeasured
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.domain.source import SourceState

MAX_DEPTH = 5
MAX_FILES = 2000
MAX_TOTAL_BYTES = 512 << 20
MAX_CONFIG_BYTES = 4 << 20
MAX_CODE_BYTES = 1 << 20
_CONFIGS = ("*.yaml", "*.yml", "*.toml", "*.cfg", "*.ini", "*.gin", "*.json", "*.args", "*config*.txt", "hparams*")
_TRACKERS = ("latest", "latest_checkpointed_iteration.txt", "latest_checkpoint*", "last_checkpoint*")
_LOGS = (
    "*.log",
    "*.out",
    "*.err",
    "*.jsonl",
    "*.csv",
    "*.tsv",
    "events.out.tfevents.*",
    "*.wandb",
    "stdout*",
    "stderr*",
)
_CODE = (
    "*.py",
    "*.sh",
    "*.slurm",
    "*.sbatch",
    "*.cu",
    "*.cpp",
    "*.h",
    "*.yaml",
    "*.yml",
    "*.toml",
    "*.cfg",
    "Makefile",
)
_SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "venv",
        "site-packages",
        "node_modules",
        "__pycache__",
        ".cache",
        ".ipynb_checkpoints",
    }
)


@dataclass(slots=True)
class SmallEvidence:
    """What was copied, and what was not."""

    entries: list[ManifestEntry] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)
    num_bytes: int = 0
    seen: set[Path] = field(default_factory=set)

    def add(self, root: Path, relative: str, evidence: Path, place: str, role: str, limit: int) -> None:
        """Copy one file, once, within the budget."""
        path = root / relative
        if path in self.seen:
            return
        self.seen.add(path)
        if len(self.entries) >= MAX_FILES or self.num_bytes >= MAX_TOTAL_BYTES:
            reason = f"the case has its {MAX_FILES} small files or {MAX_TOTAL_BYTES >> 20} MiB of them already"
            self.exclusions.append(Exclusion(encode_path(os.fspath(path)), reason))
            return
        found = copy_small_file(root, relative, evidence, place, role, max_bytes=limit)
        if isinstance(found, Kept):
            self.entries.append(found.entry)
            self.num_bytes += found.entry.size
        else:
            self.exclusions.append(found)


def collect_small_files(
    run: Run,
    signals: Signals | None,
    source: SourceState | NotMeasured,
    checkpoints: tuple[str, ...],
    evidence: Path,
) -> SmallEvidence:
    """Copy every small file that the investigation may need. `checkpoints` are paths that are pinned, not copied."""
    directory = Path(run.directory)
    found = SmallEvidence()
    found.add(directory, "spike.yaml", evidence, "run/spike.yaml", "description", MAX_CONFIG_BYTES)
    for name in run.hardware:
        _add_named(found, directory, name, evidence, "hardware")
    for log in signals.sources if signals else ():
        _add_named(found, directory, log.path, evidence, "log")
    for relative, role, limit in _walk(directory, frozenset(checkpoints)):
        found.add(directory, relative, evidence, f"run/{relative}", role, limit)
    for name in _named_in(run):
        _add_named(found, Path(run.cwd or run.directory), name, evidence, "config")
    _add_code(found, run, source, evidence)
    return found


def _add_named(found: SmallEvidence, base: Path, name: str, evidence: Path, role: str) -> None:
    """A file that the operator named, wherever it lies; a directory is the walk's business."""
    path = Path(os.path.realpath(base / name))
    if not path.is_file():
        return
    real = Path(os.path.realpath(base))
    if path.is_relative_to(real):
        relative = path.relative_to(real).as_posix()
        found.add(real, relative, evidence, f"run/{relative}", role, MAX_COPY_BYTES)
    else:
        found.add(path.parent, path.name, evidence, f"outside{path}", role, MAX_COPY_BYTES)


def _named_in(run: Run) -> Iterator[str]:
    """Words of the launch command that are small files: `--config cfg.yaml`, `train.py`."""
    base = Path(run.cwd or run.directory)
    try:
        words = shlex.split(run.launch)
    except ValueError:
        return
    for word in words:
        name = word.rpartition("=")[2]
        if not name or "{" in name:
            continue
        path = base / name
        try:
            is_small = path.is_file() and path.stat().st_size <= MAX_CODE_BYTES
        except (OSError, ValueError):
            continue
        if is_small and not os.access(path, os.X_OK):
            yield name


def _walk(directory: Path, checkpoints: frozenset[str]) -> Iterator[tuple[str, str, int]]:
    """(relative path, role, size limit) of files that look like configuration, trackers or logs."""
    for where, names, files in os.walk(directory):
        here = Path(where)
        depth = len(here.relative_to(directory).parts)
        names[:] = sorted(
            n
            for n in names
            if depth < MAX_DEPTH and n not in _SKIPPED and not n.endswith(".spike") and str(here / n) not in checkpoints
        )
        for name in sorted(files):
            if str(here / name) in checkpoints or (here / name).is_symlink():
                continue
            relative = (here / name).relative_to(directory).as_posix()
            if _matches(name, _LOGS):
                yield relative, "log", MAX_COPY_BYTES
            elif _matches(name, _CONFIGS) or _matches(name, _TRACKERS):
                yield relative, "config", MAX_CONFIG_BYTES


def _add_code(found: SmallEvidence, run: Run, source: SourceState | NotMeasured, evidence: Path) -> None:
    """Code that no commit holds: untracked files in a repository, all of it where there is none."""
    if isinstance(source, SourceState):
        root = Path(source.root)
        for item in source.untracked:
            if _matches(Path(item.path).name, _CODE) and item.size <= MAX_CODE_BYTES:
                found.add(root, item.path, evidence, f"source/untracked/{item.path}", "source", MAX_CODE_BYTES)
        return
    root = Path(run.code or run.directory)
    for where, names, files in os.walk(root):
        here = Path(where)
        depth = len(here.relative_to(root).parts)
        names[:] = sorted(n for n in names if depth < MAX_DEPTH and n not in _SKIPPED and not n.endswith(".spike"))
        for name in sorted(files):
            if _matches(name, _CODE) and not (here / name).is_symlink():
                relative = (here / name).relative_to(root).as_posix()
                found.add(root, relative, evidence, f"source/files/{relative}", "source", MAX_CODE_BYTES)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
