"""Can the checkpoints around the onset be trusted, and what happened between them?

Whole, finite, moving, of one generation, and without a single element that no update explains. Everything is read
from the files' bytes; nothing is loaded.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from spike.actions.check_inventory import Rows, inventory
from spike.actions.check_scene import Scene
from spike.actions.compare_checkpoints import Compared, compare
from spike.domain.checkpoint import Checkpoint, Integrity, Role, TensorFacts
from spike.domain.compare import (
    BitFlip,
    by_identity,
    impossible_decays,
    is_same,
    single_nonfinite,
    step_counters,
)
from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.measured import NotMeasured
from spike.domain.verdict import Place
from spike.readers.checkpoints import checksums, file_checksums

MIN_SHARED_TENSORS = 2
"""One tensor may be equal in two checkpoints by chance (a frozen bias); a generation is told by several."""

SAMPLED_TENSORS = 48
"""Of each role: equal checksums of so many tensors are no chance."""
MAX_GENERATIONS = 40
"""Other checkpoints whose stored checksums are compared."""
MAX_FILE_GENERATIONS = 6
"""... and whose files are compared one by one."""


def checkpoint_facts(scene: Scene) -> tuple[tuple[Fact, ...], tuple[tuple[str, Rows], ...]]:
    """The `checkpoint.*` facts, and tables: all checkpoints, what happens to them next, the largest changes."""
    if scene.last_good is None:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in scene.not_used[:3])
        text = f"there is no whole, finite checkpoint before the onset{f' ({reasons})' if reasons else ''}"
        names = ("integrity", "finite", "training", "bit-flip", "generation", "tensors")
        return tuple(Fact(f"checkpoint.{n}", NOT_MEASURED, text) for n in names), inventory(scene)
    before = scene.predecessor()
    history = compare(scene, before, scene.last_good) if before is not None else None
    onward = compare(scene, scene.last_good, scene.suspect[0]) if scene.suspect else None
    facts = (
        _integrity(scene, scene.last_good),
        _finite(scene, scene.last_good),
        _training(scene, history, onward),
        _bit_flip(scene, history, onward),
        _generation(scene, scene.last_good, history),
        _tensors(scene, scene.last_good, history),
    )
    tables = list(inventory(scene))
    tables += [_changes(scene, compared) for compared in (history, onward) if compared is not None]
    return facts, tuple(tables)


# -- facts ----------------------------------------------------------------------------------------------------


def _integrity(scene: Scene, checkpoint: Checkpoint) -> Fact:
    name, evidence, shown = "checkpoint.integrity", (scene.evidence(checkpoint),), scene.original(checkpoint)
    scan = scene.scan(checkpoint)
    if not checkpoint.is_whole and checkpoint.integrity is not Integrity.UNVERIFIABLE:
        text = f"{shown} is {checkpoint.integrity.value}: {checkpoint.reason}"
        return Fact(name, "damaged", text, evidence, Place(file=shown))
    if scan.unreadable:
        where, reason = scan.unreadable[0]
        more = f" and {len(scan.unreadable) - 1} more places" if len(scan.unreadable) > 1 else ""
        return Fact(name, "damaged", f"{shown}: {where} {reason}{more}", evidence, Place(file=shown))
    if checkpoint.integrity is Integrity.UNVERIFIABLE:
        return Fact(name, NOT_MEASURED, f"{shown}: {checkpoint.reason}", evidence)
    note = f" ({checkpoint.reason})" if checkpoint.reason else ", every checksum holds"
    return Fact(name, "whole", f"{shown}: {len(scan.tensors)} tensors read{note}", evidence)


def _finite(scene: Scene, checkpoint: Checkpoint) -> Fact:
    name, evidence, shown = "checkpoint.finite", (scene.evidence(checkpoint),), scene.original(checkpoint)
    scan = scene.scan(checkpoint)
    if scan.unreadable and not scan.tensors:
        return Fact(name, NOT_MEASURED, f"{shown} cannot be read: {scan.unreadable[0][1]}", evidence)
    bad = [t for t in scan.nonfinite() if t.role is not Role.OTHER and not _is_constant(scene, t)]
    if bad:
        first = bad[0]
        text = f"{shown}: {first.num_nonfinite} elements of {_title(first)} are not finite"
        text += f", and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
        return Fact(name, "no", text, evidence, Place(tensor=first.name, file=shown))
    unread = sum(isinstance(t.num_nonfinite, NotMeasured) for t in scan.tensors)
    if unread:
        return Fact(name, NOT_MEASURED, f"{shown}: {unread} tensors could not be read", evidence)
    return Fact(name, "yes", f"{shown}: all {len(scan.tensors)} tensors are finite", evidence)


def _is_constant(scene: Scene, tensor: TensorFacts) -> bool:
    """An infinite constant (an attention mask) is the same in an older checkpoint."""
    before = scene.predecessor()
    if before is None:
        return False
    older = by_identity(scene.scan(before).tensors)
    return any(is_same(fact, tensor) for fact in older.values() if fact.name == tensor.name)


def _training(scene: Scene, history: Compared | None, onward: Compared | None) -> Fact:
    name = "checkpoint.training"
    known = [c for c in (history, onward) if c is not None and c.scans.num_parameters]
    if not known:
        return Fact(name, NOT_MEASURED, "there are no two checkpoints with common weights to compare")
    for compared in known:
        evidence = (scene.evidence(compared.before), scene.evidence(compared.after))
        if compared.scans.is_frozen:
            text = (
                f"not one of {compared.scans.num_parameters} weights moved between step {compared.before.step} "
                f"and step {compared.after.step}{_advance(scene, compared)}"
            )
            return Fact(name, "no", text, evidence, step=_step(compared.after))
    compared = known[0]
    moved = [c.relative for c in compared.values if c.role is Role.PARAMETER and math.isfinite(c.relative)]
    typical = sorted(moved)[len(moved) // 2] if moved else 0.0
    text = (
        f"{compared.scans.num_parameters - len(compared.scans.unchanged)} of {compared.scans.num_parameters} weights "
        f"moved from step {compared.before.step} to {compared.after.step}, by {typical:.2%} of their norm (median)"
        f"{_advance(scene, compared)}"
    )
    return Fact(name, "yes", text, (scene.evidence(compared.before), scene.evidence(compared.after)))


def _advance(scene: Scene, compared: Compared) -> str:
    """What the optimizer's own counts say of the same time."""
    before, after = (step_counters(scene.scan(c)) for c in (compared.before, compared.after))
    if not before or not after:
        return ""
    made, steps = after[-1] - before[-1], _step(compared.after) - _step(compared.before)
    if made == steps:
        return f"; the optimizer counts {made:g} updates between them"
    how = "no update" if made == 0 else f"{made:g} updates"
    return f"; the optimizer counts {how} in these {steps} steps"


def _bit_flip(scene: Scene, history: Compared | None, onward: Compared | None) -> Fact:
    name = "checkpoint.bit-flip"
    for compared in (onward, history):
        if compared is None:
            continue
        flips = sorted(compared.flips(), key=lambda f: (f.role is not Role.PARAMETER, -abs(f.power)))
        evidence = (scene.evidence(compared.before), scene.evidence(compared.after))
        if flips:
            return Fact(
                name, "yes", _flip_text(flips, compared), evidence, Place(tensor=flips[0].tensor), _step(compared.after)
            )
        few = [t for t in single_nonfinite(compared.scans.nonfinite) if t.role is not Role.OTHER]
        if few:
            text = f"{few[0].num_nonfinite} element of {_title(few[0])} is not finite at step {compared.after.step}"
            text += ", all others are: an exponent of ones is one flipped bit away"
            return Fact(name, "yes", text, evidence, Place(tensor=few[0].name), _step(compared.after))
    if onward is None:
        return Fact(name, NOT_MEASURED, "no checkpoint was written after the onset, so there is none to compare")
    evidence = (scene.evidence(onward.before), scene.evidence(onward.after))
    text = f"no element jumped by 2^10 or more between step {onward.before.step} and step {onward.after.step}"
    return Fact(name, "no", text, evidence)


def _flip_text(flips: Sequence[BitFlip], compared: Compared) -> str:
    first = flips[0]
    title = f"{first.tensor} ({first.key})" if first.key else first.tensor
    power = f"2^{first.power:.1f} times" if math.isfinite(first.power) else "not finite, from"
    text = (
        f"element {first.element} of {title} is {first.after:.6g} at step {compared.after.step}, {power} its value "
        f"{first.before:.6g} at step {compared.before.step}; no element exceeded {first.bound:.3g} then"
    )
    return text + (f"; {len(flips) - 1} more elements like it" if len(flips) > 1 else "")


def _generation(scene: Scene, checkpoint: Checkpoint, history: Compared | None) -> Fact:
    """Are weights and moments those of this step, or are some of them another checkpoint's?"""
    name, evidence, shown = "checkpoint.generation", [scene.evidence(checkpoint)], scene.original(checkpoint)
    own = checksums(checkpoint, limit=SAMPLED_TENSORS)
    compared = 0
    for other in _nearest(scene, checkpoint):
        theirs = checksums(other, own.keys()) if own else {}
        compared += bool(theirs)
        shared = _shared_parts(own, theirs)
        if shared and (len(shared) == 1 or other.step != checkpoint.step):  # else it is a copy
            text = f"the {shared[0]} of {shown} are byte by byte those of {scene.original(other)} (step {other.step})"
            text += ", the rest is not" if len(shared) == 1 else ""
            return Fact(name, "mixed", text, (*evidence, scene.evidence(other)), Place(file=shown))
    equal = _equal_files(scene, checkpoint)
    mixed = next(((file, others[0]) for file, others in equal.items() if len(others) == 1), None)
    if mixed is not None:
        file, other = mixed
        text = f"{file} of {shown} is byte by byte that of {scene.original(other)} (step {other.step}), the rest is not"
        return Fact(name, "mixed", text, (*evidence, scene.evidence(other)), Place(file=f"{shown}/{file}"))
    stale = next((s for s in history.scans.stale if s.part not in equal), None) if history is not None else None
    if history is not None and stale is not None:
        text = (
            f"{stale.part} of {shown} is byte by byte that of step {history.before.step} "
            f"({stale.num_tensors} tensors), while {stale.num_moved_elsewhere} other tensors moved"
        )
        return Fact(name, "mixed", text, (*evidence, scene.evidence(history.before)), Place(file=stale.part))
    counters = step_counters(scene.scan(checkpoint))
    if len(counters) > 1 and isinstance(checkpoint.step, int) and counters[-1] == checkpoint.step and history is None:
        text = f"{shown}: the optimizer counts {counters[0]:g} to {counters[-1]:g} updates"
        return Fact(name, NOT_MEASURED, text, tuple(evidence))
    if not compared and history is None:
        return Fact(name, NOT_MEASURED, "there is no other checkpoint to compare with", tuple(evidence))
    text = f"no part of {shown} equals that of another checkpoint{_counter_text(counters, checkpoint)}"
    return Fact(name, "one", text, tuple(evidence))


def _equal_files(scene: Scene, checkpoint: Checkpoint) -> dict[str, list[Checkpoint]]:
    """File -> other checkpoints whose same file is equal, where a file of its kind, or the rest of it, is not.

    One that equals a single other generation is that one's; one that equals several holds what is not trained.
    """
    own = file_checksums(checkpoint)
    equal: dict[str, list[Checkpoint]] = defaultdict(list)
    moved: set[tuple[str, str]] = set()
    for other in _nearest(scene, checkpoint)[:MAX_FILE_GENERATIONS] if len(own) > 1 else ():
        theirs = file_checksums(other, own) if other.layout == checkpoint.layout else {}
        for file, marks in own.items():
            common = marks.keys() & theirs.get(file, {}).keys()
            if common and all(marks[piece] == theirs[file][piece] for piece in common):
                equal[file].append(other)
            elif common:
                moved.add((_kind(file), other.path))
    found = {}
    for file, others in sorted(equal.items()):
        is_moment = any(piece.startswith(Role.MOMENT.value) for piece in own[file])
        beside = {path for kind, path in moved if kind == _kind(file) or is_moment}
        if len(others) > 1 or others[0].path in beside:
            found[file] = others
    return found


def _kind(file: str) -> str:
    """Files of different ranks have the same kind."""
    return re.sub(r"\d+", "#", file)


def _nearest(scene: Scene, checkpoint: Checkpoint) -> list[Checkpoint]:
    """Other checkpoints, the nearest steps first; where a part is swapped, two may even say the same step."""
    step = _step(checkpoint)
    others = (*scene.earlier, *scene.others, *scene.suspect)
    known = [c for c in others if isinstance(c.step, int) and c.path != checkpoint.path]
    return sorted(known, key=lambda c: abs(_step(c) - step))[:MAX_GENERATIONS]


def _counter_text(counters: tuple[float, ...], checkpoint: Checkpoint) -> str:
    if not counters:
        return ""
    shown = f"{counters[0]:g}" if len(counters) == 1 else f"{counters[0]:g} to {counters[-1]:g}"
    if isinstance(checkpoint.step, int) and counters[-1] != checkpoint.step:
        return f"; its optimizer counts {shown} updates where the step is {checkpoint.step}"
    return f"; its optimizer counts {shown} updates"


def _shared_parts(
    own: dict[tuple[str, str, str], tuple[int, int]], theirs: dict[tuple[str, str, str], tuple[int, int]]
) -> list[str]:
    """Roles all of whose tensors have the same checksums in both; tensors of a few bytes say nothing."""
    found = []
    for role in (Role.PARAMETER, Role.MOMENT):
        mine = {key: mark for key, mark in own.items() if key[0] == role.value and mark[0] > 64}
        common = {key for key in mine if key in theirs}
        # A frozen tensor or a constant is equal everywhere; a generation is told only by all of them together.
        distinct = len({mine[key] for key in common})
        if len(common) >= MIN_SHARED_TENSORS <= distinct and all(mine[key] == theirs[key] for key in common):
            found.append(f"{role.value}s")
    return found


def _tensors(scene: Scene, checkpoint: Checkpoint, history: Compared | None) -> Fact:
    name, shown = "checkpoint.tensors", scene.original(checkpoint)
    evidence: tuple[str, ...] = (scene.evidence(checkpoint),)
    if history is None:
        return Fact(name, NOT_MEASURED, "there is no earlier checkpoint to compare its tensors with", evidence)
    evidence = (*evidence, scene.evidence(history.before))
    for tensors, what in (
        (history.scans.subnormal, "consist mostly of subnormal numbers"),
        (history.scans.zeroed, "consist of zeros only"),
    ):
        found = tuple(t for t in tensors if t.role is not Role.OTHER)
        if found:
            text = f"{shown}: {_named(found)} {what}, and did not at step {history.before.step}"
            return Fact(name, "suspicious", text, evidence, Place(tensor=found[0].name, file=shown))
    rounded = [change for change in history.values if change.rounded_to]
    if rounded:
        first = rounded[0]
        title = f"{first.tensor} ({first.key})" if first.key else first.tensor
        text = (
            f"{shown}: every value of {title} and {len(rounded) - 1} more tensors fits {first.rounded_to}, and did not "
            f"at step {history.before.step}: they were rounded"
        )
        return Fact(name, "suspicious", text, evidence, Place(tensor=first.tensor, key=first.key, file=shown))
    decayed = _decayed(scene, history)
    if decayed:
        first_decayed, share = decayed[0]
        text = (
            f"{shown}: {_title(first_decayed)} and {len(decayed) - 1} more second moments are {share:.2g} times the "
            f"least that their own decay since step {history.before.step} can leave: they are not this run's"
        )
        return Fact(
            name, "suspicious", text, evidence, Place(tensor=first_decayed.name, key=first_decayed.key, file=shown)
        )
    if history.scans.reshaped or history.scans.removed:
        gone = history.scans.removed[0] if history.scans.removed else history.scans.reshaped[0][1]
        what = "is gone" if history.scans.removed else "has another type or shape"
        text = f"{shown}: {_title(gone)} {what} since step {history.before.step}"
        return Fact(name, "suspicious", text, evidence, Place(tensor=gone.name, file=shown))
    return Fact(
        name, "ordinary", f"{shown}: no tensor became zeros, subnormals, half precision or impossibly small", evidence
    )


def _decayed(scene: Scene, compared: Compared) -> tuple[tuple[TensorFacts, float], ...]:
    scalars = dict(compared.after.scalars)
    betas = [v for k, v in scalars.items() if k.startswith("optimizer.param_groups.") and k.endswith(".betas.1")]
    old, new = scene.scan(compared.before), scene.scan(compared.after)
    counters = [step_counters(scan) for scan in (old, new)]
    if not betas or not all(counters):
        return ()
    return impossible_decays(old, new, beta2=min(betas), num_updates=counters[1][-1] - counters[0][0])


# -- tables -----------------------------------------------------------------------------------------------------


def _changes(scene: Scene, compared: Compared) -> tuple[str, Rows]:
    rows: list[tuple[str, ...]] = [("tensor", "moment", "relative change", "largest change")]
    for change in sorted(compared.values, key=lambda c: -c.relative)[:12]:
        rows.append((change.tensor, change.key, f"{change.relative:.4g}", f"{change.largest:.4g}"))
    return f"tensors that changed most, step {compared.before.step} to {compared.after.step}", tuple(rows)


def _named(tensors: Sequence[TensorFacts]) -> str:
    more = f" and {len(tensors) - 1} more tensors" if len(tensors) > 1 else ""
    return _title(tensors[0]) + more


def _title(tensor: TensorFacts) -> str:
    return f"{tensor.name} ({tensor.key})" if tensor.key else tensor.name


def _step(checkpoint: Checkpoint) -> int:
    return checkpoint.step if isinstance(checkpoint.step, int) else -1
