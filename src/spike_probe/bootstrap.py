"""How does the probe get into a process that never heard of it? A plan in the environment, and torch's first import."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Callable, Optional

VARIABLE = "SPIKE_PROBE_PLAN"
_state: dict[str, Any] = {"recorder": None, "finish": None, "is_armed": False}


def activate() -> None:
    """Arm this process if the environment names a plan; costs nothing until torch is imported. Never raises."""
    if _state["is_armed"] or not os.environ.get(VARIABLE):
        return
    _state["is_armed"] = True
    # Handlers run in reverse: registered before torch is imported, this one runs after nearly all others.
    atexit.register(_finish)
    when_imported("torch", _attach)


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Run the action when this module has been executed: now, or right after its first import."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


def recorder() -> Optional[Any]:
    """The recorder of this process, if torch has been imported under a plan."""
    return _state["recorder"]


class _AfterImport:
    """A finder that runs an action right after one module has been executed, then is gone."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._wrap(spec.loader)
                return spec
        return None

    def _wrap(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # the loader is as it was: introspection of torch finds nothing of us
            execute(module)
            self._action()

        loader.exec_module = exec_module


def _finish() -> None:
    if _state["finish"] is not None:
        _state["finish"]()


def _attach() -> None:
    try:
        from spike_probe.attach import attach

        _state["recorder"], _state["finish"] = attach(os.environ[VARIABLE])
    except Exception as error:  # a training run must start even where its probe cannot
        sys.stderr.write(f"spike probe: not attached: {type(error).__name__}: {error}\n")
