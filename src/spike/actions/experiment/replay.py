"""Does it happen again? The unchanged command from the last good checkpoint: licence first, then the outcome."""

from __future__ import annotations

from dataclasses import dataclass

from spike.actions.experiment.bench import Bench, open_bench
from spike.actions.experiment.investigation import Investigation
from spike.domain.trial import OutcomeKind


@dataclass(frozen=True, slots=True)
class Replay:
    """What `spike replay` answers."""

    bench: Bench

    @property
    def is_believable(self) -> bool:
        """True where the licence holds and the trial could be judged."""
        return self.bench.licence.holds and self.bench.replay.outcome.kind is not OutcomeKind.UNTESTABLE


def replay(investigation: Investigation) -> Replay:
    """Run the baseline and its repeats, and record the licence in the case."""
    bench = open_bench(investigation)
    outcome, licence = bench.replay.outcome, bench.licence
    investigation.case.record(
        "replay", f"licence {licence.grade.value}; outcome {outcome.kind.value}", 0, ("licence.json",)
    )
    return Replay(bench)
