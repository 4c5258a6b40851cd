"""Which worker died first, and how often was the job restarted? torchrun's `error.json` files below its log directory.

torchrun writes `<run>/attempt_<K>/<local rank>/error.json` for each failed worker whose main function is wrapped in
`@record`. (torch/distributed/elastic/multiprocessing/errors/error_handler.py)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.readers.hardware.contract import HardwareEvent, Severity

_ATTEMPT = re.compile(r"^attempt_(\d+)$")
_MACHINE = re.compile(
    r"(uncorrectable|ECC error|CUDA error: (unspecified launch failure|an illegal instruction|misaligned address|"
    r"hardware stack error)|device-side|fallen off the bus|NVLink|NCCL error|unhandled (system|cuda) error|"
    r"ncclRemoteError|remote process exited|Connection reset by peer|CUBLAS_STATUS_EXECUTION_FAILED)",
    re.I,
)


class Torchrun:
    """One file a failed worker."""

    format = "torchrun"

    def recognises(self, path: Path, head: bytes) -> bool:
        """A JSON object with a message under the name that torchrun uses."""
        return path.name == "error.json" and head.lstrip().startswith(b"{") and b'"message"' in head

    def read(self, files: Sequence[Path]) -> Iterator[HardwareEvent]:
        """The failures in the order of their times, the first one marked; and a note on each later attempt."""
        failures = sorted((_failure(path) for path in files), key=lambda event: event.time or float("inf"))
        for place, failure in enumerate(failures):
            yield failure if place else _first(failure)
        attempts = {int(match[1]) for path in files for part in path.parts if (match := _ATTEMPT.match(part))}
        if attempts and max(attempts) > 0:
            statement = f"torchrun restarted the job: {max(attempts) + 1} attempts, each from the latest checkpoint"
            yield HardwareEvent("process", Severity.NOTE, statement, str(files[0].parent))


def _first(event: HardwareEvent) -> HardwareEvent:
    from dataclasses import replace

    return replace(event, statement=f"first failure: {event.statement}")


def _failure(path: Path) -> HardwareEvent:
    try:
        document = json.loads(path.read_bytes()[: 4 << 20])
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputUnreadable(f"{path}: broken JSON ({error})") from error
    message, time = _message(document)
    local = path.parent.name if path.parent.name.isdecimal() else "?"
    attempt = next((m[1] for part in path.parts if (m := _ATTEMPT.match(part))), "0")
    severity = Severity.UNCLEAR if _MACHINE.search(message) else Severity.APPLICATION
    first_line = next(iter(message.strip().splitlines()), "without a message")[:300]
    statement = f"worker {local} of attempt {attempt} failed: {first_line}"
    return HardwareEvent("process", severity, statement, str(path), 0, time, f"local rank {local}")


def _message(document: Any) -> tuple[str, float | None]:
    """The text and the Unix time of an error file; both of its forms."""
    message = document.get("message") if isinstance(document, dict) else None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stamp = str(extra.get("timestamp", "")) if isinstance(extra, dict) else ""
        return str(message.get("message", "")), float(stamp) if stamp.isdecimal() else None
    return str(message or ""), None


READER = Torchrun()
