"""What did Slurm record about the job? `sacct -P` tables and `sacct --json`: restarts, lost nodes, killed steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.readers.hardware.contract import HardwareEvent, Severity

MAX_BYTES = 256 << 20
STATES: dict[str, tuple[Severity, str]] = {
    "NODE_FAIL": (Severity.FAULT, "a node failed"),
    "BOOT_FAIL": (Severity.FAULT, "a node did not boot"),
    "OUT_OF_MEMORY": (Severity.APPLICATION, "ran out of memory"),
    "TIMEOUT": (Severity.NOTE, "reached its time limit"),
    "PREEMPTED": (Severity.NOTE, "was preempted"),
    "REQUEUED": (Severity.NOTE, "was requeued"),
    "DEADLINE": (Severity.NOTE, "reached its deadline"),
    "FAILED": (Severity.UNCLEAR, "failed"),
    "CANCELLED": (Severity.NOTE, "was cancelled"),
}


class Sacct:
    """Slurm's accounting."""

    format = "sacct"

    def recognises(self, path: Path, head: bytes) -> bool:
        """A table whose header has JobID and State, or Slurm's JSON."""
        first = head.partition(b"\n")[0]
        table = b"|" in first and b"State" in first and (b"JobID" in first or b"JobIDRaw" in first)
        return table or (head.lstrip().startswith(b"{") and b'"slurm"' in head and b'"jobs"' in head)

    def read(self, files: Sequence[Path]) -> Iterator[HardwareEvent]:
        """Jobs and steps that did not simply complete, and restarts."""
        for path in files:
            for number, row in _rows(path):
                yield from _of_row(row, number, str(path))


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputUnreadable(f"{path}: {path.stat().st_size:,} bytes of accounting")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror}") from error
    if text.lstrip().startswith("{"):
        yield from _json_rows(path, text)
        return
    lines = text.splitlines()
    header = lines[0].split("|")
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            yield number, dict(zip(header, line.split("|"), strict=False))


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputUnreadable(f"{path}: broken JSON ({error})") from error
    jobs = document.get("jobs") if isinstance(document, dict) else None
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict):
            yield 0, _flat(job)


def _flat(job: dict[str, Any]) -> dict[str, str]:
    """The fields that matter under the names that the table uses; their places differ by version."""
    state = job.get("state")
    current = state.get("current") if isinstance(state, dict) else state
    exit_code = job.get("exit_code")
    code = exit_code.get("return_code") if isinstance(exit_code, dict) else exit_code
    code = code.get("number") if isinstance(code, dict) else code
    times = job.get("time") if isinstance(job.get("time"), dict) else {}
    return {
        "JobID": str(job.get("job_id", "")),
        "State": str(current[0] if isinstance(current, list) and current else current or ""),
        "ExitCode": str(code if code is not None else ""),
        "NodeList": str(job.get("nodes", "")),
        "Restarts": str(job.get("restart_cnt", "")),
        "Start": str((times or {}).get("start", "")),
        "End": str((times or {}).get("end", "")),
    }


def _of_row(row: Mapping[str, str], number: int, source: str) -> Iterator[HardwareEvent]:
    job = row.get("JobID") or row.get("JobIDRaw") or "?"
    words = (row.get("State") or "").split()
    state = words[0].rstrip("+") if words else ""
    nodes = row.get("NodeList", "")
    if state in STATES:
        severity, meaning = STATES[state]
        code = f", exit {row['ExitCode']}" if row.get("ExitCode") else ""
        statement = f"job {job} {meaning} ({state}{code}) on {nodes or 'unnamed nodes'}"
        yield HardwareEvent("job", severity, statement, source, number, _time(row.get("End", "")), nodes)
    restarts = row.get("Restarts", "")
    if restarts.isdecimal() and int(restarts) > 0:
        statement = f"job {job} was restarted {int(restarts)} times"
        yield HardwareEvent("job", Severity.NOTE, statement, source, number, _time(row.get("Start", "")), nodes)


def _time(text: str) -> float | None:
    if text.isdecimal() and int(text) > 0:
        return float(text)
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).timestamp()
    return None


READER = Sacct()
