"""Can the checkpoints around the onset be trusted, and what happened between them?

Whole, finite, moving, of one generation, and without a single element that no update explains. Everything is read
from the files' bytes; nothing is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spike.actions.checks.check_generation import generation
from spike.actions.checks.check_inventory import Rows, inventory
from spike.actions.checks.check_scene import Scene
from spike.actions.checks.compare_checkpoints import Compared, compare
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
        generation(scene, scene.last_good, history),
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
        f"moved from step {compared.before.step} to {compared.after.step}, by {100 * typical:.3g}% of their "
        f"norm (median){_advance(scene, compared)}"
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
