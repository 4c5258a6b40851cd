"""Which files of the checkpoint did the process really read? An audit hook on `open`, one line a file."""

from __future__ import annotations

import os
import sys
from typing import Any

from spike_probe.writer import TraceWriter


def report_opened(checkpoint: str, writer: TraceWriter) -> None:
    """Write an `opened` line for each file at or below `checkpoint` when it is first opened."""
    folder = os.path.abspath(checkpoint)
    roots = {folder, os.path.realpath(folder)}
    seen: set[str] = set()

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(args[0], (str, os.PathLike)):
            return
        try:
            path = os.path.abspath(os.fspath(args[0]))
            if path in seen or not any(path == root or path.startswith(root + os.sep) for root in roots):
                return
            seen.add(path)
            writer.write("opened", path=path)
        except Exception:  # an audit hook that raises would abort the user's open
            return

    sys.addaudithook(audit)
