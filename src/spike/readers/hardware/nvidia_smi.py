"""What do the GPUs' own counters say? `nvidia-smi -q -x` output: ECC errors, remapped rows, retired pages.

The counters have no time of their own: volatile ones count since the driver was loaded, aggregate ones for the life of
the board. An uncorrected volatile error is an event of this boot.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from spike.domain.errors import InputUnreadable
from spike.readers.hardware.contract import HardwareEvent, Severity

MAX_BYTES = 64 << 20


class NvidiaSmi:
    """One XML document a node."""

    format = "nvidia-smi"

    def recognises(self, path: Path, head: bytes) -> bool:
        """The root element of nvidia-smi's XML."""
        return b"<nvidia_smi_log" in head

    def read(self, files: Sequence[Path]) -> Iterator[HardwareEvent]:
        """Errors of each GPU; a healthy one gives no event."""
        for path in files:
            root = _parse(path)
            time = _time(root.findtext("timestamp") or "")
            for gpu in root.iter("gpu"):
                yield from _of_gpu(gpu, str(path), time)


def _parse(path: Path) -> ElementTree.Element:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputUnreadable(f"{path}: {path.stat().st_size:,} bytes of XML")
        text = path.read_bytes()
        # The document type that nvidia-smi names is harmless; entities of its own would be a bomb.
        if b"<!ENTITY" in text:
            raise InputUnreadable(f"{path}: XML with its own entities; nvidia-smi writes none")
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputUnreadable(f"{path}: broken XML ({error})") from error
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror}") from error


def _of_gpu(gpu: ElementTree.Element, source: str, time: float | None) -> Iterator[HardwareEvent]:
    device = gpu.get("id", "")
    for scope, when in (("volatile", "since the driver was loaded"), ("aggregate", "in the life of the board")):
        counters = gpu.find(f"ecc_errors/{scope}")
        for counter in counters.iter() if counters is not None else ():
            count = _count(counter.text)
            if count and ("uncorrectable" in counter.tag or counter.tag == "double_bit"):
                severity = Severity.FAULT if scope == "volatile" else Severity.NOTE
                statement = f"{count} {counter.tag.replace('_', ' ')} ECC errors {when} on {device}"
                yield HardwareEvent("ecc", severity, statement, source, 0, time, device)
    rows = gpu.find("remapped_rows")
    if rows is not None:
        yield from _of_rows(rows, device, source, time)
    if (gpu.findtext("retired_pages/pending_retirement") or "").strip().lower() == "yes":
        statement = f"memory pages wait for retirement on {device}"
        yield HardwareEvent("row-remap", Severity.FAULT, statement, source, 0, time, device)
    action = (gpu.findtext("gpu_recovery_action") or "none").strip()
    if action.lower() not in ("none", "n/a", ""):
        yield HardwareEvent(
            "recovery", Severity.FAULT, f"the driver asks for {action!r} on {device}", source, 0, time, device
        )


def _of_rows(rows: ElementTree.Element, device: str, source: str, time: float | None) -> Iterator[HardwareEvent]:
    for tag, meaning in (
        ("remapped_row_failure", "remapping a bad memory row failed"),
        ("remapped_row_pending", "a bad memory row waits for a reset to be remapped"),
    ):
        if (rows.findtext(tag) or "").strip().lower() == "yes":
            yield HardwareEvent("row-remap", Severity.FAULT, f"{meaning} on {device}", source, 0, time, device)
    count = _count(rows.findtext("remapped_row_unc"))
    if count:
        statement = f"{count} memory rows were remapped after uncorrectable errors on {device}"
        yield HardwareEvent("row-remap", Severity.NOTE, statement, source, 0, time, device)


def _count(text: str | None) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _time(text: str) -> float | None:
    with suppress(ValueError, OverflowError):
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").timestamp()
    return None


READER = NvidiaSmi()
