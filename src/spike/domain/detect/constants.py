"""Which numbers does the detector stand on? Each with its reason; an operator may change any by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from spike.domain.errors import SpikeError


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything is relative to the run's own noise; the few absolute numbers are effect sizes and priors."""

    window_rows: int = 64
    """Healthy rows behind the centre: its two halves give level and slope. Longer lags behind a falling loss."""
    noise_rows: int = 128
    """Healthy prediction errors behind the scale."""
    tail_rows: int = 2048
    """Healthy prediction errors behind the tail estimate, which decides how rare a row is for this very run."""
    ready_rows: int = 12
    """Fewer healthy rows than this cannot tell noise; only priors and non-finite values speak before."""
    false_alarms: float = 0.01
    """Rows per thousand healthy ones that the tail estimate may let through, per signal and direction."""
    lone_sigmas: float = 8.0
    """A row or two of the loss alone, with a gradient that never moved or was not logged, count from here on: below,
    batches that are only hard look alike. A large jump counts without."""
    max_sigmas: float = 9.0
    """One row beyond this many scales always counts: no batch is that hard in a run that is otherwise calm."""
    min_sigmas: float = 6.0
    """One row never counts below this many scales, however thin the tail looks: six sigma, as OLMo has it."""
    large_jump: float = 0.18
    """ln 1.2: a loss that jumps by a fifth within a row is what people call a spike, also in a run that has hard
    batches now and then,"""
    large_sigmas: float = 6.0
    """... from this many scales on,"""
    calm_scale: float = 0.035
    """... where the usual noise is below 3.5 percent: small batches jump by a fifth for nothing."""
    seen_jump: float = 0.15
    """ln 1.16: two rows that were rare when they came and lifted the loss by this much stay so, also if as high ones
    follow (modded-nanogpt's step 265 was the second of its run); a single row must be a large jump for that."""
    accept_sigmas: float = 4.0
    """Rows beyond this never enter the baseline (one in 16,000 of a normal noise)."""
    onset_sigmas: float = 4.0
    """Walking back from a crossing stops where the signal is within this many scales. At three, one healthy row in a
    few hundred right before a jump is taken for its beginning, and with it a sound checkpoint is given up."""
    return_sigmas: float = 3.0
    """A row within this many scales is back in the usual noise."""
    onset_gap_rows: int = 2
    """A departure may touch its baseline for this many rows: BLOOM-176B's loss did between 31216 and 31218."""
    quiet_rows: int = 5
    """A departure is over after this many usual rows in a row."""
    settle_rows: int = 96
    """A departure that lasts this long and stands still is a new level; the baseline starts again there."""
    longest_rows: int = 512
    """A departure is cut here at the latest, so that a changed run gets a new baseline."""
    cusum_slack: float = 1.0
    """Scales subtracted from each row before adding up; small lasting shifts must exceed it to count."""
    cusum_limit: float = 8.0
    """Sum at which a lasting shift counts: about once in nine million rows of a normal noise at slack 1."""
    cusum_hold: float = 5.0
    """From this sum on rows wait outside the baseline until the sum has decided, so that a shift is not absorbed. A
    normal noise comes here once in ten thousand rows; from three on it is once in four hundred, and no shift more is
    found."""
    slow_weight: float = 9.0
    """Standard errors that a shift without one far row must add up to over its rows."""
    slow_mean: float = 1.7
    """... and their mean distance, in the same units: a level below this is a slow swing of the data."""
    level_sigmas: float = 1.5
    """Scales by which the middle row of a lasting departure must be away: below, a run of a hundred rows with a few far
    ones among them happens once in a few hundred thousand rows of a calm run."""
    cusum_cap: float = 5.0
    """A single row adds at most this much, so that one hard batch cannot fill the sum."""
    loss_prior: float = 0.08
    """Relative noise assumed of a loss before it was seen: typical of small batches, wide for large ones."""
    grad_norm_prior: float = 0.25
    """The same for a gradient norm."""
    prior_rows: float = 4.0
    """Weight of the prior in rows, fading to nothing when the window is full."""
    min_scale: float = 5e-4
    """A smaller relative noise is rounding, not noise."""
    min_jump: float = 0.02
    """A one-row loss jump below two percent is no incident in anybody's logbook, however smooth the run."""
    min_shift: float = 0.004
    """A lasting loss shift below this (0.01 nats at a loss of 2.5) is not worth a night."""
    lone_grad_norm: float = 1.1
    """ln 3: a gradient norm on its own, with a loss that never moves, must at least triple for one row."""
    lone_grad_shift: float = 0.3
    """ln 1.35: a lasting gradient norm shift on its own; a factor of sqrt(2) is a clipping or sharding bug."""
    stuck_nats: float = 0.0075
    """A loss that stays this much above its trend after a spike has not recovered: 0.01 nats less what a
    measured shift may fall short of the true one."""
    stuck_sigmas: float = 4.0
    """... provided that it is this many standard errors above."""
    trend_rows: int = 96
    """Rows on either side of an incident that the recovery compares: near enough for one smooth curve."""
    lasting_errors: float = 5.0
    """Standard errors of the step that a small lasting shift must reach; of three hundred healthy records of all shapes
    the likeliest step of none was beyond 4.1."""
    drift_sigmas: float = 6.0
    """Standard errors by which a block level must exceed the best earlier one to be a slow drift."""
    drift_rise: float = 0.02
    """... and the relative rise it must have reached."""
    skipped_run: int = 4
    """Consecutive skipped steps that are no scaler at work any more: a scale one power of 16 too high."""
    nonfinite_run: int = 3
    """Consecutive non-finite gradient norms beside a finite loss that are no scaler at work any more."""
    vanished_rows: int = 4
    """Rows without a loss that the same file had in every row before: fewer are a torn line or another kind of line."""
    startup_share: float = 0.1
    """Skipped steps in this first share of a record are the scaler's search for its scale."""
    startup_rows: int = 40
    """... or within this many rows."""
    frozen_rows: int = 10
    """Equal values in a row that no noise produces, at three digits or more."""
    diverged: float = 0.35
    """ln 1.42: a loss that ends this far above its baseline and does not come down has diverged."""
    join_rows: int = 3
    """Departures of two signals at most this far apart are one incident."""
    period_correlation: float = 0.5
    """Autocorrelation from which a swing is a period of the data order."""

    def changed(self, changes: Mapping[str, float]) -> Constants:
        """A copy with the named constants changed. Raises SpikeError naming an unknown one."""
        kinds = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        unknown = sorted(set(changes) - set(kinds))
        if unknown:
            raise SpikeError(
                f"the detector has no constant {', '.join(map(repr, unknown))}",
                hint="known ones: " + ", ".join(kinds),
            )
        return replace(self, **{name: kinds[name](value) for name, value in changes.items()})
