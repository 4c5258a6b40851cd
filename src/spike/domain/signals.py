"""What is a signal? A series keyed by (step, rank), as the run's own logs recorded it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The names every reader maps its columns to. A column that is none of these keeps its own name.
LOSS = "loss"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "lr"
LOSS_SCALE = "loss_scale"
SKIPPED = "skipped"
TOKENS = "tokens"
THROUGHPUT = "throughput"
UPDATE_NORM = "update_norm"
PARAM_NORM = "param_norm"
HELD_OUT_LOSS = "eval_loss"

FULL_DIGITS = 17
"""Significant decimal digits of a double written without rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One signal of one rank, in the order of the record; steps never decrease (see `Rewind`)."""

    name: str
    """Canonical name (constants above) or the column's own name."""
    steps: NDArray[np.int64]
    """Step of each row, shape (n,), as logged: counting from 0 or 1 is the stack's business."""
    values: NDArray[np.float64]
    """Value of each row, shape (n,). NaN and infinities are data and stay."""
    rank: int | None = None
    """Rank that wrote it; None for a value that stands for the whole job."""
    source: str = ""
    """File it came from, relative to the run where possible."""
    column: str = ""
    """What the file calls it."""
    digits: int = FULL_DIGITS
    """Most significant decimal digits seen in the source: how much an equality can prove."""

    def at(self, step: int) -> float | None:
        """The value logged for `step` (the last one, after a rewind), or None."""
        hits = np.flatnonzero(self.steps == step)
        return float(self.values[hits[-1]]) if hits.size else None


@dataclass(frozen=True, slots=True)
class Rewind:
    """The step counter went back: evidence of a restart. The later rows win in `Series`."""

    from_step: int
    to_step: int
    source: str
    restarted_from_scratch: bool = False
    """The loss went back to its starting level: another run in the same file."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a source that could not be read, located."""

    source: str
    line: int
    """1-based; 0 where the source has no lines."""
    byte_offset: int
    reason: str
    benign: bool
    """True for the torn last line of a live file; False for damage in the middle."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file that signals were read from."""

    path: str
    format: str
    num_rows: int
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """Everything the logs say, after merging files and restarts."""

    series: tuple[Series, ...] = ()
    sources: tuple[Source, ...] = ()
    rewinds: tuple[Rewind, ...] = ()
    damages: tuple[Damage, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """(pattern, sentence) facts that a reader saw and a detector needs: for example
    ("filtered-nan", "loss logged as 0.0 with a NaN grad_norm at steps 3-6")."""
    superseded: tuple[Series, ...] = ()
    """Rows that a restart replaced, one series for each signal and rewind."""

    def get(self, name: str, rank: int | None = None) -> Series | None:
        """The job-wide series of this name; with `rank`, that rank's; the lowest rank's where no job-wide one is."""
        named = [s for s in self.series if s.name == name]
        if rank is not None:
            return next((s for s in named if s.rank == rank), None)
        whole = next((s for s in named if s.rank is None), None)
        if whole is not None:
            return whole
        return min(named, key=lambda s: s.rank if s.rank is not None else -1, default=None)

    def names(self) -> tuple[str, ...]:
        """Distinct signal names, in the order first seen."""
        return tuple(dict.fromkeys(s.name for s in self.series))
