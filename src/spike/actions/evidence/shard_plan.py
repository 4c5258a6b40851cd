"""Into which parts is a freeze divided, which of them are done, and is anybody still at one?

The plan is written once, by whoever comes first, so that all processes divide the same work in the same way though
the run goes on meanwhile. It lies with everything else that ends when the manifest is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spike.actions.evidence.pins import HELD
from spike.casefile.atomic import writing
from spike.casefile.case import Case
from spike.casefile.codec import from_payload, to_payload
from spike.casefile.lock import case_lock
from spike.domain.checkpoint import Checkpoint
from spike.domain.errors import SpikeError
from spike.domain.manifest import Algorithm
from spike.domain.shards import Shard, Unit, share

SHARDS = f"{HELD}/shards"
PLAN = f"{HELD}/shards.json"
PLAN_SCHEMA = "spike.freeze-shards/1"
DONE_SCHEMA = "spike.freeze-shard/1"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Who reads what."""

    num_shards: int
    algorithm: Algorithm
    onset: int | None
    checkpoints: tuple[Checkpoint, ...]
    """What is pinned if nothing is wrong with it."""
    units: tuple[Unit, ...]

    def units_of(self, shard: Shard) -> tuple[Unit, ...]:
        """What this shard reads."""
        return share(self.units, self.num_shards)[shard.number - 1]


def read_plan(case: Case) -> ShardPlan | None:
    """The plan of a case that is being frozen in shards."""
    found = case.read_json(PLAN)
    return from_payload(ShardPlan, found, schema=PLAN_SCHEMA, source=PLAN) if found is not None else None


def write_plan(case: Case, plan: ShardPlan) -> None:
    """Fix the plan."""
    case.write_json(PLAN, to_payload(plan, schema=PLAN_SCHEMA))


def refuse_other_plan(case: Case, plan: ShardPlan, shard: Shard, algorithm: Algorithm) -> None:
    """Raises `SpikeError` where this shard is none of the plan's."""
    if shard.count != plan.num_shards:
        raise SpikeError(
            f"{case.path} is being frozen in {plan.num_shards} shards, not {shard.count}",
            hint=f"{command(case)} --shard 1/{plan.num_shards}, and so on",
        )
    if algorithm is not plan.algorithm:
        raise SpikeError(
            f"{case.path} is being frozen with {plan.algorithm}, not {algorithm}",
            hint=f"{command(case)} --shard {shard} --hash {plan.algorithm}",
        )


def mark_done(case: Case, shard: Shard, num_files: int, num_bytes: int) -> None:
    """Write down that everything of this shard is in the case."""
    row = {"schema": DONE_SCHEMA, "shard": str(shard), "files": num_files, "bytes": num_bytes}
    case.write_json(f"{SHARDS}/{_name(shard)}.json", row)


def missing(case: Case, plan: ShardPlan) -> tuple[Shard, ...]:
    """Shards that have not been done to their end."""
    shards = (Shard(number, plan.num_shards) for number in range(1, plan.num_shards + 1))
    return tuple(s for s in shards if case.read_json(f"{SHARDS}/{_name(s)}.json") is None)


def refuse_unfinished(case: Case) -> ShardPlan:
    """The plan of a case whose shards are all done; `SpikeError` names those that are not."""
    plan = read_plan(case)
    if plan is None:
        raise SpikeError(
            f"{case.path} is not being frozen in shards, so there is nothing to merge",
            hint=f"{command(case)} --shard 1/N first, or without --merge to do it in one process",
        )
    lacking = missing(case, plan)
    if lacking:
        named = ", ".join(map(str, lacking[:8])) + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
        raise SpikeError(
            f"{len(lacking)} of {plan.num_shards} shards of {case.path} are missing: {named}",
            hint=f"{command(case)} --shard {lacking[0]}",
        )
    return plan


def refuse_busy_shards(case: Case, plan: ShardPlan) -> None:
    """Raises `CaseInUse` where a process is at one of the shards now."""
    for number in range(1, plan.num_shards + 1):
        if (case.path / SHARDS / _name(Shard(number, plan.num_shards))).is_dir():
            with shard_lock(case, Shard(number, plan.num_shards)):
                pass


@contextmanager
def shard_lock(case: Case, shard: Shard) -> Iterator[None]:
    """Keep a second process from the same shard; other shards are free."""
    place = case.path / SHARDS / _name(shard)
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    with case_lock(place, f"freeze --shard {shard}"):
        yield


def command(case: Case) -> str:
    """What to type for this case, up to the option that says which part."""
    return f"spike freeze --run {shlex.quote(case.facts.run.directory)} --case {shlex.quote(str(case.path))}"


def _name(shard: Shard) -> str:
    return f"{shard.number}-of-{shard.count}"
