"""Which GPU and NVSwitch errors did the kernel log? dmesg (with or without -T), journalctl and syslog files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from spike.domain.errors import InputUnreadable
from spike.readers.hardware._xid_codes import explain_sxid, explain_xid
from spike.readers.hardware.contract import HardwareEvent, Severity

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: GPU-I:\d+)?\): (\d+),?\s*(.*)")
_SXID = re.compile(r"nvidia-nvswitch\d+:? SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")
_OTHER = re.compile(
    r"(?P<mce>mce: \[Hardware Error\]|\[Hardware Error\]: (?:Machine check|CPU))|"
    r"(?P<edac>EDAC .*\b(?:UE|CE)\b)|(?P<oom>Out of memory: Killed process|oom-kill:)|"
    r"(?P<link>mlx5_core .*(?:Link down|link down|health compromised))"
)
_KERNEL_LINE = re.compile(
    rb"(^|\n)(<\d+>)?(\[\s*\d+\.\d{6}\]|\[\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\])|NVRM: |nvidia-nvswitch| kernel: "
)
_CTIME = re.compile(r"\[(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})\]")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?")
_SYSLOG = re.compile(r"^(\w{3} +\d+ \d\d:\d\d:\d\d) (\S+) ")
MAX_DETAIL = 200


class Dmesg:
    """Kernel logs."""

    format = "dmesg"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Lines that start as the kernel's do, or that the NVIDIA driver wrote."""
        return _KERNEL_LINE.search(head) is not None

    def read(self, files: Sequence[Path]) -> Iterator[HardwareEvent]:
        """Every Xid and SXid, machine-check errors, memory kills and lost network links."""
        for path in files:
            year = datetime.fromtimestamp(path.stat().st_mtime).year
            try:
                with path.open(encoding="utf-8", errors="replace") as lines:
                    for number, line in enumerate(lines, 1):
                        event = _event(line.rstrip("\n")[:4000], number, str(path), year)
                        if event is not None:
                            yield event
            except OSError as error:
                raise InputUnreadable(f"{path}: {error.strerror}") from error


def _event(line: str, number: int, source: str, year: int) -> HardwareEvent | None:
    time = clock_time(line, year)
    match = _XID.search(line)
    if match:
        code = int(match[2])
        severity, meaning = explain_xid(code)
        statement = f"Xid {code} on {match[1]}: {meaning} ({match[3].strip()[:MAX_DETAIL]})"
        return HardwareEvent("xid", severity, statement, source, number, time, match[1], code)
    match = _SXID.search(line)
    if match:
        code = int(match[2])
        severity, meaning = explain_sxid(match[3])
        statement = f"SXid {code} on {match[1]}: {meaning} ({match[3].strip()[:MAX_DETAIL]})"
        return HardwareEvent("sxid", severity, statement, source, number, time, match[1], code)
    match = _OTHER.search(line)
    if match is None:
        return None
    kind, severity, meaning = {
        "mce": ("machine-check", Severity.FAULT, "the CPU reported a hardware error"),
        "edac": ("ecc", Severity.FAULT, "the memory controller reported an error"),
        "oom": ("memory", Severity.APPLICATION, "the kernel killed a process for memory"),
        "link": ("network", Severity.FAULT, "a network link was lost"),
    }[match.lastgroup or "mce"]
    return HardwareEvent(kind, severity, f"{meaning} ({line.strip()[:MAX_DETAIL]})", source, number, time)


def clock_time(line: str, year: int) -> float | None:
    """Unix seconds of a kernel-log line; None where it counts from boot.

    Times without a zone are taken in this machine's zone, times without a year in `year`.
    """
    with suppress(ValueError, OverflowError):
        if match := _CTIME.search(line):
            return datetime.strptime(match[1], "%a %b %d %H:%M:%S %Y").timestamp()
        if match := _ISO.search(line[:64]):
            return datetime.fromisoformat(match[1] + (match[2] or "")).timestamp()
        if match := _SYSLOG.match(line):
            return datetime.strptime(f"{year} {match[1]}", "%Y %b %d %H:%M:%S").timestamp()
    return None


READER = Dmesg()
