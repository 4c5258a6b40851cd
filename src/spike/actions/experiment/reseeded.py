"""What does the command do with other random numbers? For runs that resume without their generators' state.

Repeats of such a command agree to the bit, and none equals the record. What counts then is whether trials with other
seeds, on the same batches, follow the record as closely as they follow each other.
"""

from __future__ import annotations

from dataclasses import replace

from spike.actions.experiment.investigation import Investigation
from spike.actions.experiment.trials import Performed, perform, untestable
from spike.domain.noise import noise_floor
from spike.domain.seeded import FEWEST_STEPS, judge_seeded
from spike.domain.trial import Factor, Grade, Intervention, Licence, TrialRun, TrialSpec

NUM_SEEDS = 3
"""Trials with a seed of their own, beside the baseline: six pairs."""
FIRST_SEED = 41_017
"""Any number that no command seeds itself with."""


def licence_by_seeds(
    investigation: Investigation, baseline: Performed, *, offset: int
) -> tuple[Licence, tuple[Performed, ...]]:
    """The licence that trials with other seeds give, with its reason if it is refused, and these trials."""
    spec, onset = baseline.run.spec, investigation.incident.onset_step
    before = onset - offset
    if before - spec.first_step - 1 < FEWEST_STEPS:
        return _refused(f"fewer than {FEWEST_STEPS} healthy steps lie between the checkpoint and the onset"), ()
    found: list[Performed] = []
    for number in range(NUM_SEEDS):
        performed = perform(investigation, _reseeded(spec, number))
        found.append(performed)
        problem = untestable(performed.run) or _other_batches(baseline.run, performed.run, before)
        if not problem and noise_floor([baseline.run, performed.run], before_step=before).bit_exact:
            problem = "other random numbers change nothing, so they are not the difference"
        if problem:
            return _refused(problem), tuple(found)
    signals = [baseline.signals, *(p.signals for p in found)]
    first = spec.first_step + 1 + offset
    return judge_seeded(investigation.record, signals, first_step=first, onset=onset), tuple(found)


def _refused(reason: str) -> Licence:
    return Licence(Grade.REFUSED, reason)


def _reseeded(spec: TrialSpec, number: int) -> TrialSpec:
    return replace(
        spec,
        id=f"reseeded-{number + 1}",
        purpose=f"the unchanged command with other random numbers ({number + 1} of {NUM_SEEDS}), to see what they move",
        intervention=Intervention("reseed", Factor.RNG, (), (("seed", FIRST_SEED + number),)),
        capture_steps=(),
        module_steps=(),
        role="repeat",
    )


def _other_batches(one: TrialRun, other: TrialRun, before_step: int) -> str:
    """Why the two did not see the same data, or "". A step whose batch could not be identified counts as another."""
    for left, right in zip(one.traces, other.traces, strict=False):
        for step in left.steps:
            if step.step >= before_step:
                continue
            twin = right.step(step.step)
            ours, theirs = ([m.batch for m in s.micro_batches] if s is not None else [] for s in (step, twin))
            if not ours or ours != theirs or not all(ours):
                return f"the data of step {step.step} depends on the seed, so that the record's batches are not known"
    return ""
