"""What do the experiments of one case share? The baseline, its healthy counterpart, donors, suspect steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from spike.actions.experiment.investigation import Investigation
from spike.actions.experiment.live_shards import shard_digests
from spike.actions.experiment.reseeded import licence_by_seeds
from spike.actions.experiment.trials import Baseline, Performed, judge, perform, untestable
from spike.casefile.codec import to_payload
from spike.domain.case import PinnedCheckpoint
from spike.domain.checkpoint import CheckpointScan
from spike.domain.factors import differences, observe, uncontrolled
from spike.domain.licence import judge_licence, step_offset
from spike.domain.measured import NotMeasured
from spike.domain.noise import noise_floor
from spike.domain.receipt import load_receipt
from spike.domain.trace import CapturedBatch, TensorPrint
from spike.domain.traced import equal_in_every_bit
from spike.domain.trial import (
    FactorDifference,
    Grade,
    Licence,
    NoiseFloor,
    OutcomeKind,
    TrialResult,
    TrialRun,
    TrialSpec,
)
from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint

NUM_DONORS = 6
"""Healthy steps whose batches are kept as control batches."""
NUM_SUSPECTS = 10
"""Steps around the onset whose batches are kept for substitution."""
CLEAN_REPEATS = 2
"""Repeats made when the incident stays away: one clean replay is an accident, three are a finding."""
HEALTHY_LEAD = 2
"""Healthy steps before a transplanted batch, so that its own licence can be checked."""


class Unavailable(Exception):
    """An experiment cannot be set up for this case; the text says why, as a clause."""


@dataclass(slots=True)
class Bench:
    """The state of the trials of one case, built up as they run. Everything in it can be rebuilt from the case."""

    investigation: Investigation
    baseline: Baseline
    licence: Licence
    replay: TrialResult
    repeats: tuple[Performed, ...]
    results: dict[str, TrialResult] = field(default_factory=dict)
    """By experiment name."""
    performed: dict[str, Performed] = field(default_factory=dict)
    healthy: Baseline | None = None
    """Unchanged trial from an earlier checkpoint, for the healthy-state cells."""
    suspect_step: int | None = None
    """Attempted step whose batch is under suspicion, once narrowed."""
    _scans: dict[str, CheckpointScan] = field(default_factory=dict)

    @property
    def offset(self) -> int:
        """Logged step minus attempted step."""
        return self.baseline.offset

    @property
    def first_step(self) -> int:
        """Attempted steps that the last good checkpoint holds."""
        return self.investigation.last_good.step

    @property
    def onset(self) -> int:
        """The onset in attempted steps."""
        return self.investigation.incident.onset_step - self.offset

    @property
    def last(self) -> int:
        """Last judged step, in attempted steps."""
        return self.investigation.last_step - self.offset

    def suspect_steps(self) -> tuple[int, ...]:
        """Steps whose inputs could have caused what was seen: from the one before the onset to the end."""
        if self.suspect_step is not None:
            return (self.suspect_step,)
        return tuple(range(max(self.onset - 1, self.first_step + 1), self.last + 1))

    def healthy_steps(self) -> tuple[int, ...]:
        """Replayed steps before the suspect ones."""
        return tuple(range(self.first_step + 1, max(self.onset - 1, self.first_step + 1)))

    def donors(self) -> tuple[CapturedBatch, ...]:
        """Captured batches that are known to be healthy, newest last."""
        found = [b for b in self.baseline.performed.run.batches if b.step < self.onset - 1]
        if self.healthy is not None:
            found += self.healthy.performed.run.batches
        return tuple(sorted(found, key=lambda b: (b.step, b.rank, b.micro)))

    def earlier(self) -> PinnedCheckpoint | None:
        """The newest checkpoint older than the last good one."""
        return next(iter(self.investigation.case.facts.earlier), None)

    def scan(self, checkpoint: PinnedCheckpoint) -> CheckpointScan:
        """Digest and statistics of every tensor of a pinned checkpoint; read once."""
        path = str(self.investigation.pinned_path(checkpoint))
        if path not in self._scans:
            self._scans[path] = scan_checkpoint(inspect_checkpoint(Path(path)))
        return self._scans[path]

    def shards(self, run: TrialRun, checkpoint: PinnedCheckpoint | None = None) -> dict[TensorPrint, str]:
        """What a checkpoint (the last good one) holds where this trial's ranks held shards after its step."""
        chosen = checkpoint or self.investigation.last_good
        return shard_digests(run.traces, inspect_checkpoint(self.investigation.pinned_path(chosen)), step=chosen.step)

    def run(self, experiment: str, spec: TrialSpec) -> TrialResult:
        """Perform and judge one experiment against the baseline, and remember it under its name."""
        performed = perform(self.investigation, spec)
        by_knob = uses_knob(self.investigation, spec)
        result = judge(self.investigation, performed, self.baseline, by_knob=by_knob)
        if by_knob and result.outcome.kind is OutcomeKind.UNTESTABLE:
            # The command's own way did not make this change and no other; the probe has a way of its own.
            return self.run(experiment, replace(spec, id=f"{spec.id}-by-probe", by_probe=True))
        self.results[experiment] = result
        self.performed[experiment] = performed
        return result


def uses_knob(investigation: Investigation, spec: TrialSpec) -> bool:
    """True where the command itself makes the change of this trial, by arguments that the operator named."""
    change = spec.intervention
    return change is not None and not spec.by_probe and bool(investigation.run.knob(change.name, change.factor.value))


def baseline_spec(investigation: Investigation) -> TrialSpec:
    """The unchanged trial from the last good checkpoint through the suspect steps."""
    start, onset = investigation.last_good, investigation.incident.onset_step
    # The log may count from 0 or 1 and nothing is known about it before the first trial: one step of margin.
    stop = investigation.last_step + 1
    suspects = range(max(onset - 2, start.step + 1), min(onset + NUM_SUSPECTS, stop) + 1)
    donors = range(max(start.step + 1, onset - 2 - NUM_DONORS), max(onset - 2, start.step + 1))
    return TrialSpec(
        id="replay",
        purpose=f"the unchanged command from step {start.step} through step {stop}",
        checkpoint=start.original,
        first_step=start.step,
        stop_after=stop,
        capture_steps=tuple(sorted({start.step + 1, *donors, *suspects})),
        fingerprint_steps=tuple(sorted({start.step, max(onset - 2, start.step)})),
        module_steps=tuple(range(max(onset - 1, start.step + 1), min(onset + 2, stop) + 1)),
        role="baseline",
    )


def repeat_spec(baseline: TrialSpec, number: int) -> TrialSpec:
    """The same trial again; nothing is captured, everything else is equal."""
    return TrialSpec(
        id=f"repeat-{number}",
        purpose=f"the unchanged trial again ({number}), to measure how far it differs from itself",
        checkpoint=baseline.checkpoint,
        first_step=baseline.first_step,
        stop_after=baseline.stop_after,
        capture_steps=(-number,),  # no such step: keeps the spec distinct from its siblings
        fingerprint_steps=baseline.fingerprint_steps,
        role="repeat",
    )


def open_bench(investigation: Investigation) -> Bench:
    """Run (or reload) the baseline and its repeats, and judge licence, noise floor and outcome.

    More repeats are made where the first one was not bit-exact, and where the incident stayed away.
    """
    spec = baseline_spec(investigation)
    performed = perform(investigation, spec)
    runs = [performed]
    traces = performed.run.traces
    offset = step_offset(performed.signals, traces[0]) if traces else 0
    if traces:
        runs.append(perform(investigation, repeat_spec(spec, 1)))
    before = investigation.incident.onset_step - offset
    noise = noise_floor([p.run for p in runs], before_step=before)
    result = judge(investigation, performed, None)
    wanted = CLEAN_REPEATS if result.outcome.kind is OutcomeKind.ABSENT else 1
    if not noise.bit_exact:
        wanted = max(wanted, investigation.run.limits.repeats)
    while traces and len(runs) - 1 < wanted:
        runs.append(perform(investigation, repeat_spec(spec, len(runs))))
        noise = noise_floor([p.run for p in runs], before_step=before)
    vectors = [observe(p.run) for p in runs]
    same = uncontrolled(vectors[0], vectors[1:])
    licence = _licence(investigation, performed, offset, noise)
    moving = [d for v in vectors[1:] for d in differences(vectors[0], v, same)]
    if moving:
        licence = _not_held_still(moving[0], offset)
    elif not licence.holds and noise.bit_exact and result.outcome.kind is not OutcomeKind.UNTESTABLE:
        by_seeds, seeded = licence_by_seeds(investigation, performed, offset=offset)
        runs += seeded
        wrong = _resumed_wrongly(investigation, performed) if by_seeds.holds else []
        if wrong:  # following the record by chance is no licence for a state that was not loaded
            by_seeds = replace(by_seeds, grade=Grade.REFUSED, reason="; ".join(wrong))
        reason = by_seeds.reason if by_seeds.holds else f"{licence.reason} ({by_seeds.reason})"
        licence = replace(by_seeds, reason=reason, first_difference=licence.first_difference, step_offset=offset)
    baseline = Baseline(performed, noise, offset, same)
    if licence.acts_from is not None:
        incident = replace(investigation.incident, onset_step=licence.acts_from)
        investigation = replace(investigation, incident=incident)
    bench = Bench(investigation, baseline, licence, result, tuple(runs[1:]))
    bench.results["replay"] = result
    bench.performed["replay"] = performed
    payload = {"licence": to_payload(licence), "noise": to_payload(noise), "outcome": to_payload(result.outcome)}
    investigation.case.write_json("licence.json", {"schema": "spike.licence/1", **payload})
    return bench


def _licence(investigation: Investigation, performed: Performed, offset: int, noise: NoiseFloor) -> Licence:
    start = investigation.last_good
    found = judge_licence(
        investigation.record,
        performed.signals,
        first_step=start.step + offset,
        onset=investigation.incident.onset_step,
        noise=noise,
    )
    if not found.holds:
        reasons = [*_resumed_wrongly(investigation, performed), found.reason, *_not_restored(investigation)]
        found = replace(found, reason="; ".join(reasons))
    if found.grade is Grade.LOG_EXACT:
        first, last = start.step + 1 + offset, (found.acts_from or investigation.incident.onset_step) - 1
        exact = equal_in_every_bit(investigation.record, performed.run.traces, offset=offset, first=first, last=last)
        if exact:
            reason = f"{found.reason}; {' and '.join(exact)} of steps {first}-{last}, as traced, in every bit"
            found = replace(found, grade=Grade.BIT_EXACT, reason=reason)
    return replace(found, step_offset=offset)


def _not_restored(investigation: Investigation) -> list[str]:
    """What the checkpoint cannot restore, and a resumed run may therefore do otherwise than the recorded one."""
    missing = inspect_checkpoint(investigation.pinned_path(investigation.last_good)).missing
    effects = {"data-cursor": "its place in the data", "rng": "its random generators"}
    lost = [text for name, text in effects.items() if name in missing]
    if not lost:
        return []
    return [f"the checkpoint does not hold {' or '.join(lost)}: a resumed run may see other batches or draws"]


def _not_held_still(moving: FactorDifference, offset: int) -> Licence:
    reason = (
        f"the unchanged command is not the same twice: its {moving.factor.value} differs at {moving.where}, so that no "
        "difference between trials can be laid to a change (seed the order of the data, save its position)"
    )
    return Licence(Grade.REFUSED, reason, step_offset=offset)


def _resumed_wrongly(investigation: Investigation, performed: Performed) -> list[str]:
    """What went wrong before the first step: reasons that an operator can act on, the most basic one first."""
    traces, start = performed.run.traces, investigation.last_good
    failed = untestable(performed.run)
    if failed:
        return [failed]
    reasons = []
    checkpoint = inspect_checkpoint(investigation.pinned_path(start))
    scan = scan_checkpoint(checkpoint)
    receipt = load_receipt(traces, scan, shard_digests(traces, checkpoint, step=start.step))
    if not isinstance(receipt, NotMeasured) and receipt.parameters:
        opened = any(trace.process.opened for trace in traces)
        how = "although it opened the file" if opened else "and it never opened the file"
        count, first = len(receipt.parameters), receipt.parameters[0]
        reasons.append(
            f"the command did not load the checkpoint of step {start.step}, {how}: {count} of "
            f"{receipt.num_parameters} live parameters are not in it, first {first.name} of rank {first.rank}"
        )
    loss = performed.signals.get("loss")
    if loss is not None and loss.steps.size and int(loss.steps[0]) not in range(start.step, start.step + 2):
        expected = start.step + 1
        reasons.append(f"the command counts its first step as {int(loss.steps[0])}, the checkpoint says {expected}")
    return reasons


def open_healthy(bench: Bench) -> Baseline | None:
    """The unchanged trial in an earlier, healthy state; None where there is no earlier checkpoint."""
    start = bench.earlier()
    if bench.healthy is not None or start is None:
        return bench.healthy
    span = max(bench.last - bench.onset, 1)
    stop = min(start.step + HEALTHY_LEAD + 1 + span, bench.onset - 2)
    if stop <= start.step + HEALTHY_LEAD:
        return None
    spec = TrialSpec(
        id="healthy-state",
        purpose=f"the unchanged command in an earlier state, from step {start.step} to step {stop}",
        checkpoint=start.original,
        first_step=start.step,
        stop_after=stop,
        capture_steps=tuple(range(start.step + 1, min(start.step + NUM_DONORS, stop) + 1)),
        fingerprint_steps=(start.step,),
        role="control",
    )
    performed = perform(bench.investigation, spec)
    if performed.run.traces:
        bench.healthy = Baseline(performed, bench.baseline.noise, bench.offset, bench.baseline.uncontrolled)
    return bench.healthy
