"""What does one change show? A single named experiment against the licensed baseline."""

from __future__ import annotations

from spike.actions.experiment.bench import Bench, Unavailable
from spike.actions.experiment.experiments import names, prepare, run_experiment
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.trial import TrialResult


def branch(bench: Bench, experiment: str) -> TrialResult:
    """Run the experiment of this name.

    Raises `SpikeError` where the replay is not licensed (no outcome would count), where there is no such
    experiment, or where it cannot be set up for this case.
    """
    if experiment not in names():
        raise SpikeError(f"there is no experiment {experiment!r}", hint=f"one of: {', '.join(sorted(names()))}")
    if not bench.licence.holds:
        raise SpikeError(
            f"no branch counts before the replay is licensed: {bench.licence.reason}",
            hint="spike replay",
            exit_code=ExitCode.INCONCLUSIVE,
        )
    try:
        prepared = prepare(bench, experiment)
    except Unavailable as reason:
        raise SpikeError(
            f"{experiment} cannot be run here: {reason}",
            hint="spike branch --list, which says what can",
            exit_code=ExitCode.INCONCLUSIVE,
        ) from reason
    return run_experiment(bench, experiment, prepared)


def available(bench: Bench) -> tuple[tuple[str, str], ...]:
    """(experiment, "" or why it cannot be run here). Prepares each, so donors may be captured."""
    rows = []
    for name in names():
        try:
            prepare(bench, name)
            rows.append((name, ""))
        except Unavailable as reason:
            rows.append((name, str(reason)))
    return tuple(rows)
