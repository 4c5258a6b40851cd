"""Are weights and moments of one generation, or is a part of them another checkpoint's?"""

from __future__ import annotations

import re
from collections import defaultdict

from spike.actions.checks.check_scene import Scene
from spike.actions.checks.compare_checkpoints import Compared
from spike.domain.checkpoint import Checkpoint, Role
from spike.domain.compare import step_counters
from spike.domain.facts import NOT_MEASURED, Fact
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


def generation(scene: Scene, checkpoint: Checkpoint, history: Compared | None) -> Fact:
    """Are weights and moments those of this step, or are some of them another checkpoint's?"""
    name, evidence, shown = "checkpoint.generation", [scene.evidence(checkpoint)], scene.original(checkpoint)
    own = checksums(checkpoint, limit=SAMPLED_TENSORS)
    compared = 0
    for other in _nearest(scene, checkpoint):
        theirs = checksums(other, own.keys()) if own else {}
        compared += bool(theirs)
        shared = _shared_parts(own, theirs)
        differs = any(key in theirs and mark != theirs[key] for key, mark in own.items())
        if shared and (differs or other.step != checkpoint.step):  # else it is a copy
            text = f"the {shared[0]} of {shown} are byte by byte those of {scene.original(other)} (step {other.step})"
            text += ", the rest is not" if differs else ""
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


def _step(checkpoint: Checkpoint) -> int:
    return checkpoint.step if isinstance(checkpoint.step, int) else -1
