"""Which guard does this machine allow? Each is tried for real, on a directory of its own, the strongest first."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from spike.domain.errors import SpikeError
from spike.lab.guards import landlock
from spike.lab.guards.entry import Entry
from spike.lab.guards.process import start

_PROBE_S = 20.0


class Guard(StrEnum):
    """What keeps a run safe from its trials; recorded with every trial."""

    OVERLAY = "overlay"
    LANDLOCK = "worktree+landlock"
    AUDIT = "audit-hook"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A guard and how it is entered here."""

    guard: Guard
    user_namespace: bool = False
    pid_namespace: bool = False


def _overlay_works(mechanism: Mechanism) -> str:
    """ "" where a write through an overlay stays away from the real directory, else the reason."""
    with tempfile.TemporaryDirectory(prefix="spike-guard-") as name:
        place = Path(name).resolve()
        run, trial, scratch = place / "run", place / "trial", place / "trial" / "view"
        for directory in (run, scratch):
            directory.mkdir(parents=True)
        entry = Entry(
            guard=mechanism.guard,
            parent=0,
            status_fd=-1,
            argv=["/bin/sh", "-c", f"echo seen > '{run}/probe' && cp '{run}/probe' '{trial}/probe'"],
            cwd=str(run),
            env={"PATH": os.defpath},
            grace_s=1.0,
            user_namespace=mechanism.user_namespace,
            pid_namespace=mechanism.pid_namespace,
            directory=str(trial),
            scratch=str(scratch),
            roots=(str(run),),
        )
        with start(entry, place / "out", place / "err") as process:
            in_time = process.wait(_PROBE_S)
            process.stop()
            report = process.report()
        if not in_time:
            return "no answer"
        if report.code != 0:
            return f"{report.failed_stage}: {report.error or (place / 'err').read_text()}"
        if (run / "probe").exists() or not (trial / "probe").exists():
            return "the overlay let a write through"
        return ""


@cache
def overlay_mechanism() -> tuple[Mechanism | None, str]:
    """(how overlays can be had here, "") or (None, why not)."""
    reasons = []
    for user in (False, True) if os.geteuid() == 0 else (True,):
        for pid in (True, False):
            mechanism = Mechanism(Guard.OVERLAY, user, pid)
            reason = _overlay_works(mechanism)
            if not reason:
                return mechanism, ""
            reasons.append(reason)
    return None, reasons[0]


def mechanisms() -> tuple[Mechanism, ...]:
    """What may be used, strongest first; SPIKE_GUARD forces one.

    Raises SpikeError where the forced guard is unknown or not available.
    """
    forced = os.environ.get("SPIKE_GUARD", "")
    if forced and forced not in list(Guard):
        raise SpikeError(
            f"SPIKE_GUARD is {forced!r}, which is no guard", hint="one of: " + ", ".join(Guard) + ", or unset it"
        )
    found, why_not = (None, "") if forced not in ("", Guard.OVERLAY) else overlay_mechanism()
    available = [found] if found else []
    if landlock.version():
        available.append(Mechanism(Guard.LANDLOCK))
    available.append(Mechanism(Guard.AUDIT))
    chosen = tuple(m for m in available if not forced or m.guard == forced)
    if not chosen:
        reason = why_not or "this kernel has no Landlock"
        raise SpikeError(f"SPIKE_GUARD asks for {forced!r}, but: {reason}", hint="unset SPIKE_GUARD")
    return chosen


def choose_guard() -> Guard:
    """The strongest guard that works on this machine."""
    return mechanisms()[0].guard
