"""What do the traces of a trial say by themselves? Facts read from the suspect steps, no comparison of outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.measured import NotMeasured
from spike.domain.receipt import Mismatch, Rebuild, Receipt
from spike.domain.trace import RankTrace, StepRecord
from spike.domain.verdict import Place

REDUCED = ("float16", "bfloat16", "float8")


def supervised(traces: Sequence[RankTrace], steps: Sequence[int], evidence: tuple[str, ...]) -> Fact:
    """`batch.supervised`: whether any micro-batch of the suspect steps reached the loss without a target."""
    empty, counted = [], 0
    for trace in traces:
        for number in steps:
            step = trace.step(number)
            for micro in step.micro_batches if step is not None else ():
                if isinstance(micro.num_supervised, NotMeasured):
                    continue
                counted += 1
                if micro.num_supervised == 0:
                    empty.append((number, trace.process.rank, micro))
    if empty:
        number, rank, micro = empty[0]
        text = f"none of the {micro.num_targets} targets of step {number} (rank {rank}) is supervised"
        return Fact("batch.supervised", "none", text, evidence, Place(rank=rank), number)
    if not counted:
        return Fact("batch.supervised", NOT_MEASURED, "the targets did not reach a loss function of torch", evidence)
    return Fact(
        "batch.supervised", "some", f"every batch of steps {steps[0]}-{steps[-1]} has supervised targets", evidence
    )


def precision(traces: Sequence[RankTrace], evidence: tuple[str, ...]) -> Fact:
    """`precision.reduced`: whether anything is computed or stored below fp32."""
    texts = dict.fromkeys(step.precision for trace in traces for step in trace.steps)
    if not texts:
        return Fact("precision.reduced", NOT_MEASURED, "no step was traced", evidence)
    reduced = [text for text in texts if any(name in text for name in REDUCED)]
    value = "yes" if reduced else "no"
    return Fact("precision.reduced", value, f"the step runs in {(reduced or list(texts))[0]}", evidence)


def receipt_facts(receipt: Receipt | NotMeasured, evidence: tuple[str, ...]) -> tuple[Fact, Fact]:
    """`receipt.parameters` and `receipt.moments`."""
    names = ("receipt.parameters", "receipt.moments")
    if isinstance(receipt, NotMeasured):
        parameters, moments = (Fact(name, NOT_MEASURED, receipt.not_measured, evidence) for name in names)
        return parameters, moments
    return (
        _receipt_fact(names[0], "parameters", receipt.num_parameters, receipt.parameters, evidence),
        _receipt_fact(names[1], "moments", receipt.num_moments, receipt.moments, evidence),
    )


def _receipt_fact(name: str, what: str, count: int, found: Sequence[Mismatch], evidence: tuple[str, ...]) -> Fact:
    if found:
        first = found[0]
        tensor = ".".join(part for part in (first.name, first.key) if part)
        at = f"{tensor or what} of rank {first.rank}"
        text = f"{len(found)} live {what} are not the checkpoint's, first {at}: {first.why}"
        return Fact(name, "differs", text, evidence, Place(rank=first.rank, tensor=tensor))
    if not count:
        return Fact(name, NOT_MEASURED, f"the process held no {what} before its first step", evidence)
    return Fact(name, "equal", f"all {count} live {what} equal the checkpoint's after the load", evidence)


def rebuild_facts(rebuild: Rebuild | NotMeasured, evidence: tuple[str, ...]) -> tuple[Fact, Fact]:
    """`rebuild.parameters` and `rebuild.moments`: a checkpoint against what the run's own history produces."""
    names = ("rebuild.parameters", "rebuild.moments")
    if isinstance(rebuild, NotMeasured):
        parameters, moments = (Fact(name, NOT_MEASURED, rebuild.not_measured, evidence) for name in names)
        return parameters, moments
    return (
        _rebuild_fact(names[0], "parameters", rebuild, rebuild.parameters, evidence),
        _rebuild_fact(names[1], "moments", rebuild, rebuild.moments, evidence),
    )


def _rebuild_fact(name: str, what: str, rebuild: Rebuild, found: Sequence[str], evidence: tuple[str, ...]) -> Fact:
    if found:
        text = (
            f"{len(found)} {what} of the checkpoint of step {rebuild.step} are not what replaying the run from an "
            f"earlier checkpoint gives, first {found[0]}"
        )
        return Fact(name, "differs", text, evidence, Place(tensor=found[0]), rebuild.step + 1)
    return Fact(
        name,
        "equal",
        f"the replay from an earlier checkpoint gives the {what} of step {rebuild.step} bit by bit",
        evidence,
    )


def first_difference(before: Sequence[RankTrace], after: Sequence[RankTrace]) -> tuple[str, StepRecord | None]:
    """What a change of code changed: the first field in which two traces of the same state differ.

    Fields are compared in the order in which a step computes them, so that the earliest cause is named and not its
    consequences. Returns ("", None) where no step differs.
    """
    for left, right in zip(before, after, strict=False):
        for step in left.steps:
            twin = right.step(step.step)
            if twin is None:
                continue
            name = _differing_field(step, twin)
            if name:
                return name, twin
    return "", None


def _differing_field(left: StepRecord, right: StepRecord) -> str:
    if [m.batch for m in left.micro_batches] != [m.batch for m in right.micro_batches]:
        return "data"
    if left.precision != right.precision:
        return "precision"
    if not _same([m.loss for m in left.micro_batches], [m.loss for m in right.micro_batches]):
        return "objective"
    if not _same([left.grad_norm], [right.grad_norm]):
        return "gradients"
    if left.clip_max_norm != right.clip_max_norm:
        return "clipping"
    if left.lr != right.lr:
        return "learning-rate"
    updates = [u for u in (left.update_norm, right.update_norm) if not isinstance(u, NotMeasured)]
    return "update" if len(updates) == 2 and not _same(updates[:1], updates[1:]) else ""


SAME_RELATIVE = 1e-4
"""Two codes that reorder a sum differ in the last bits; a changed objective differs visibly. Reordering a sum of a
million fp32 terms moves it by less than one part in ten thousand."""


def _same(left: Sequence[float], right: Sequence[float]) -> bool:
    return len(left) == len(right) and all(
        math.isclose(a, b, rel_tol=SAME_RELATIVE) or (a != a and b != b) for a, b in zip(left, right, strict=True)
    )
