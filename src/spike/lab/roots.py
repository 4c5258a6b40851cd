"""Which directories must a trial be able to write to, without the writes being real?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spike.domain.run import Run
from spike.lab.guards.overlay import is_below

_CACHES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "WANDB_DIR",
    "TMPDIR",
)
_NEVER = ("/dev", "/proc", "/sys", "/run", "/usr/", "/etc/")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a trial must be able to see and must not be able to change."""

    run: Run
    directory: Path
    """The trial directory: its own output, really writable."""
    pinned: str = ""
    """Intact copy of the checkpoint, absolute; read-only for the trial."""
    place: tuple[tuple[str, str], ...] = ()
    """(source, destination): destinations become exactly their sources."""
    merge: tuple[tuple[str, str], ...] = ()
    """(source tree, destination): files of another code state."""
    hide: tuple[str, ...] = ()
    metric_files: tuple[str, ...] = ()
    """Absolute paths of files and directories that the run logs to."""
    code_root: str = ""
    """Root of the code's work tree; "" where the code directory itself is it."""


def settled(path: str) -> str:
    """The path with every symbolic link of its parents resolved; its last part is what is placed or hidden."""
    lexical = Path(os.path.normpath(path))
    return str(lexical.parent.resolve() / lexical.name)


def _existing(path: str) -> str:
    """The nearest existing directory at or above `path`."""
    found = Path(path)
    while not found.is_dir():
        found = found.parent
    return str(found.resolve())


def needed_roots(wanted: Wanted) -> tuple[str, ...]:
    run = wanted.run
    needed = [run.directory, run.code, run.cwd, wanted.code_root]
    needed += [str(Path(settled(path)).parent) for _, path in wanted.place]
    needed += [str(Path(settled(path)).parent) for path in wanted.hide]
    needed += [path if Path(path).is_dir() else str(Path(path).parent) for path in wanted.metric_files]
    found = {_existing(path) for path in needed if path}
    return tuple(sorted(_without_inner(found - {"/"}, wanted.directory)))


def _without_inner(roots: set[str], directory: Path) -> set[str]:
    """Drop a root that another one covers already, unless that one can only write to memory."""
    return {
        root
        for root in roots
        if not any(
            outer != root
            and is_below(root, outer)
            and not is_below(str(directory), outer)
            and Path(root).stat().st_dev == Path(outer).stat().st_dev
            for outer in roots
        )
    }


def soft_roots(run: Run, roots: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    """Caches, and directories named in the command: copy-on-write on disk where possible, else read-only."""
    env = {**os.environ, **dict(run.env)}
    named = [env[name] for name in _CACHES if env.get(name)]
    home = env.get("HOME") or "/"
    named += [home, f"{home}/.cache"]
    words = run.launch.replace("=", " ").replace("'", " ").replace('"', " ").split()
    named += [word for word in words if word.startswith("/")]
    found = {str(Path(path).resolve()) for path in named if Path(path).is_absolute() and Path(path).is_dir()}
    return tuple(
        sorted(
            path
            for path in found - {"/"} - set(roots)
            if (path.startswith("/dev/shm/") or not path.startswith(_NEVER))
            and not any(is_below(path, root) for root in (*roots, str(directory)))
        )
    )


def service_places() -> tuple[str, ...]:
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return (str(Path(pipes).resolve()),) if Path(pipes).is_dir() else ()
