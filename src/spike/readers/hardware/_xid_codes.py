"""What does a driver's error code mean, and is it the machine? The codes that matter to a training incident.

Source: NVIDIA "Xid Errors" (docs.nvidia.com/deploy/xid-errors, catalog for Ampere and newer) and the Fabric Manager
user guide for NVSwitch codes. A code that is not listed is `UNCLEAR`.
"""

from __future__ import annotations

from spike.readers.hardware.contract import Severity

FAULT, UNCLEAR, APPLICATION, NOTE = Severity.FAULT, Severity.UNCLEAR, Severity.APPLICATION, Severity.NOTE

XID: dict[int, tuple[Severity, str]] = {
    8: (UNCLEAR, "the GPU stopped processing"),
    13: (APPLICATION, "graphics engine exception, usually an out-of-bounds access of a kernel"),
    31: (APPLICATION, "memory page fault, usually an invalid address used by a kernel"),
    32: (UNCLEAR, "corrupted push buffer: driver, bus or program"),
    38: (UNCLEAR, "driver firmware error"),
    43: (APPLICATION, "a channel was reset after a fault of its program"),
    45: (APPLICATION, "preemptive clean-up: a program ended or another error came before"),
    48: (FAULT, "uncorrectable (double-bit) ECC error"),
    61: (FAULT, "internal micro-controller breakpoint"),
    62: (FAULT, "internal micro-controller halt"),
    63: (FAULT, "a memory row was recorded for remapping after an uncorrectable error"),
    64: (FAULT, "remapping a bad memory row failed"),
    68: (APPLICATION, "video decoder exception"),
    69: (APPLICATION, "graphics engine class error"),
    74: (FAULT, "NVLink error"),
    79: (FAULT, "the GPU has fallen off the bus"),
    92: (FAULT, "high rate of single-bit ECC errors"),
    94: (FAULT, "contained uncorrectable ECC error: the affected program was ended, its data was wrong"),
    95: (FAULT, "uncontained uncorrectable ECC error: any program on the GPU may hold wrong data"),
    109: (UNCLEAR, "context switch timeout"),
    119: (FAULT, "the GPU's system processor (GSP) does not answer"),
    120: (FAULT, "error of the GPU's system processor (GSP)"),
    121: (NOTE, "corrected error of a chip-to-chip link"),
    122: (FAULT, "SPI bus error, the GPU's board memory cannot be read"),
    136: (FAULT, "link training failed"),
    137: (UNCLEAR, "NVLink fault of a peer's memory access"),
    140: (FAULT, "unrecovered ECC error"),
    143: (FAULT, "the GPU could not be initialised"),
    144: (FAULT, "NVLink error (SAW)"),
    145: (FAULT, "NVLink error (RLW)"),
    146: (FAULT, "NVLink error (TLW)"),
    147: (FAULT, "NVLink error (TREX)"),
    148: (FAULT, "NVLink error (NVLPW)"),
    149: (FAULT, "NVLink error (NETIR)"),
    150: (FAULT, "NVLink error (MSE)"),
    154: (NOTE, "the action that the driver asks for to recover the GPU was changed"),
    155: (FAULT, "NVLink error"),
    156: (FAULT, "a resource was retired"),
    157: (FAULT, "retiring a resource failed"),
    160: (FAULT, "the GPU is marked for repair"),
    171: (FAULT, "uncorrectable DRAM error"),
    172: (FAULT, "uncorrectable SRAM error"),
}


def explain_xid(code: int) -> tuple[Severity, str]:
    """Severity and meaning of an Xid."""
    return XID.get(code, (UNCLEAR, "a code that this version of spike does not know"))


def explain_sxid(text: str) -> tuple[Severity, str]:
    """Severity and meaning of an NVSwitch line; the driver itself says whether it is fatal."""
    if "non-fatal" in text.lower():
        return UNCLEAR, "non-fatal NVSwitch error"
    return FAULT, "fatal NVSwitch error"
