"""Do the ranks of one job hold the same state where they must? The first step, rank and tensor that differ.

Replicas legitimately see different data and may draw different random numbers. Learning rate, loss scale, whether a
step was applied, and replicated parameters must be equal. Sharded parameters have no counterpart on another rank, and
are not compared.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spike.domain.checkpoint import Role, TensorFacts
from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.measured import NotMeasured
from spike.domain.rank_sync import LOGGED, NON_FINITE, NON_FINITE_NORM, gather, judge, ranges
from spike.domain.signals import Signals
from spike.domain.trace import Fingerprint, RankTrace, StepRecord
from spike.domain.verdict import Place

REPLICATED_UNDER_TP = re.compile(r"(layer_?norm|(^|[._])(ln|norm)[._\d]|norm\.(weight|bias)|_norm$)", re.I)
"""Tensor-parallel ranks hold different slices of matrices and the same normalisation weights (BLOOM, March 2022:
LayerNorm weights that drifted apart between tensor-parallel ranks, unseen in the loss)."""
MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class RankDifference:
    """One quantity in which ranks part, first step at which they do."""

    step: int
    quantity: str
    """"learning rate", "loss scale", "applied", "parameter", "moment"."""
    tensor: str
    """Tensor name, "" where the quantity is none."""
    minority: tuple[int, ...]
    """The ranks that differ from most others; of two, the higher one."""
    values: tuple[tuple[str, tuple[int, ...]], ...]
    """(value as text, ranks), the most common first."""


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Whether ranks agree, on what, and where not."""

    agree: bool | NotMeasured
    statement: str
    differences: tuple[RankDifference, ...] = ()
    """By step; within one step numbers before tensors."""
    missing: tuple[int, ...] = ()
    """Ranks of the world that left nothing."""
    notes: tuple[str, ...] = ()
    """Observations that are no disagreement."""

    @property
    def step(self) -> int | None:
        """The first step at which ranks differ."""
        return self.differences[0].step if self.differences else None

    @property
    def rank(self) -> int | None:
        """The first rank that differs from most others."""
        return self.differences[0].minority[0] if self.differences else None

    @property
    def tensor(self) -> str:
        """The first tensor that differs, "" where a number does."""
        return next((d.tensor for d in self.differences if d.tensor), "")


def rank_agreement(
    traces: Sequence[RankTrace], *, full_shapes: Mapping[str, tuple[int, ...]] | None = None
) -> RankAgreement:
    """Compare what must be equal across the ranks of one trial or recording.

    `full_shapes` are the parameters' shapes in a checkpoint, where known: a live tensor of that shape is replicated.
    """
    latest = _one_per_rank(traces)
    if len(latest) < 2:
        reason = f"{len(latest)} rank left a trace" if latest else "no rank left a trace"
        return RankAgreement(NotMeasured(reason), reason)
    world = max(t.process.world for t in latest.values())
    missing = tuple(sorted(set(range(world)) - set(latest)))
    numbers = _number_differences(latest)
    tensors, sharded = _tensor_differences(latest, full_shapes or {})
    differences = tuple(sorted(numbers + tensors, key=lambda d: d.step))[:MAX_LISTED]
    notes = (*_notes(latest), *([sharded] if sharded else []))
    if differences:
        return RankAgreement(False, _statement(differences[0], len(latest)), differences, missing, notes)
    steps = _common_steps(latest)
    prints = _common_fingerprints(latest)
    if not steps and not prints:
        reason = "the ranks' traces have no step in common"
        return RankAgreement(NotMeasured(reason), reason, (), missing, notes)
    compared = [f"learning rate, loss scale and skips of {len(steps)} steps"] if steps else []
    if prints and not sharded:
        compared.append(f"every parameter at step{'s' if len(prints) > 1 else ''} {', '.join(map(str, prints))}")
    text = f"{len(latest)} ranks agree in {' and '.join(compared)}"
    if sharded or not prints:
        text += f"; parameters were not compared ({sharded or 'no fingerprint in common'})"
    if missing:
        text += f"; {_ranks(missing)} left no trace"
    return RankAgreement(True, text, (), missing, notes)


def replica_agreement(
    files: Mapping[int, Sequence[TensorFacts]], *, step: int, only_norms: bool = False
) -> RankAgreement:
    """Compare the parameters that each rank wrote into its own file of one checkpoint of `step`.

    `only_norms` restricts the comparison to what tensor-parallel ranks hold in common.
    """
    if len(files) < 2:
        reason = "the checkpoint has no file for each rank"
        return RankAgreement(NotMeasured(reason), reason)
    values: dict[str, dict[int, tuple[tuple[int, ...], str]]] = defaultdict(dict)
    for rank, tensors in files.items():
        for tensor in tensors:
            wanted = tensor.role is Role.PARAMETER and isinstance(tensor.digest, str)
            if wanted and (not only_norms or REPLICATED_UNDER_TP.search(tensor.name)):
                values[tensor.name][rank] = (tensor.shape, str(tensor.digest))
    shared = {name: by for name, by in values.items() if len(by) == len(files)}
    missing = tuple(sorted(set(range(max(files) + 1)) - set(files)))
    if not shared:
        reason = "the ranks' files have no parameter in common"
        return RankAgreement(NotMeasured(reason), reason, (), missing)
    differing = {name: by for name, by in shared.items() if len({d for _, d in by.values()}) > 1}
    if len(differing) == len(shared) and not only_norms and len(shared) > 1:
        reason = "every parameter differs between the ranks' files: they are shards, or have drifted everywhere"
        return RankAgreement(NotMeasured(reason), reason, (), missing)
    differences = tuple(
        _difference(step, "parameter", name, {rank: digest[:12] for rank, (_, digest) in by.items()})
        for name, by in sorted(differing.items())
    )
    if differences:
        more = f" ({len(differences)} of {len(shared)} parameters differ)" if len(differences) > 1 else ""
        return RankAgreement(False, _statement(differences[0], len(files)) + more, differences[:MAX_LISTED], missing)
    return RankAgreement(True, f"{len(shared)} parameters are equal in the files of {len(files)} ranks", (), missing)


def logged_agreement(signals: Signals) -> RankAgreement:
    """Compare what each rank logged of what must be equal: tokens, rates, scales, skips, and whether all is finite.

    A row that one rank's log lacks is a note, not a disagreement: logs lose lines.
    """
    sync = judge(gather(signals))
    if isinstance(sync.agree, NotMeasured):
        return RankAgreement(sync.agree, sync.agree.not_measured)
    notes = [*sync.notes, *(f"rank {ranges(ranks)} logged nothing after step {last}" for last, ranks in sync.late)]
    differences = []
    for parting in sync.partings:
        if parting.quantity == LOGGED:
            notes.append(f"step {parting.step} is missing in the log of rank {ranges(parting.minority)}")
            continue
        values = tuple((group.value, group.ranks) for group in parting.groups)
        differences.append(RankDifference(parting.step, parting.quantity, "", parting.minority, values))
    compared = [quantity for quantity in sync.compared if quantity != LOGGED]
    is_told = any(quantity not in (NON_FINITE, NON_FINITE_NORM) for quantity in compared)
    if differences:
        statement = _statement(differences[0], sum(len(ranks) for _, ranks in differences[0].values))
        return RankAgreement(False, statement, tuple(differences[:MAX_LISTED]), sync.missing, tuple(notes))
    if not is_told:  # that all are finite says nothing about being the same
        reason = "the ranks' logs have no quantity in common that must be equal"
        return RankAgreement(NotMeasured(reason), reason, (), sync.missing, tuple(notes))
    text = f"the ranks logged the same {', '.join(compared)}; parameters were not compared"
    return RankAgreement(True, text, (), sync.missing, tuple(notes))


def agreement_fact(found: RankAgreement, evidence: tuple[str, ...]) -> Fact:
    """`ranks.agree`, with the first rank, step and tensor that differ."""
    if isinstance(found.agree, NotMeasured):
        return Fact("ranks.agree", NOT_MEASURED, found.agree.not_measured, evidence)
    if found.agree:
        return Fact("ranks.agree", "yes", found.statement, evidence)
    return Fact("ranks.agree", "no", found.statement, evidence, Place(rank=found.rank, tensor=found.tensor), found.step)


def minority(values: Mapping[int, Hashable]) -> tuple[int, ...]:
    """The ranks whose value is not the most common one; of a tie, those that do not agree with the lowest rank."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        groups[value].append(rank)
    most = max(groups.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    return tuple(sorted(rank for ranks in groups.values() if ranks is not most for rank in ranks))


# -- numbers ------------------------------------------------------------------------------------------------


def _one_per_rank(traces: Iterable[RankTrace]) -> dict[int, RankTrace]:
    """The last trace of each rank: a restarted launcher leaves several."""
    return {t.process.rank: t for t in traces}


def _common_steps(traces: Mapping[int, RankTrace]) -> tuple[int, ...]:
    sets = [{s.step for s in trace.steps} for trace in traces.values()]
    return tuple(sorted(set.intersection(*sets)))


_QUANTITIES = ("applied", "learning rate", "loss scale")


def _quantity(record: StepRecord, name: str) -> Hashable:
    match name:
        case "applied":
            return record.applied
        case "learning rate":
            return tuple(_exact(rate) for rate in record.lr)
        case _:
            return "" if isinstance(record.loss_scale, NotMeasured) else _exact(record.loss_scale)


def _exact(value: float) -> str:
    return "nan" if math.isnan(value) else float(value).hex()


def _number_differences(traces: Mapping[int, RankTrace]) -> list[RankDifference]:
    found = []
    records = {rank: {s.step: s for s in trace.steps} for rank, trace in traces.items()}
    for name in _QUANTITIES:
        for step in _common_steps(traces):
            values = {rank: _quantity(by_step[step], name) for rank, by_step in records.items()}
            if len(set(values.values())) > 1:
                shown = {rank: _shown(by_step[step], name) for rank, by_step in records.items()}
                found.append(_difference(step, name, "", shown))
                break
    return found


def _shown(record: StepRecord, name: str) -> str:
    match name:
        case "applied":
            return "applied" if record.applied else "skipped"
        case "learning rate":
            return ", ".join(f"{rate:.9g}" for rate in record.lr)
        case _:
            return str(record.loss_scale)


# -- tensors --------------------------------------------------------------------------------------------------


def _common_fingerprints(traces: Mapping[int, RankTrace]) -> tuple[int, ...]:
    sets = [{f.step for f in trace.fingerprints} for trace in traces.values()]
    return tuple(sorted(set.intersection(*sets)))


def _tensor_differences(
    traces: Mapping[int, RankTrace], full_shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[RankDifference], str]:
    """Differences of replicated tensors at the first step that has any, and why nothing could be compared."""
    for step in _common_fingerprints(traces):
        prints = {rank: next(f for f in trace.fingerprints if f.step == step) for rank, trace in traces.items()}
        parameters = _by_name(prints, "parameter")
        shared = {n: by for n, by in parameters.items() if len(by) == len(prints) and _is_replica(n, by, full_shapes)}
        differing = {name for name, by in shared.items() if len({digest for _, digest in by.values()}) > 1}
        known = [name for name in shared if name in full_shapes]
        if parameters and not shared:
            return [], "the ranks hold shards"
        if len(shared) > 1 and len(differing) == len(shared) and not known:
            return [], "every parameter differs between ranks: they are sharded, or have drifted everywhere"
        moments = _by_name(prints, "moment")
        found = [_difference(step, "parameter", n, _digests(shared[n])) for n in shared if n in differing]
        found += [
            _difference(step, "moment", name, _digests(by))
            for name, by in moments.items()
            if len(by) == len(prints)
            and len({shape for shape, _ in by.values()}) == 1
            and len({digest for _, digest in by.values()}) > 1
            and name.rpartition(" ")[0] in shared
        ]
        if found:
            return found, ""
    return [], ""


def _by_name(prints: Mapping[int, Fingerprint], role: str) -> dict[str, dict[int, tuple[tuple[int, ...], str]]]:
    found: dict[str, dict[int, tuple[tuple[int, ...], str]]] = defaultdict(dict)
    for rank, fingerprint in prints.items():
        for tensor in fingerprint.tensors:
            if tensor.role == role:
                name = f"{tensor.name} {tensor.key}" if tensor.key else tensor.name
                found[name or str(tensor.index)][rank] = (tensor.shape, tensor.digest)
    return found


def _is_replica(
    name: str, by_rank: Mapping[int, tuple[tuple[int, ...], str]], full_shapes: Mapping[str, tuple[int, ...]]
) -> bool:
    shapes = {shape for shape, _ in by_rank.values()}
    full = full_shapes.get(name)
    return len(shapes) == 1 and (full is None or shapes == {full})


def _digests(by_rank: Mapping[int, tuple[tuple[int, ...], str]]) -> dict[int, str]:
    return {rank: digest[:12] for rank, (_, digest) in by_rank.items()}


# -- words --------------------------------------------------------------------------------------------------


def _difference(step: int, quantity: str, tensor: str, values: Mapping[int, str]) -> RankDifference:
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        groups[value].append(rank)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
    return RankDifference(
        step, quantity, tensor, minority(values), tuple((value, tuple(ranks)) for value, ranks in ordered)
    )


def _statement(first: RankDifference, num_ranks: int) -> str:
    what = f"{first.quantity} {first.tensor}".strip()
    values = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in first.values[:3])
    tie = ""
    if len(first.values) > 1 and len(first.values[0][1]) == len(first.values[1][1]):
        tie = "; agreement alone cannot tell which is right"
    return f"the {what} of step {first.step} is not the same on {num_ranks} ranks: {values}{tie}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _notes(traces: Mapping[int, RankTrace]) -> list[str]:
    """Things worth a look that are legitimate in some jobs."""
    notes = []
    steps = _common_steps(traces)
    records = {rank: {s.step: s for s in trace.steps} for rank, trace in traces.items()}
    if len(steps) > 1:
        same = [
            step
            for step in steps
            if len({tuple(m.batch for m in by_step[step].micro_batches) for by_step in records.values()}) == 1
            and any(by_step[step].micro_batches for by_step in records.values())
        ]
        if len(same) == len(steps):
            notes.append("every rank got the same batches at every step: right under tensor parallelism, else not")
    lineage = _lineage_break(records, steps)
    if lineage:
        notes.append(lineage)
    ends = {rank: max((s.step for s in trace.steps), default=0) for rank, trace in traces.items()}
    if len(set(ends.values())) > 1:
        last = min(ends.values())
        notes.append(f"{_ranks([r for r, end in ends.items() if end == last])} stopped at step {last}, before others")
    first = _first_nonfinite(records, steps)
    if first:
        notes.append(first)
    return notes


def _lineage_break(records: Mapping[int, Mapping[int, StepRecord]], steps: Sequence[int]) -> str:
    """A random generator that was equal on all ranks and stopped being so."""
    equal: dict[str, bool] = {}
    for step in steps:
        states = [dict(by_step[step].rng) for by_step in records.values()]
        for name in set.intersection(*(set(state) for state in states)):
            now = len({state[name] for state in states}) == 1
            if equal.get(name) and not now:
                return f"the {name} generators of the ranks were equal up to step {step - 1} and part at step {step}"
            equal[name] = now
    return ""


def _first_nonfinite(records: Mapping[int, Mapping[int, StepRecord]], steps: Sequence[int]) -> str:
    for step in steps:
        hit = [
            rank
            for rank, by_step in records.items()
            if by_step[step].num_nonfinite_grads or not math.isfinite(by_step[step].loss)
        ]
        if hit and len(hit) < len(records):
            return f"non-finite values first appear at step {step}, on {_ranks(hit)} only"
        if hit:
            return ""
    return ""
