"""What did NVML say when the evidence was frozen? `evidence/hardware.json`, written by `spike freeze` on a GPU node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.readers.hardware._gpu_health import GpuHealth, events_of
from spike.readers.hardware._nvml_library import SCHEMA, read_nvml
from spike.readers.hardware.contract import HardwareEvent

__all__ = ["READER", "Nvml", "read_nvml"]

MAX_BYTES = 16 << 20


class Nvml:
    """One JSON object a node."""

    format = "nvml"

    def recognises(self, path: Path, head: bytes) -> bool:
        """The schema stands in the first bytes."""
        return head.lstrip()[:1] == b"{" and b'"spike.hardware/' in head[:512]

    def read(self, files: Sequence[Path]) -> Iterator[HardwareEvent]:
        """What is not at rest on each GPU."""
        for path in files:
            payload = _load(path)
            try:
                gpus = [_gpu(raw) for raw in payload["gpus"]]
                time = float(payload["time"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InputUnreadable(f"{path} does not fit {SCHEMA}: {type(error).__name__} {error}") from error
            for gpu in gpus:
                yield from events_of(gpu, str(path), time)


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputUnreadable(f"{path}: {path.stat().st_size:,} bytes of counters")
        payload = json.loads(path.read_bytes())
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputUnreadable(f"{path}: not JSON ({error})") from error
    if not isinstance(payload, dict) or payload.get("schema") != SCHEMA:
        raise InputUnreadable(f"{path}: not an object of schema {SCHEMA}")
    return payload


def _gpu(raw: dict[str, Any]) -> GpuHealth:
    rows = _mapping(raw, "remapped_rows")
    return GpuHealth(
        device=str(raw["device"]),
        uncorrected=tuple(
            (scope, str(name), int(count))
            for scope in ("volatile", "aggregate")
            for name, count in _mapping(_mapping(raw, "ecc"), scope).items()
            if "uncorrectable" in name
        ),
        remap_failed=bool(rows.get("failed")),
        remap_pending=bool(rows.get("pending")),
        rows_remapped=int(rows.get("uncorrectable", 0)),
        pages_pending=bool(raw.get("pages_pending")),
        recovery_action=str(raw.get("recovery_action") or ""),
        links=tuple(
            (int(link), str(name), int(count))
            for link, counters in _mapping(raw, "nvlink").items()
            for name, count in counters.items()
        ),
    )


def _mapping(raw: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under `key`; empty where the board did not answer. Raises `TypeError` for anything else."""
    found = raw.get(key)
    if found is not None and not isinstance(found, dict):
        raise TypeError(f"{key!r} is no mapping")
    return found or {}


READER = Nvml()
