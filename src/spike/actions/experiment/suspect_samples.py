"""Which step, which rank, which samples? A confirmed bad batch, narrowed down by trials with control batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from spike.actions.experiment.bench import Bench
from spike.actions.experiment.experiments import pair_batches
from spike.domain.eliminate import Evidence
from spike.domain.measured import measured
from spike.domain.outcome import REPRODUCED_SHARE
from spike.domain.reduce import reduce_items
from spike.domain.samples import suspicious
from spike.domain.trace import CapturedBatch
from spike.domain.trial import Factor, Intervention, OutcomeKind, TrialSpec
from spike.domain.verdict import Finding, Place, Strength
from spike.readers.batch_file import sample_rows

MAX_SAMPLE_TRIALS = 10
MAX_RANK_TRIALS = 10
"""Halving finds one rank of 512."""
FAINT_SHARE = 0.10
"""A part of the batch brings back a part of the incident; healthy samples scatter by some per cent of its excess."""
SCATTER = 1.5
"""... or by what control batches left of it, and as much again by half."""


@dataclass(frozen=True, slots=True)
class Located:
    """A place, with what it stands on."""

    place: Place
    findings: tuple[Finding, ...] = ()


def narrow_step(bench: Bench) -> None:
    """After a control batch cured: which step's batch is it? Tries the onset alone, then the step before it."""
    if bench.suspect_step is not None:
        return
    batches, donors = bench.baseline.performed.run.batches, bench.donors()
    for step in (bench.onset, bench.onset - 1):
        if step <= bench.first_step:
            continue
        base = bench.baseline.performed.run.spec
        change = Intervention(
            "control-batch", Factor.BATCH, (step,), (("donors", pair_batches((step,), batches, donors)),)
        )
        spec = replace(
            base,
            id=f"control-batch-step-{step}",
            purpose=f"a control batch at step {step} alone, to find the step that matters",
            intervention=change,
            capture_steps=(),
            module_steps=(),
            fingerprint_steps=(base.first_step,),
            role="localise",
        )
        result = bench.run(f"control-batch-step-{step}", spec)
        if result.outcome.kind is OutcomeKind.ABSENT:
            bench.suspect_step = step
            return


def samples(bench: Bench, _evidence: Evidence, located: Located) -> Located:
    """The samples of the suspect step that are enough to bring the incident, and the rank that they are on."""
    step = bench.suspect_step
    batches = [b for b in bench.baseline.performed.run.batches if b.step == step]
    ranks = sorted({b.rank for b in batches})
    if step is None or not batches:
        return located
    rank = located.place.rank if located.place.rank in ranks else None
    if len(ranks) > 1 and rank is None:
        located, rank = _suspect_rank(bench, step, batches, located)
        if rank is None:
            return located
        located = replace(located, place=replace(located.place, rank=rank))
    own = sorted((b for b in batches if rank is None or b.rank == rank), key=lambda b: (b.rank, b.micro))
    sizes = [measured(b.num_samples) for b in own]
    if any(size is None for size in sizes):
        return located
    total = sum(size for size in sizes if size is not None)
    if total < 2:
        return located
    trial_ids: list[str] = []
    reduction = reduce_items(
        range(total),
        _sample_test(bench, step, tuple(own), trial_ids),
        guess=_guess(bench, own),
        max_tests=MAX_SAMPLE_TRIALS,
    )
    if not reduction.items:
        finding = Finding(
            f"the samples were not narrowed down: {reduction.reason}", Strength.OBSERVED, tuple(trial_ids)
        )
        return replace(located, findings=(*located.findings, finding))
    text = f"samples {', '.join(map(str, reduction.items))} of step {step}: {reduction.reason}"
    place = replace(located.place, samples=reduction.items)
    return Located(place, (*located.findings, Finding(text, Strength.INTERVENED, tuple(trial_ids))))


def _guess(bench: Bench, batches: list[CapturedBatch]) -> tuple[int, ...]:
    """Samples that look unlike the healthy ones in any tensor of the batch, counted over its micro-batches."""
    healthy = [sample_rows(Path(b.path)) for b in bench.donors()]
    found: set[int] = set()
    offset = 0
    for batch in batches:
        tensors = sample_rows(Path(batch.path))
        for place, rows in enumerate(tensors):
            twins = [h[place] for h in healthy if len(h) == len(tensors)]
            found |= {offset + i for i in suspicious(rows, twins)}
        offset += measured(batch.num_samples) or 0
    return tuple(sorted(found))


def _suspect_rank(
    bench: Bench, step: int, batches: list[CapturedBatch], located: Located
) -> tuple[Located, int | None]:
    """The one rank whose batch is enough to bring the incident, by trials that give the other ranks control batches."""
    ranks = sorted({b.rank for b in batches})
    odd = tuple(r for r in ranks if _guess(bench, [b for b in batches if b.rank == r]))
    trial_ids: list[str] = []

    def test(kept: tuple[int, ...]) -> bool | None:
        replaced = tuple(b for b in batches if b.rank not in kept)
        if not replaced:
            return True
        donors = pair_batches((step,), replaced, bench.donors())
        change = Intervention("control-batch", Factor.BATCH, (step,), (("donors", donors),))
        name = f"keep-rank-{'-'.join(map(str, kept[:4]))}{'-and-more' if len(kept) > 4 else ''}"
        purpose = (
            f"of the batches of step {step} only those of rank {', '.join(map(str, kept))}, controls on the others"
        )
        return _still_there(bench, name, purpose, change, trial_ids)

    found = reduce_items(ranks, test, guess=odd, max_tests=MAX_RANK_TRIALS)
    shown = ", ".join(map(str, found.items)) if found.items else ""
    text = (
        f"rank {shown} of step {step}: {found.reason}" if shown else f"the rank was not narrowed down: {found.reason}"
    )
    strength = Strength.INTERVENED if shown else Strength.OBSERVED
    located = replace(located, findings=(*located.findings, Finding(text, strength, tuple(trial_ids))))
    return located, found.items[0] if len(found.items) == 1 else None


def _sample_test(
    bench: Bench, step: int, batches: tuple[CapturedBatch, ...], trial_ids: list[str]
) -> Callable[[tuple[int, ...]], bool | None]:
    donors = pair_batches((step,), batches, bench.donors())

    def test(kept: tuple[int, ...]) -> bool | None:
        change = Intervention("mask-samples", Factor.BATCH, (step,), (("keep", kept), ("donors", donors)))
        name = f"keep-{'-'.join(map(str, kept[:6]))}{'-and-more' if len(kept) > 6 else ''}"
        purpose = f"of the batch of step {step} only {', '.join(map(str, kept))}, control samples for the rest"
        return _still_there(bench, name, purpose, change, trial_ids)

    return test


def _still_there(bench: Bench, name: str, purpose: str, change: Intervention, trial_ids: list[str]) -> bool | None:
    """Whether a noticeable part of the incident is left with this change; None where the trial shows nothing."""
    base = bench.baseline.performed.run.spec
    spec = TrialSpec(
        id=name,
        purpose=purpose,
        checkpoint=base.checkpoint,
        first_step=base.first_step,
        stop_after=base.stop_after,
        intervention=change,
        fingerprint_steps=(base.first_step,),
        role="localise",
    )
    # By its purpose, which names every rank or sample kept: ids are cut short, and two may be alike.
    result = bench.run(f"{change.name}: {purpose}", spec)
    trial_ids.append(result.spec.id)
    if result.outcome.kind is OutcomeKind.UNTESTABLE:
        return None
    usual = _left_by_controls(bench)
    return any(share > _faintest(usual.get(signal, 0.0)) for signal, share in result.outcome.shares)


def _left_by_controls(bench: Bench) -> dict[str, float]:
    """What is left of the incident with control batches alone, by signal: the scatter of healthy samples."""
    names = ("control-batch", f"control-batch-step-{bench.suspect_step}")
    left: dict[str, float] = {}
    for name in names:
        for signal, share in bench.results[name].outcome.shares if name in bench.results else ():
            left[signal] = max(share, left.get(signal, 0.0))
    return left


def _faintest(usual: float) -> float:
    """The share of the incident that counts as a part of it."""
    return min(REPRODUCED_SHARE, max(FAINT_SHARE, SCATTER * usual))
