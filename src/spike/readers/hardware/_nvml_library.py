"""What do the GPUs of this machine count? Asked of the driver's own library, through nvidia-ml-py where it is there.

NVIDIA keeps NVML stable, and does not promise that for the text of nvidia-smi. Nothing is reset, set or allocated. A
counter that this board or this driver does not have is named with its reason, never taken for 0.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from spike.domain.measured import NotMeasured

SCHEMA = "spike.hardware/1"
_INSTALL = "pip install 'spike-runbook[nvml]'"

_ECC = (
    ("sram_correctable", "CORRECTED", "SRAM"),
    ("sram_uncorrectable", "UNCORRECTED", "SRAM"),
    ("dram_correctable", "CORRECTED", "DRAM"),
    ("dram_uncorrectable", "UNCORRECTED", "DRAM"),
)
"""(name as in nvidia-smi -q -x, kind, place)."""
_SRAM_SPLIT = (("sram_uncorrectable_parity", "UncParity"), ("sram_uncorrectable_secded", "UncSecDed"))
"""Hopper and later count uncorrected SRAM errors by how they were found."""
_LINK_ERRORS = (("replay", 0), ("recovery", 1), ("CRC flit", 2), ("CRC data", 3), ("ECC data", 4))
_RECOVERY_ACTIONS = (
    "None",
    "GPU Reset",
    "Node Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)
"""NVML_GPU_RECOVERY_ACTION_* by number."""


def read_nvml() -> dict[str, Any] | NotMeasured:
    """Counters of every GPU as a `spike.hardware/1` payload; or why there are none."""
    try:
        import pynvml
    except ImportError:
        return NotMeasured(f"nvidia-ml-py is not installed ({_INSTALL})")
    if not hasattr(pynvml, "nvmlDeviceGetRemappedRows"):
        return NotMeasured(f"the module pynvml is not the one of nvidia-ml-py ({_INSTALL})")
    try:
        with _opened(pynvml):
            driver = _text(pynvml.nvmlSystemGetDriverVersion())
            gpus = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return NotMeasured(f"NVML: {error}")
    if not gpus:
        return NotMeasured("NVML sees no GPU")
    now = {"host": socket.gethostname(), "time": time.time(), "driver": driver}
    return {"schema": SCHEMA, "read_by": "nvml", **now, "gpus": gpus}


@contextmanager
def _opened(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    """One GPU; what it does not answer is listed under "not_measured"."""
    missing: dict[str, str] = {}

    def ask(what: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError as error:
            missing[what] = str(error)
        except (AttributeError, IndexError, TypeError, ValueError) as error:  # an older library, or an unknown answer
            missing[what] = f"{type(error).__name__}: {error}"
        return None

    handle = ask("handle", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:  # a GPU that has fallen off the bus is a fact, and hides no other
        return {"device": f"GPU {index}", "index": index, "not_measured": missing}
    return {
        "device": ask("device", lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId)) or f"GPU {index}",
        "index": index,
        "name": ask("name", lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "uuid": ask("uuid", lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
        "ecc": {scope: _ecc(nvml, handle, scope, ask) for scope in ("volatile", "aggregate")},
        "remapped_rows": ask("remapped_rows", lambda: _rows(nvml.nvmlDeviceGetRemappedRows(handle))),
        "pages_pending": ask("pages_pending", lambda: bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))),
        "recovery_action": ask("recovery_action", lambda: _recovery_action(nvml, handle)),
        "clocks_event_reasons": ask("clocks", lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))),
        "nvlink": _links(nvml, handle, ask),
        "not_measured": missing,
    }


def _ecc(nvml: Any, handle: Any, scope: str, ask: Callable[[str, Callable[[], Any]], Any]) -> dict[str, int]:
    counter = getattr(nvml, f"NVML_{scope.upper()}_ECC")
    found: dict[str, int] = {}
    for name, kind, place in _ECC:
        error, where = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), getattr(nvml, f"NVML_MEMORY_LOCATION_{place}")
        question = partial(nvml.nvmlDeviceGetMemoryErrorCounter, handle, error, counter, where)
        count = ask(f"ecc.{scope}.{name}", question)
        if count is not None:
            found[name] = int(count)
    split = ask(f"ecc.{scope}.sram_split", lambda: _sram_split(nvml, handle, scope))
    if split is not None:  # the two together are the one counter of older boards
        found.pop("sram_uncorrectable", None)
        found |= split
    return found


def _sram_split(nvml: Any, handle: Any, scope: str) -> dict[str, int]:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, status)
    return {name: int(getattr(status, f"{scope}{suffix}")) for name, suffix in _SRAM_SPLIT}


def _rows(answer: tuple[int, int, int, int]) -> dict[str, int | bool]:
    correctable, uncorrectable, is_pending, has_failed = answer
    return {
        "correctable": int(correctable),
        "uncorrectable": int(uncorrectable),
        "pending": bool(is_pending),
        "failed": bool(has_failed),
    }


def _recovery_action(nvml: Any, handle: Any) -> str:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    number = int(value.value.uiVal)
    return _RECOVERY_ACTIONS[number] if number < len(_RECOVERY_ACTIONS) else f"action {number}"


def _links(nvml: Any, handle: Any, ask: Callable[[str, Callable[[], Any]], Any]) -> dict[str, dict[str, int]]:
    """Error counters of the links that are up; a board without NVLink has none."""
    found: dict[str, dict[str, int]] = {}
    for link in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 0))):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except nvml.NVMLError:  # this board has no such link
            continue
        for name, number in _LINK_ERRORS:
            question = partial(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, number)
            count = ask(f"nvlink.{link}.{name}", question)
            if count is not None:
                found.setdefault(str(link), {})[name] = int(count)
    return found


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
