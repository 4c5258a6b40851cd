"""What do the GPUs' own counters say? `nvidia-smi -q -x` output: ECC errors, remapped rows, retired pages."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from spike.domain.errors import InputUnreadable
from spike.readers.hardware._gpu_health import GpuHealth, events_of
from spike.readers.hardware.contract import HardwareEvent

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
                yield from events_of(_of_gpu(gpu), str(path), time)


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


def _of_gpu(gpu: ElementTree.Element) -> GpuHealth:
    uncorrected = []
    for scope in ("volatile", "aggregate"):
        counters = gpu.find(f"ecc_errors/{scope}")
        for counter in counters.iter() if counters is not None else ():
            if "uncorrectable" in counter.tag or counter.tag == "double_bit":
                uncorrected.append((scope, counter.tag, _count(counter.text)))
    return GpuHealth(
        device=gpu.get("id", ""),
        uncorrected=tuple(uncorrected),
        remap_failed=_says_yes(gpu, "remapped_rows/remapped_row_failure"),
        remap_pending=_says_yes(gpu, "remapped_rows/remapped_row_pending"),
        rows_remapped=_count(gpu.findtext("remapped_rows/remapped_row_unc")),
        pages_pending=_says_yes(gpu, "retired_pages/pending_retirement"),
        recovery_action=(gpu.findtext("gpu_recovery_action") or "").strip(),
    )


def _says_yes(gpu: ElementTree.Element, path: str) -> bool:
    return (gpu.findtext(path) or "").strip().lower() == "yes"


def _count(text: str | None) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _time(text: str) -> float | None:
    with suppress(ValueError, OverflowError):
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").timestamp()
    return None


READER = NvidiaSmi()
