"""What do the counters of one GPU mean? The same facts, and the same sentences, whoever read them out.

Counters have no time of their own: volatile ones count since the driver was loaded, aggregate ones for the life of the
board. An uncorrected volatile error is an event of this boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spike.readers.hardware.contract import HardwareEvent, Severity

_SCOPES = {"volatile": "since the driver was loaded", "aggregate": "in the life of the board"}


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """Counters of one GPU; 0, False and "" where all is well or the board has no such counter."""

    device: str
    """PCI address."""
    uncorrected: tuple[tuple[str, str, int], ...] = ()
    """(scope, name of the counter, count): uncorrected ECC errors; scope is "volatile" or "aggregate"."""
    remap_failed: bool = False
    remap_pending: bool = False
    rows_remapped: int = 0
    """Rows that were replaced after uncorrectable errors."""
    pages_pending: bool = False
    recovery_action: str = ""
    """What the driver asks for, in its own words."""
    links: tuple[tuple[int, str, int], ...] = ()
    """(NVLink, name of the counter, count): errors of a link since its counters were reset."""


def events_of(gpu: GpuHealth, source: str, time: float | None) -> Iterator[HardwareEvent]:
    """Every counter that is not at rest, as an event; a healthy GPU gives none."""

    def event(kind: str, severity: Severity, statement: str) -> HardwareEvent:
        text = f"{statement} on {gpu.device}"
        return HardwareEvent(kind, severity, text, source, 0, time, gpu.device, is_counter=True)

    for scope, name, count in sorted(gpu.uncorrected, key=lambda one: (one[0] != "volatile", one[1])):
        if count:
            severity = Severity.FAULT if scope == "volatile" else Severity.NOTE
            yield event("ecc", severity, f"{count} {name.replace('_', ' ')} ECC errors {_SCOPES[scope]}")
    if gpu.remap_failed:
        yield event("row-remap", Severity.FAULT, "remapping a bad memory row failed")
    if gpu.remap_pending:
        yield event("row-remap", Severity.FAULT, "a bad memory row waits for a reset to be remapped")
    if gpu.rows_remapped:
        text = f"{gpu.rows_remapped} memory rows were remapped after uncorrectable errors"
        yield event("row-remap", Severity.NOTE, text)
    if gpu.pages_pending:
        yield event("row-remap", Severity.FAULT, "memory pages wait for retirement")
    if gpu.recovery_action.lower() not in ("none", "n/a", ""):
        yield event("recovery", Severity.FAULT, f"the driver asks for {gpu.recovery_action!r}")
    for link, name, count in gpu.links:
        if count:
            # Links retry by themselves; a count tells of a weak link, not of wrong numbers.
            text = f"{count} {name} errors of NVLink {link} since its counters were reset"
            yield event("nvlink", Severity.NOTE, text)
