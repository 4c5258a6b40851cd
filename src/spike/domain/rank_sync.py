"""Did all ranks of a job do the same, step by step? The first step at which any quantity parts, and which ranks do.

Two ways lead here, a pure one over signals in memory and a column store over files of any size; both gather the same
`Gathered` facts, and only `judge` says what they mean. Ranks legitimately see different data, so their losses are not
compared; whether a loss is finite at all is.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from spike.domain.measured import NotMeasured
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, SKIPPED, TOKENS, Signals

GENERATION = "checkpoint generation"
FINGERPRINT = "parameter fingerprint"
NON_FINITE = "finiteness of the loss"
NON_FINITE_NORM = "finiteness of the gradient norm"
LOGGED = "step"
QUANTITIES = (
    *(LOGGED, "tokens", "learning rate", GENERATION, "loss scale", "skip decision"),
    *(NON_FINITE, NON_FINITE_NORM, FINGERPRINT),
)
"""In the order in which they explain each other: a rank at another step has another rate."""

OF_SIGNAL = {
    TOKENS: "tokens",
    LEARNING_RATE: "learning rate",
    LOSS_SCALE: "loss scale",
    SKIPPED: "skip decision",
    LOSS: NON_FINITE,
    GRAD_NORM: NON_FINITE_NORM,
}
"""What must be equal on all ranks, by the signal that tells it."""
WHETHER = {
    "skip decision": ("applied", "skipped"),
    **dict.fromkeys((NON_FINITE, NON_FINITE_NORM), ("finite", "not finite")),
}
"""Words for the quantities that are a yes or no."""

GENERATION_NAMES = ("generation", "checkpoint_generation", "checkpoint_step", "loaded_step", "resumed_from")
FINGERPRINT_NAMES = ("fingerprint", "param_fingerprint", "params_fingerprint", "weights_fingerprint", "param_hash")
"""Column names of what no stack logs by itself, and operators do."""

MAY_BE_LOCAL = frozenset(("tokens", FINGERPRINT))
"""A rank may count its own tokens and print its own shard: where nearly every rank has a value of its own, nothing is
said about agreement."""

SPARSE_SHARE = 0.5
"""A rank that logs fewer of its steps than this share logs at another interval; steps are not compared then."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows of one rank."""

    first: int
    last: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was read, before anybody says what it means."""

    extents: Mapping[int, Extent]
    compared: tuple[str, ...] = ()
    """Quantities that at least two ranks logged."""
    parted: Mapping[str, tuple[int, int, Mapping[int, str]]] = field(default_factory=dict)
    """Quantity -> (first step at which values differ, number of such steps, value as text by rank)."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    world: int = 0
    """As the ranks themselves say; 0 where they do not."""
    num_rows: int = 0
    num_skipped: int = 0
    """Lines that could not be read."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that say the same."""

    value: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parting:
    """One quantity, at the first step at which it is not the same on all ranks."""

    quantity: str
    step: int
    num_steps: int
    """Steps at which it differs."""
    groups: tuple[Group, ...]
    """The most common value first."""

    @property
    def is_tie(self) -> bool:
        """Whether counting cannot tell which value is right."""
        return len(self.groups) > 1 and len(self.groups[0].ranks) == len(self.groups[1].ranks)

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that differ from most others; of a tie, those that do not agree with the lowest rank."""
        return tuple(sorted(rank for group in self.groups[1:] for rank in group.ranks))


@dataclass(frozen=True, slots=True)
class RankSync:
    """The answer."""

    agree: bool | NotMeasured
    num_ranks: int
    num_steps: int
    """Steps between the first and the last one that any rank logged."""
    num_rows: int
    compared: tuple[str, ...]
    partings: tuple[Parting, ...] = ()
    """By step; at one step in the order of `QUANTITIES`."""
    missing: tuple[int, ...] = ()
    """Ranks of the world that left nothing."""
    late: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(last step, ranks) of those that end before most others, the earliest first."""
    last_step: int = 0
    """The last step of most ranks."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def judge(gathered: Gathered) -> RankSync:
    """What the gathered facts mean."""
    ranks = sorted(gathered.extents)
    notes = list(gathered.notes)
    partings, local = [], set()
    for quantity, (step, num_steps, values) in gathered.parted.items():
        groups = _groups(values)
        if quantity in MAY_BE_LOCAL and len(groups) > max(2, len(values) // 2):
            local.add(quantity)
            notes.append(f"{quantity}: nearly every rank has a value of its own, as of a local count or a shard")
        else:
            partings.append(Parting(quantity, step, num_steps, groups))
    partings.sort(key=lambda p: (p.step, QUANTITIES.index(p.quantity)))
    compared = tuple(q for q in QUANTITIES if q in gathered.compared and q not in local)
    if gathered.num_skipped:
        notes.append(f"{gathered.num_skipped:,} lines could not be read and were left out")
    usual, late = _late(gathered.extents)
    first = min((e.first for e in gathered.extents.values()), default=0)
    last = max((e.last for e in gathered.extents.values()), default=-1)
    agree: bool | NotMeasured = not partings
    if len(ranks) < 2:
        agree = NotMeasured(f"{len(ranks) or 'no'} rank logged anything")
    elif not compared and not partings:
        agree = NotMeasured("the ranks' logs have no quantity in common that must be equal")
    return RankSync(
        agree=agree,
        num_ranks=len(ranks),
        num_steps=last - first + 1,
        num_rows=gathered.num_rows,
        compared=compared,
        partings=tuple(partings) if len(ranks) > 1 else (),
        missing=tuple(sorted(set(range(max(gathered.world, max(ranks, default=-1) + 1))) - set(ranks))),
        late=late,
        last_step=usual,
        hosts=gathered.hosts,
        notes=tuple(notes),
    )


def gather(signals: Signals, *, hosts: Mapping[int, str] | None = None, world: int = 0) -> Gathered:
    """The facts from signals in memory: for thousands of rows, not millions."""
    steps: dict[int, set[int]] = defaultdict(set)
    values: dict[str, dict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for series in signals.series:
        if series.rank is None:
            continue
        rows = list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        steps[series.rank].update(step for step, _ in rows)
        quantity = OF_SIGNAL.get(series.name) or _own_quantity(series.name)
        if quantity is not None:
            for step, value in rows:
                values[quantity][step][series.rank] = shown(quantity, _fact(quantity, value))
    extents = {rank: Extent(min(s), max(s), len(s)) for rank, s in steps.items() if s}
    parted = {q: found for q, by_step in values.items() if (found := _first_parting(by_step)) is not None}
    compared = [q for q, by_step in values.items() if any(len(by) > 1 for by in by_step.values())]
    notes = [] if not is_sparse(extents) else [SPARSE_NOTE]
    if not notes and len(extents) > 1:
        compared.append(LOGGED)
        gap = _first_gap(steps, extents)
        if gap is not None:
            parted[LOGGED] = gap
    num_rows = sum(e.num_steps for e in extents.values())
    return Gathered(extents, tuple(compared), parted, dict(hosts or {}), world, num_rows, 0, tuple(notes))


SPARSE_NOTE = "some ranks log at another interval than others: their steps were not compared"


def is_sparse(extents: Mapping[int, Extent]) -> bool:
    """Whether some rank logs so few of its steps, against the others, that gaps mean nothing."""
    shares = [e.num_steps / (e.last - e.first + 1) for e in extents.values()]
    return bool(shares) and min(shares) < SPARSE_SHARE * max(shares)


def shown(quantity: str, value: float | str | bool) -> str:
    """A value as text, the same whoever read it; equal texts are equal values."""
    if quantity in WHETHER:
        return WHETHER[quantity][bool(value)]
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def expected_ranks(extents: Mapping[int, Extent], first: int, last: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each step from `first` to `last`: how many ranks have begun and not ended."""
    change = np.zeros(last - first + 2, dtype=np.int64)
    for extent in extents.values():
        change[extent.first - first] += 1
        change[extent.last + 1 - first] -= 1
    return np.cumsum(change)[:-1]


def _fact(quantity: str, value: float) -> float | bool:
    """What a logged number says of the quantity."""
    if quantity not in WHETHER:
        return value
    return value > 0 if quantity == "skip decision" else not math.isfinite(value)


def _own_quantity(name: str) -> str | None:
    plain = name.lower()
    return GENERATION if plain in GENERATION_NAMES else FINGERPRINT if plain in FINGERPRINT_NAMES else None


def _first_parting(by_step: Mapping[int, Mapping[int, str]]) -> tuple[int, int, Mapping[int, str]] | None:
    differing = sorted(step for step, values in by_step.items() if len(set(values.values())) > 1)
    return (differing[0], len(differing), by_step[differing[0]]) if differing else None


def _first_gap(
    steps: Mapping[int, set[int]], extents: Mapping[int, Extent]
) -> tuple[int, int, Mapping[int, str]] | None:
    """The first step that some ranks logged and others, which go on after it, did not."""
    every = sorted(set().union(*steps.values()))
    gaps = [s for s in every if any(e.first <= s <= e.last and s not in steps[rank] for rank, e in extents.items())]
    if not gaps:
        return None
    inside = (rank for rank, e in extents.items() if e.first <= gaps[0] <= e.last)
    return gaps[0], len(gaps), {rank: LOGGED_WORDS[gaps[0] in steps[rank]] for rank in inside}


LOGGED_WORDS = {True: "logged", False: "not logged"}


def _groups(values: Mapping[int, str]) -> tuple[Group, ...]:
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        groups[value].append(rank)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple(Group(value, tuple(ranks)) for value, ranks in ordered)


def _late(extents: Mapping[int, Extent]) -> tuple[int, tuple[tuple[int, tuple[int, ...]], ...]]:
    if not extents:
        return 0, ()
    counts = Counter(e.last for e in extents.values())
    usual = max(counts, key=lambda last: (counts[last], last))
    behind: dict[int, list[int]] = defaultdict(list)
    for rank, extent in sorted(extents.items()):
        if extent.last < usual:
            behind[extent.last].append(rank)
    return usual, tuple((last, tuple(ranks)) for last, ranks in sorted(behind.items()))


def ranges(numbers: Iterable[int]) -> str:
    """Ranks as ranges: "0-776, 778-16383"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
