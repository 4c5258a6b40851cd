"""Where does what the probe saw go? One JSON-lines file a rank, opened when the first backward begins."""

from __future__ import annotations

import json
import math
import os
from typing import Any

MAX_ERRORS = 20
"""A hook that fails at every step must not fill the disk: later errors are only counted."""


class TraceWriter:
    """Appends lines to `<out>/trace/rankNNNNN.jsonl`; each line is one write(2), so a crash loses none.

    Until `open` is called lines are kept in memory, and a process that never trains leaves no file.
    """

    def __init__(self, out: str) -> None:
        self.out = out
        self.pid = os.getpid()
        self.num_errors = 0
        self._pending: list[bytes] = []
        self._fd = -1

    @property
    def is_open(self) -> bool:
        """True once this process has a file."""
        return self._fd >= 0

    def open(self, rank: int, start: dict[str, Any]) -> None:
        """Create the file of this rank with its `start` line; an older file of the rank is kept aside.

        A launcher that restarts a failed attempt starts the rank again: the newest attempt has the name.
        """
        folder = os.path.join(self.out, "trace")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"rank{rank:05d}.jsonl")
        attempt = 1
        while os.path.exists(path) and os.path.exists(f"{path}.{attempt}"):
            attempt += 1
        if os.path.exists(path):
            os.replace(path, f"{path}.{attempt}")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(self._fd, _encode({"t": "start", **start}))
        for line in self._pending:
            os.write(self._fd, line)
        self._pending.clear()

    def write(self, kind: str, **keys: Any) -> None:
        """One line; in a forked child nothing."""
        if os.getpid() != self.pid:
            return
        line = _encode({"t": kind, **keys})
        if self._fd >= 0:
            os.write(self._fd, line)
        else:
            self._pending.append(line)

    def error(self, where: str, error: BaseException) -> None:
        """Report an exception inside the probe, at most `MAX_ERRORS` times."""
        self.num_errors += 1
        if self.num_errors <= MAX_ERRORS:
            self.write("error", where=where, message=f"{type(error).__name__}: {error}"[:2000])


def _encode(keys: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(keys, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_spell(keys), separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def _spell(value: Any) -> Any:
    """The same value with non-finite numbers as "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: _spell(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spell(item) for item in value]
    return value
