"""Is a resumed run back on the trend that it had before its incident? Row by row, until it is clear.

Only rows from the incident's own step on count: what a resumed run does before it proves little. Without an incident
to compare with, the answer is only that no new one was found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from spike.domain.detect import Constants, exceeds
from spike.domain.detect.recovery import Recovery, recovery
from spike.domain.detect.track import track
from spike.domain.incident import Incident
from spike.domain.signals import LOSS, Series

GIVE_UP = 4
"""Times the asked-for rows after which a run that has not been healthy that long is not going to be."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a resumed run stands."""

    num_healthy: int
    """Healthy rows in a row up to now."""
    wanted: int
    is_back: bool
    has_failed: bool
    """Long past the point at which a healthy run would have been back."""
    words: str


@dataclass(slots=True)
class Returning:
    """The rows of a resumed run so far."""

    wanted: int
    """Healthy rows in a row that are asked for."""
    incident: Incident | None
    """The one that the run was resumed from."""
    constants: Constants = field(default_factory=Constants)
    num_healthy: int = 0
    num_rows: int = 0
    """Rows that counted."""
    why_broken: str = ""
    """What was last off."""

    def take(self, step: int, values: Mapping[str, float]) -> None:
        """One new row: what was logged for this step, by signal."""
        if self.incident is not None and step < self.incident.onset_step:
            return
        self.num_rows += 1
        off = self._off(step, values)
        self.num_healthy = 0 if off else self.num_healthy + 1
        self.why_broken = off or self.why_broken

    def stand(self, loss: Series | None, resumed_at: int) -> Standing:
        """The answer by now. `loss` is the record as it goes on, from before the incident; new since `resumed_at`."""
        if self.incident is None:
            words = f"{self.num_healthy} healthy rows in a row; there was no incident before to compare with"
            return self._standing(self.num_healthy >= self.wanted, words)
        before = f"the trend before the incident at step {self.incident.onset_step}"
        if self.num_healthy < self.wanted:
            why = f"; {self.why_broken}" if self.why_broken else ""
            return self._standing(
                False, f"not back on {before}: {self.num_healthy} of {self.wanted} healthy rows in a row{why}"
            )
        level = self._level(loss, self.incident.onset_step, resumed_at)
        if level is not None and not level.is_back(self.constants):
            shift = f"the loss stays {level.shift_nats:+.3g} off it, give or take {level.error_nats:.2g}"
            return self._standing(False, f"not back on {before}: {shift}")
        compared = "" if level is not None else "; its level was not compared, too few losses were logged before"
        return self._standing(True, f"back on {before}: {self.num_healthy} healthy rows in a row{compared}")

    def _standing(self, is_back: bool, words: str) -> Standing:
        failed = not is_back and self.num_rows >= GIVE_UP * max(self.wanted, 1)
        return Standing(self.num_healthy, self.wanted, is_back, failed, words)

    def _off(self, step: int, values: Mapping[str, float]) -> str:
        for name, value in values.items():
            signature = self.incident.signature(name) if self.incident is not None else None
            if not math.isfinite(value) and (name == LOSS or signature is not None):
                return f"{name} is {value} at step {step}"
            if signature is not None and exceeds(signature, value):
                usual = math.exp(signature.centre) if signature.transform == "log" else signature.centre
                return f"{name} is {value:.4g} at step {step}, where {usual:.4g} was usual"
        return ""

    def _level(self, loss: Series | None, onset: int, resumed_at: int) -> Recovery | None:
        """The step between the loss before the incident (or the restart) and the loss since; None where unknown."""
        if loss is None or loss.steps.size == 0:
            return None
        boundary = min(onset, resumed_at + 1)
        usual = np.flatnonzero(np.isfinite(loss.values))
        ready = track(loss, self.constants)
        found = recovery(ready, boundary, max(resumed_at, boundary - 1), int(loss.steps[-1]) + 1, usual, self.constants)
        return found if found.is_known and found.error_nats > 0 else None
