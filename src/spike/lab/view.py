"""Where does a trial run, and what does it see? The run at its own path, every write caught."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.lab import copies
from spike.lab.guards import audit_hook, collect
from spike.lab.guards.choice import Guard, Mechanism
from spike.lab.guards.entry import Entry
from spike.lab.guards.overlay import is_below
from spike.lab.roots import Wanted, needed_roots, service_places, settled, soft_roots

_GRACE_S = 10.0
"""torchrun gives its workers 30 s by default but forwards TERM at once; a replay has nothing to save."""


OFFLINE = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
}
"""A trial must not write into the run's record on a tracking server either; `env:` in spike.yaml overrides."""


@dataclass(frozen=True, slots=True)
class View:
    """A prepared view: what `enter` needs, and the way from the trial's paths back to the run's."""

    guard: Guard
    entry: Entry
    scratch: Path
    copied: tuple[tuple[str, str], ...] = ()
    """(real directory, its copy) where the run cannot be seen at its own path."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables that the guard needs in the command's environment."""
    placed: frozenset[tuple[str, bool]] = frozenset()
    """(destination, can the view show it?) of everything that was to be placed."""
    _before: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _own: tuple[str, ...] = ()

    def path(self, real: str) -> str:
        """Where the trial sees this path of the run."""
        for original, copy in self.copied:
            if is_below(real, original):
                return copy + real[len(original) :]
        return real

    def rewrite(self, text: str) -> str:
        """A command line or variable with every path of the run replaced by the one that the trial sees."""
        for original, copy in self.copied:
            text = copies.replace_path(text, original, copy)
        return text

    def environment(self, run: Run, cwd: str) -> dict[str, str]:
        """The operator's variables as the trial sees them, with those of the guard."""
        base = {**os.environ, **OFFLINE, "PYTHONUNBUFFERED": "1", **dict(run.env), "PWD": cwd}
        seen = {name: self.rewrite(value) for name, value in base.items()}
        for name, value in self.env:
            rest = seen.get(name, "") if name == "PYTHONPATH" else ""
            seen[name] = f"{value}{os.pathsep}{rest}" if rest else value
        return seen

    def seen_to_real(self) -> dict[str, str]:
        """Path prefixes of the view, and what they stand for."""
        return {copy: original for original, copy in self.copied}

    def written(self) -> Iterator[tuple[Path, str]]:
        """(file, real path it stands for) of everything metric-like that the trial wrote outside its directory."""
        names, below = collect.NAMES, self.entry.keep_below
        if self.copied:
            for original, copy in self.copied:
                for path, real in collect.written_files(Path(copy), original, names, below):
                    if not copies.is_unchanged(path, Path(real)):
                        yield path, real
            return
        for real, kept in self._stores():
            yield from collect.written_files(Path(kept), real, names, below)
        yield from collect.written_files(self.scratch / "kept", "/", names, below)

    def written_below(self, directory: str) -> Iterator[tuple[Path, str]]:
        """(place on disk, real path it stands for) of the entries that the trial made directly below a directory."""
        for real, kept in self._stores():
            if is_below(directory, real):
                here = Path(f"{kept}{directory[len(real) :]}")
                for entry in sorted(here.iterdir()) if here.is_dir() else ():
                    if (entry.is_file() or entry.is_dir()) and not entry.is_symlink():
                        yield entry, f"{directory}/{entry.name}"

    def _stores(self) -> Iterator[tuple[str, str]]:
        """(real directory, where what the trial wrote below it lies on disk)."""
        yield from self.copied
        for record in sorted(self.scratch.glob("*/root")):
            yield record.read_text(), str(record.parent / "upper")

    def changes_outside(self) -> tuple[str, ...]:
        """Paths of the run that changed meanwhile in a way that the guard could not have prevented.

        Landlock lets nobody write, but does not know of modes; the audit hook knows of Python alone.
        """
        if not self._before:
            return ()
        after = copies.stat_state((real for real, _ in self.copied), self._own)
        only = slice(0, 1) if self.guard is Guard.LANDLOCK else slice(None)
        return copies.differences(self._before, after, only)

    def real_text(self, text: str) -> str:
        """What the trial printed, with the paths of the copy named as the operator knows them."""
        for original, copy in self.copied:
            text = text.replace(copy, original)
        return text


def remove_tree(path: Path) -> None:
    """Delete a scratch tree, including directories that overlayfs left without permissions."""
    for directory, folders, _ in os.walk(path):
        for name in folders:
            inner = Path(directory) / name
            with contextlib.suppress(OSError):
                if not inner.is_symlink() and inner.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    inner.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def scratch_for(directory: Path, run: Run) -> Path:
    """A directory of this trial for the writes of the view; never inside the run, which would see its own copy.

    SPIKE_SCRATCH names another place, for a file system that overlays cannot write to.
    """
    inside = directory / "view"
    named = os.environ.get("SPIKE_SCRATCH", "")
    if not named and not is_below(str(directory), run.directory):
        return inside
    name = f"spike-{os.getuid()}-{_short(directory)}"
    for parent in filter(None, (named, tempfile.gettempdir(), "/var/tmp")):
        place = Path(parent).resolve()
        if place.is_dir() and os.access(place, os.W_OK) and not is_below(str(place), run.directory):
            return place / name
    raise SpikeError(
        f"the case at {directory} lies inside the run {run.directory}, "
        "and no other directory can hold a trial's writes",
        hint="keep cases outside the run (`cases:` in spike.yaml), or set SPIKE_SCRATCH to a directory",
    )


def grace_s() -> float:
    """Seconds that a trial gets to end by itself once asked to; SPIKE_GRACE_S changes it."""
    text = os.environ.get("SPIKE_GRACE_S", "")
    try:
        return max(0.0, float(text)) if text else _GRACE_S
    except ValueError as error:
        raise SpikeError(f"SPIKE_GRACE_S is {text!r}, which is no number of seconds", hint="unset it") from error


def importable(directory: Path) -> Path:
    """`directory`, or one elsewhere if its path cannot be an entry of PYTHONPATH."""
    if os.pathsep not in str(directory):
        return directory
    place = Path(tempfile.gettempdir()) / f"spike-path-{os.getuid()}-{_short(directory)}"
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def _short(directory: Path) -> str:
    return hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]


def prepare(wanted: Wanted, mechanism: Mechanism, scratch: Path) -> View:
    """The view under this guard. Nothing is mounted yet: that happens in the command's own process."""
    if mechanism.guard is Guard.OVERLAY:
        return _overlay(wanted, mechanism, scratch)
    return _copy(wanted, mechanism, scratch)


def _writable_anyway(protected: tuple[str, ...]) -> tuple[str, ...]:
    """Shared directories that commands count on, as long as nothing that must not change lies in them."""
    shared = ("/dev", "/proc", "/tmp", "/var/tmp", *service_places())
    return tuple(place for place in shared if not any(is_below(path, place) for path in protected))


def _overlay(wanted: Wanted, mechanism: Mechanism, scratch: Path) -> View:
    scratch.mkdir(parents=True, exist_ok=True)
    roots = needed_roots(wanted)
    pinned = Path(wanted.pinned) if wanted.pinned else None
    entry = Entry(
        guard=mechanism.guard,
        parent=0,
        status_fd=-1,
        argv=[],
        cwd=wanted.run.cwd or wanted.run.directory,
        env={},
        grace_s=grace_s(),
        user_namespace=mechanism.user_namespace,
        pid_namespace=mechanism.pid_namespace,
        directory=str(wanted.directory),
        scratch=str(scratch),
        roots=roots,
        soft_roots=soft_roots(wanted.run, roots, wanted.directory),
        readonly=(str(pinned if pinned.is_dir() else pinned.parent),) if pinned else (),
        through=service_places(),
        place=tuple((source, settled(path)) for source, path in wanted.place),
        merge=wanted.merge,
        hide=tuple(settled(path) for path in wanted.hide),
        keep=collect.NAMES,
        keep_below=wanted.metric_files,
    )
    return View(Guard.OVERLAY, entry, scratch, placed=frozenset((path, True) for _, path in wanted.place))


def _own_places(directory: Path, scratch: Path, run: Run) -> tuple[str, ...]:
    """Directories of spike itself, which may lie inside the code's tree and are no part of it."""
    trials = str(directory.parent)
    places = (str(directory), str(scratch), trials, f"{run.directory}.spike")
    return tuple(place for place in places if not is_below(run.directory, place))


def _copy(wanted: Wanted, mechanism: Mechanism, scratch: Path) -> View:
    scratch.mkdir(parents=True, exist_ok=True)
    run = wanted.run
    own = _own_places(wanted.directory, scratch, run)
    copied = copies.build(
        copies.outermost((run.directory, run.code, run.cwd, wanted.code_root)),
        scratch / "copy",
        copies.Edits(wanted.place, wanted.merge, wanted.hide),
        keep_out=own,
        live=(run.directory, *wanted.metric_files),
    )
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    before = copies.stat_state((real for real, _ in copied), own)
    hook = str(audit_hook.stage(importable(scratch) / "guard"))
    protected = [*(real for real, _ in copied), *((wanted.pinned,) if wanted.pinned else ())]
    allowed = [str(wanted.directory), str(scratch)]
    env = (
        ("PYTHONPATH", hook),
        (audit_hook.PROTECTED, json.dumps(protected)),
        (audit_hook.ALLOWED, json.dumps(allowed)),
        ("TMPDIR", str(temporary)),
    )
    entry = Entry(
        guard=mechanism.guard,
        parent=0,
        status_fd=-1,
        argv=[],
        cwd="",
        env={},
        grace_s=grace_s(),
        directory=str(wanted.directory),
        scratch=str(scratch),
        roots=(str(scratch),),
        through=_writable_anyway((*(real for real, _ in copied), wanted.pinned)),
        keep_below=wanted.metric_files,
    )
    placed = frozenset((path, any(is_below(path, real) for real, _ in copied)) for _, path in wanted.place)
    return View(mechanism.guard, entry, scratch, copied, env, placed, before, own)
