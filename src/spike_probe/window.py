"""When does a trial end, and how does a process end that may not want to? A clean exit, then a firm one."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
import time

GRACE_S = 20.0
"""How long `finally` blocks, exit handlers and process groups may take after the window is complete."""


class WindowEnd:
    """Ends this process with exit code 0; every rank decides by itself, so nothing waits for another rank."""

    def __init__(self) -> None:
        self.is_complete = False

    def leave(self) -> None:
        """Raise SystemExit(0) now; called again, because somebody swallowed it, leave at once."""
        if self.is_complete:
            end_process()
        self.is_complete = True
        _flush_streams()
        threading.Thread(target=_watch, name="spike-window-end", daemon=True).start()
        raise SystemExit(0)


def end_process() -> None:
    """Write out every open file, then end without the interpreter's teardown, which can hang on a process group."""
    flush_open_files()
    os._exit(0)


def flush_open_files() -> None:
    """Flush every buffered file object of this process: `os._exit` would lose their last lines."""
    _flush_streams()
    for kind in (io.TextIOWrapper, io.BufferedWriter):
        for found in gc.get_objects():
            try:
                if issubclass(type(found), kind) and not found.closed and found.writable():
                    found.flush()
            except Exception:  # a broken file of somebody else must not keep the others from being flushed
                continue


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or a broken pipe
            continue


def _watch() -> None:
    time.sleep(GRACE_S)
    end_process()
