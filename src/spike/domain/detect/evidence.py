"""What did one signal do wrong, and when? Every kind of departure in one form, by step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from spike.domain.detect.departures import Departure
from spike.domain.detect.track import Track
from spike.domain.incident import Kind, Signature

LEVEL_ROWS = 16
"""Rows of a departure whose median is its level."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One signal's part in an incident."""

    signature: Signature
    effect: float
    """Distance of the peak from the centre, in transformed units; inf for a non-finite one."""
    sigmas: float
    is_open: bool
    """The record ends before the signal came back."""
    is_settled: bool
    num_rows: int
    level: float = 0.0
    """Median distance from the centre over its first rows, while the centre is still what the trend would be."""
    is_abrupt: bool = True
    """It got most of the way within its first rows."""
    may_raise: bool = True
    """It is enough for an incident on its own; otherwise it only takes part in one."""
    hints: tuple[str, ...] = ()

    @property
    def signal(self) -> str:
        """Name of the signal."""
        return self.signature.signal

    @property
    def onset(self) -> int:
        """First anomalous step."""
        return self.signature.onset_step

    @property
    def last(self) -> int:
        """Last anomalous step."""
        return self.signature.last_step

    def with_kind(self, kind: Kind) -> Evidence:
        """The same under another kind."""
        return replace(self, signature=replace(self.signature, kind=kind))

    def moved(self, by: float) -> Evidence:
        """The same with its centre moved: by what the peak's phase of a periodic run adds to it."""
        if by == 0.0 or not math.isfinite(by):
            return self
        return replace(self, signature=replace(self.signature, centre=self.signature.centre + by))


def of_departure(track: Track, departure: Departure, kind: Kind, *, may_raise: bool = True) -> Evidence:
    """A departure of a track as evidence."""
    # The walk back may have taken two noisy rows with it, so the jump is looked for in the first four.
    early = track.between(departure.onset, departure.onset + 4)
    level = sorted(
        departure.direction * (y - departure.centre)
        for y in track.between(departure.onset, min(departure.last, departure.onset + LEVEL_ROWS) + 1)
        if not math.isnan(y)
    )
    reached = max((departure.direction * (y - departure.centre) for y in early), default=0.0)
    signature = Signature(
        signal=track.name,
        kind=kind,
        transform=track.transform,
        centre=departure.centre,
        scale=departure.scale,
        threshold=departure.threshold,
        direction=departure.direction,
        onset_step=track.step(departure.onset),
        peak_step=track.step(departure.peak),
        peak_value=track.value(departure.peak),
        last_step=track.step(departure.last),
    )
    return Evidence(
        signature,
        departure.effect,
        departure.sigmas,
        departure.is_open,
        departure.is_settled,
        departure.num_rows,
        is_abrupt=reached >= 0.5 * departure.effect,
        level=level[len(level) // 2] if level else departure.effect,
        may_raise=may_raise,
    )
