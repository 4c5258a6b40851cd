"""What if the kernel offers nothing? A Python audit hook that refuses to write below the run's real directory.

This file is staged alone, as `sitecustomize.py`, into the interpreter of the training command, so it runs on
Python 3.9 and imports the standard library only. It sees what Python sees: calls of Python's own functions, and the
two native writers that training commands use (torch's zip writer, safetensors). Programs that are not Python
escape it; the lab compares the run's files before and after.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROTECTED = "SPIKE_GUARD_PROTECTED"
"""Real directories that nothing may be written to, as a JSON list: paths may hold any separator."""
ALLOWED = "SPIKE_GUARD_ALLOWED"
"""Directories inside them that may be, likewise."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.lchown": ((0, None),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
}
"""Audit event -> (position of a path, position of the directory descriptor that it is relative to)."""


def stage(directory: Path) -> Path:
    """Put the hook as `sitecustomize.py` into `directory`, for the front of PYTHONPATH."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, directory / "sitecustomize.py")
    return directory


def _full(path: Any, dir_fd: Any = None) -> str:
    if isinstance(path, int):
        return os.path.realpath(f"/proc/self/fd/{path}")  # the path as text: other processes' links
    name = os.fsdecode(path)
    if isinstance(dir_fd, int) and dir_fd >= 0 and not name.startswith("/"):
        name = f"/proc/self/fd/{dir_fd}/{name}"
    head, tail = os.path.split(name)
    if tail in ("", ".", ".."):
        return os.path.realpath(name)
    return f"{os.path.realpath(head or '.')}/{tail}"


def _below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


def make_check(protected: Sequence[str], allowed: Sequence[str]) -> Callable[..., None]:
    """A function that raises PermissionError for a path below `protected` and not below `allowed`."""

    def check(path: Any, dir_fd: Any = None, *, follow: bool = False) -> None:
        full = _full(path, dir_fd)
        if follow:
            full = os.path.realpath(full)
        if _below(full, protected) and not _below(full, allowed):
            raise PermissionError(13, "spike's guard: a trial may not change the run", full)

    return check


def make_hook(check: Callable[..., None]) -> Callable[[str, tuple[Any, ...]], None]:
    """The audit hook around `check`."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if path is not None and not isinstance(path, int) and isinstance(flags, int) and flags & _WRITING:
                check(path, follow=True)
            return
        for position, dir_fd in _PATHS.get(event, ()):
            relative = arguments[dir_fd] if dir_fd is not None and dir_fd < len(arguments) else None
            check(arguments[position], relative)

    return hook


class _Wrapping(importlib.abc.Loader):
    """Loads a module as its own loader does, then puts `check` before its native writer."""

    def __init__(self, inner: Any, patch: Callable[[Any], None]) -> None:
        self._inner = inner
        self._patch = patch

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules with native writers by the ordinary finders and wraps their loaders."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name) if path is None else importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Wrapping(spec.loader, patch)
        return spec


def _native_patches(check: Callable[..., None]) -> dict[str, Callable[[Any], None]]:
    def zip_writer(module: Any) -> None:
        writer = getattr(module, "_open_zipfile_writer_file", None)
        if writer is None:
            return
        inner = writer.__init__

        def guarded(self: Any, name: Any, *rest: Any, **named: Any) -> None:
            check(name, follow=True)
            inner(self, name, *rest, **named)

        writer.__init__ = guarded

    def safetensors(module: Any) -> None:
        inner = getattr(module, "serialize_file", None)
        if inner is None:
            return

        def guarded(tensors: Any, filename: Any, *rest: Any, **named: Any) -> Any:
            check(filename, follow=True)
            return inner(tensors, filename, *rest, **named)

        module.serialize_file = guarded

    return {"torch.serialization": zip_writer, "safetensors.torch": safetensors, "safetensors.numpy": safetensors}


def install() -> None:
    """Arm the hook for this process, from the environment."""
    protected, allowed = (json.loads(os.environ.get(name, "[]")) for name in (PROTECTED, ALLOWED))
    if not protected:
        return
    check = make_check(protected, allowed)
    sys.meta_path.insert(0, _Finder(_native_patches(check)))
    sys.addaudithook(make_hook(check))


def chain(own: str) -> None:
    """Run the sitecustomize that this one hides, if there is one further down the path."""
    here = os.path.realpath(own)
    real = [os.path.realpath(entry or ".") for entry in sys.path]
    rest = sys.path[real.index(here) + 1 :] if here in real else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    install()
    chain(str(Path(__file__).parent))
