"""Which facts do the trials of a case give? Everything that playbooks may refer to beyond the checks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from spike.actions.experiment.bench import Bench
from spike.actions.experiment.code_history import code_history
from spike.domain.checkpoint import Role
from spike.domain.factors import same_number
from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.licence import judge_licence
from spike.domain.measured import NotMeasured
from spike.domain.observations import first_difference, precision, rebuild_facts, receipt_facts, supervised
from spike.domain.ranks import agreement_fact, rank_agreement
from spike.domain.receipt import compare_rebuild, load_receipt
from spike.domain.schedule import Departure, Schedule, first_departure
from spike.domain.signals import LEARNING_RATE
from spike.domain.trial import Grade
from spike.domain.verdict import Place
from spike.readers.batch_file import integer_rows
from spike.readers.checkpoints import inspect_checkpoint

MIN_HISTORY = 8
"""Logged rates up to the checkpoint that make a history of the schedule."""


def baseline_facts(bench: Bench) -> tuple[Fact, ...]:
    """Facts that the unchanged trial gives: batch, precision, load receipt, ranks, learning rate, signal."""
    performed = bench.baseline.performed
    evidence = (performed.id,)
    traces = performed.run.traces
    receipt = load_receipt(traces, bench.scan(bench.investigation.last_good), bench.shards(performed.run))
    return (
        _non_finite(bench),
        supervised(traces, bench.suspect_steps(), evidence),
        precision(traces, evidence),
        *receipt_facts(receipt, evidence),
        _ranks(bench),
        _lr_fact(bench),
    )


def _non_finite(bench: Bench) -> Fact:
    incident = bench.investigation.incident
    bad = [s for s in incident.signatures if not math.isfinite(s.peak_value)]
    if bad:
        text = f"{bad[0].signal} is {bad[0].peak_value} at step {bad[0].peak_step}"
        return Fact("signal.non-finite", "yes", text, ("evidence/signals.parquet",))
    performed = bench.baseline.performed
    for trace in performed.run.traces:
        for step in trace.steps:
            if step.step in bench.suspect_steps() and not math.isfinite(step.loss):
                # Some loggers replace a NaN (the Trainer by 0.0 or a running mean); the process does not.
                text = f"the loss of step {step.step} is {step.loss} in the process, whatever the log says"
                return Fact("signal.non-finite", "yes", text, (performed.id,), step=step.step)
    return Fact("signal.non-finite", "no", "every value of the incident is finite", ("evidence/signals.parquet",))


def _ranks(bench: Bench) -> Fact:
    """Agreement of the replicas, from the traces of the unchanged trial."""
    performed = bench.baseline.performed
    traces = performed.run.traces
    if len(traces) < 2:
        value = "yes" if traces and traces[0].process.world == 1 else NOT_MEASURED
        return Fact("ranks.agree", value, "there is one rank" if value == "yes" else "only one rank left a trace")
    scan = bench.scan(bench.investigation.last_good)
    shapes = {t.name: t.shape for t in scan.tensors if t.role is Role.PARAMETER}
    fact = agreement_fact(rank_agreement(traces, full_shapes=shapes), (performed.id,))
    if fact.step is None or not fact.where.tensor:
        return fact
    # Tensors are compared as they stand after a step: what differs there acts in the next one.
    return replace(fact, step=fact.step + 1)


def _rates(bench: Bench) -> dict[int, float]:
    """Learning rate by attempted step: the record's where it was logged, the trial's where it was not.

    A log line may carry the rate of the next step (written after the scheduler moved on); the trial's own trace
    and log tell by how much, so the record is shifted to the steps that really used the rate.
    """
    traces = bench.baseline.performed.run.traces
    traced = {s.step: s.lr[0] for s in (traces[0].steps if traces else ()) if s.lr}
    rates: dict[int, float] = {}
    series = bench.investigation.record.get(LEARNING_RATE)
    if series is not None:
        shift = _lr_shift(bench, traced)
        rates = {int(s) + shift: float(v) for s, v in zip(series.steps, series.values, strict=True)}
    return rates | traced


def _lr_shift(bench: Bench, traced: dict[int, float]) -> int:
    logged = bench.baseline.performed.signals.get(LEARNING_RATE)
    if logged is None or len(set(traced.values())) < 2:
        return -bench.offset
    seen = {int(s): float(v) for s, v in zip(logged.steps, logged.values, strict=True)}

    def agreeing(shift: int) -> int:
        return sum(math.isclose(v, traced.get(s + shift, math.nan), rel_tol=1e-3) for s, v in seen.items())

    return max((-bench.offset, 1 - bench.offset, -1 - bench.offset), key=agreeing)


def lr_departure(bench: Bench) -> Departure | None:
    """The first step whose learning rate left the run's own schedule, in attempted steps."""
    rates = _rates(bench)
    steps = sorted(rates)
    before = sum(s <= bench.first_step for s in steps)
    # The rate may have jumped long before it shows, so the history up to the checkpoint is what counts; where the
    # log does not go back that far, the healthy replayed steps have to do.
    healthy_until = bench.first_step if before >= MIN_HISTORY else max(bench.onset - 4, bench.first_step)
    return first_departure(steps, [rates[s] for s in steps], healthy_until=healthy_until, last=bench.onset)


def expected_lr(bench: Bench, step: int) -> float:
    """What the schedule, continued from before the departure, gives for this step."""
    rates = _rates(bench)
    departure = lr_departure(bench)
    assert departure is not None
    history = [s for s in sorted(rates) if s < departure.step]
    return Schedule(history, [rates[s] for s in history]).at(step)


def known_lr(bench: Bench, step: int) -> float | None:
    """The rate of this step, traced or logged; None where neither says."""
    return _rates(bench).get(step)


def used_lr(bench: Bench, step: int) -> float:
    """What the unchanged trial used at this step."""
    return _rates(bench)[step]


def _lr_fact(bench: Bench) -> Fact:
    rates = _rates(bench)
    before = [s for s in rates if s <= bench.first_step]
    evidence = ("evidence/signals.parquet", bench.baseline.performed.id)
    if not rates:
        return Fact("lr.discontinuity", NOT_MEASURED, "no learning rate was logged or traced", evidence)
    departure = lr_departure(bench)
    if departure is not None:
        text = (
            f"the learning rate of step {departure.step} is {departure.used:.6g}, {departure.ratio:.3g} times the "
            f"{departure.expected:.6g} that its schedule continues to"
        )
        return Fact("lr.discontinuity", "yes", text, evidence, step=departure.step)
    if not before and bench.first_step >= bench.onset - 4:
        text = "no learning rate from before the checkpoint was logged, and the onset follows at once"
        return Fact("lr.discontinuity", NOT_MEASURED, text, evidence)
    return Fact("lr.discontinuity", "no", "the learning rate follows its schedule up to the onset", evidence)


def usual_grad_norm(bench: Bench) -> float:
    """Median gradient norm of the healthy replayed steps; 1.0 where there is none."""
    traces = bench.baseline.performed.run.traces
    healthy = sorted(
        s.grad_norm for t in traces for s in t.steps if s.step < bench.onset - 1 and math.isfinite(s.grad_norm)
    )
    return healthy[len(healthy) // 2] if healthy else 1.0


def former_max_norm(bench: Bench) -> float | None:
    """The clipping threshold that the run had and the incident had not, or None."""
    now = {s.clip_max_norm for t in bench.baseline.performed.run.traces for s in t.steps}
    other = bench.performed.get("other-commit")
    if other is not None:
        then = [s.clip_max_norm for t in other.run.traces for s in t.steps if s.clip_max_norm is not None]
        if then and (None in now or max(x for x in now if x is not None) > then[0]):
            return then[0]
    stored = _stored_max_norm(bench)
    if stored and (None in now or max((x for x in now if x is not None), default=math.inf) > stored):
        return stored
    return None


def _stored_max_norm(bench: Bench) -> float | None:
    """A clipping threshold in the configuration that the last good checkpoint was written with."""
    import json

    checkpoint = inspect_checkpoint(bench.investigation.pinned_path(bench.investigation.last_good))
    for key, text in checkpoint.config:
        if "clip" in key.lower() or key.lower().endswith("max_grad_norm"):
            try:
                value = float(json.loads(text))
            except (ValueError, TypeError):
                continue
            if value > 0:
                return value
    return None


def clipping_fact(bench: Bench) -> Fact:
    """`clipping.lost`: the checkpoint's configuration or the earlier commit clipped, the incident did not."""
    evidence = tuple(p.id for p in (bench.baseline.performed, bench.performed.get("other-commit")) if p is not None)
    now = [s.clip_max_norm for t in bench.baseline.performed.run.traces for s in t.steps]
    if not now:
        return Fact("clipping.lost", NOT_MEASURED, "no step was traced", evidence)
    former = former_max_norm(bench)
    if former is None and "other-commit" not in bench.performed and _code_changed(bench):
        text = "the code was changed, and the earlier code has not been run yet"
        return Fact("clipping.lost", NOT_MEASURED, text, evidence)
    if former is not None:
        text = f"the run clipped at {former:g} before the last good checkpoint; the incident's steps clip at {now[0]}"
        return Fact("clipping.lost", "yes", text, evidence)
    shown = "without clipping" if now[0] is None else f"clipped at {now[0]:g}"
    return Fact("clipping.lost", "no", f"nothing shows that clipping was changed; the steps run {shown}", evidence)


def _code_changed(bench: Bench) -> bool:
    found = code_history(bench.investigation)
    return not isinstance(found, NotMeasured) and bool(found.after or found.is_patched) and found.before is not None


def earlier_checkpoint_facts(bench: Bench) -> tuple[Fact, ...]:
    """`rebuild.*`: what the replay from an earlier checkpoint makes of the last good checkpoint.

    Counts only where that replay equals the record exactly up to the checkpoint: else another code, data or
    configuration made the earlier steps, and the difference would say nothing about the file.
    """
    performed = bench.performed.get("earlier-checkpoint")
    if performed is None:
        return ()
    investigation, step = bench.investigation, bench.first_step
    licence = judge_licence(
        investigation.record,
        performed.signals,
        first_step=performed.run.spec.first_step + bench.offset,
        onset=min(step + 1 + bench.offset, investigation.incident.onset_step),
        noise=bench.baseline.noise,
    )
    evidence = (performed.id, investigation.last_good.pinned)
    if licence.grade not in (Grade.BIT_EXACT, Grade.LOG_EXACT):
        return rebuild_facts(NotMeasured(f"the earlier steps do not reproduce: {licence.reason}"), evidence)
    scan, shards = bench.scan(investigation.last_good), bench.shards(performed.run, investigation.last_good)
    facts = rebuild_facts(compare_rebuild(performed.run.traces, scan, step=step, shards=shards), evidence)
    place = Place(file=investigation.last_good.original)
    return tuple(replace(f, where=replace(f.where, file=place.file)) if f.value == "differs" else f for f in facts)


def commit_facts(bench: Bench) -> tuple[Fact, ...]:
    """`code.changed` from the history, and `commit.first-difference` from the two traces."""
    found = code_history(bench.investigation)
    if isinstance(found, NotMeasured):
        return (Fact("code.changed", NOT_MEASURED, found.not_measured),)
    facts = []
    if found.after:
        text = (
            f"{len(found.after)} commits came after the last good checkpoint, the newest {found.after[0].commit[:10]}"
        )
        facts.append(Fact("code.changed", "yes", f"{text} ({found.after[0].subject})", ("evidence/source",)))
    elif found.is_patched:
        facts.append(Fact("code.changed", "yes", "the code has uncommitted changes", ("evidence/source",)))
    else:
        facts.append(Fact("code.changed", "no", "no commit and no patch since the last good checkpoint"))
    other = bench.performed.get("other-commit")
    if other is not None and other.run.traces:
        facts.append(_difference_fact(bench))
    return tuple(facts)


def _same_inputs(bench: Bench, step: int) -> bool:
    """True where both codes feed the model the same tokens at this step, as far as both captured its batch."""
    pairs = [
        [b for b in performed.run.batches if b.step == step and b.rank == 0 and b.micro == 0]
        for performed in (bench.baseline.performed, bench.performed["other-commit"])
    ]
    if not all(pairs):
        return False
    left, right = (integer_rows(Path(found[0].path)) for found in pairs)
    return left is not None and right is not None and np.array_equal(left, right)


def _difference_fact(bench: Bench) -> Fact:
    other = bench.performed["other-commit"]
    name, step = first_difference(other.run.traces, bench.baseline.performed.run.traces)
    evidence = (other.id, bench.baseline.performed.id)
    if name == "data" and step is not None and _same_inputs(bench, step.step):
        # The model reads the same tokens and is asked for other targets: that is the objective, wherever it is coded.
        name = "objective"
    if not name or step is None:
        text = f"the code of {other.run.spec.commit[:10]} computes the same in every traced field"
        return Fact("commit.first-difference", NOT_MEASURED, text, evidence)
    earlier = next((s for t in other.run.traces for s in t.steps if s.step == step.step), None)
    shown = ""
    if earlier is not None and not same_number(earlier.loss, step.loss):
        shown = f": loss {earlier.loss:.6g} before, {step.loss:.6g} now"
    text = f"from the same state, step {step.step} first differs in its {name}{shown}"
    return Fact("commit.first-difference", name, text, evidence, step=step.step)
