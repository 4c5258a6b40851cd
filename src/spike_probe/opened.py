"""Which files of the checkpoint did the process really read? One line a file, when it is first opened.

Python's own opens are heard by an audit hook. safetensors opens its files in Rust, so its entry is wrapped.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from spike_probe.bootstrap import when_imported
from spike_probe.writer import TraceWriter


def report_opened(checkpoint: str, writer: TraceWriter) -> None:
    """Write an `opened` line for each file at or below `checkpoint`."""
    heard = _Heard(checkpoint, writer)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            heard.open(args[0])

    sys.addaudithook(audit)
    when_imported("safetensors", lambda: _wrap_safetensors(heard))


class _Heard:
    def __init__(self, checkpoint: str, writer: TraceWriter) -> None:
        folder = os.path.abspath(checkpoint)
        self._roots = {folder, os.path.realpath(folder)}
        self._seen: set[str] = set()
        self._writer = writer

    def open(self, path: Any) -> None:
        """Never raises: an audit hook that does would abort the user's open."""
        if not isinstance(path, (str, os.PathLike)):
            return
        try:
            full = os.path.abspath(os.fspath(path))
            is_below = any(full == root or full.startswith(root + os.sep) for root in self._roots)
            if is_below and full not in self._seen:
                self._seen.add(full)
                self._writer.write("opened", path=full)
        except Exception:
            return


def _wrap_safetensors(heard: _Heard) -> None:
    module = sys.modules["safetensors"]
    original = module.safe_open

    def safe_open(filename: Any, *args: Any, **kwargs: Any) -> Any:
        heard.open(filename)
        return original(filename, *args, **kwargs)

    module.safe_open = safe_open  # type: ignore[attr-defined]
