"""What is in a DeepSpeed directory? `global_step<N>/` with model states and one file of optimizer partitions a rank.

`latest` beside it is written after all ranks are done. Optimizer files pickle DeepSpeed's own classes, which are read
as inert records. Partitions are flat pieces of all parameters, so they have no place in an optimizer's order.
(deepspeed/runtime/engine.py `save_checkpoint`)
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity, Role
from spike.domain.rotation import Rotation
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import Parts
from spike.readers.checkpoints.contract import NAMED_STACK, Damaged, LazyTensor

LATEST = "latest"
_MODEL = re.compile(r"^(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)(?:_\w+)?_model_states\.pt$")
_OPTIMIZER = re.compile(r"^(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
_MOMENT = re.compile(r"^optimizer_state_dict\.(?:base_optimizer_state|optimizer_state_dict)\.state\.(\d+)\.(\w+)$")
_MASTER = re.compile(r"^optimizer_state_dict\.(?:single_partition_of_fp32_groups|fp32_flat_groups)\.(\d+)$")


class DeepSpeed(DirectoryReader):
    """One `global_step<N>` directory."""

    layout = "deepspeed"
    step_name = re.compile(r"^global_step(\d+)$")
    specificity = NAMED_STACK
    lockstep = True
    has_marker = False

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Files named as DeepSpeed names them."""
        return any(_MODEL.match(name) or _OPTIMIZER.match(name) for name in names)

    def read(self, parts: Parts) -> None:
        """Model states first: they hold the step. Torn where partitions of ranks are missing."""
        names = {entry.name for entry in parts.root.iterdir() if entry.is_file()}
        for name in sorted(filter(_MODEL.match, names)):
            parts.add(parts.root / name)
        if not any(_MODEL.match(name) for name in names):
            parts.damages.append(Damaged("has no model states", Integrity.TORN))
        for name in sorted(filter(_OPTIMIZER.match, names)):
            parts.add(parts.root / name)
        parts.contents.tensors = [_as_moment(tensor) for tensor in parts.contents.tensors]
        if any(tensor.role is Role.MOMENT for tensor in parts.contents.tensors):
            parts.contents.present.add("optimizer")
        _check_partitions(parts, names)
        _check_latest(parts)

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """Nothing is deleted; a save under a tag that is there writes over it."""
        return Rotation(self.layout, str(Path(group[0].path).parent), "DeepSpeed deletes nothing by itself")

    def latest(self, group: tuple[Checkpoint, ...]) -> tuple[str, str]:
        """What `latest` names."""
        file = Path(group[0].path).parent / LATEST
        named = file.read_text(errors="replace").strip()[:256] if file.is_file() else ""
        is_there = bool(named) and "/" not in named and (file.parent / named).is_dir()
        return str(file.parent / named) if is_there else "", f"what `latest` names: {named or 'it is not there'}"

    def knows(self, name: str) -> bool:
        """The converter scripts that DeepSpeed copies in; they are never run."""
        return name in ("zero_to_fp32.py", "zero_to_torch.py")


def _as_moment(tensor: LazyTensor) -> LazyTensor:
    match = _MOMENT.match(tensor.name)
    if match:
        return replace(tensor, role=Role.MOMENT, name=match[1], key=match[2])
    match = _MASTER.match(tensor.name)
    return replace(tensor, role=Role.MOMENT, name=match[1], key="fp32_partition") if match else tensor


def _check_partitions(parts: Parts, names: set[str]) -> None:
    """Every data-parallel rank writes its own partition; the model file says how many there are."""
    present = {(int(m[1]), int(m[2])) for name in names if (m := _OPTIMIZER.match(name))}
    world = int(parts.contents.scalars.get("dp_world_size", 0))
    model_ranks = {int(m[2]) for name in names if (m := _MODEL.match(name))}
    wanted = {(rank, model) for rank in range(world) for model in model_ranks}
    absent = sorted(wanted - present)
    if absent and (present or "zero_optimization" in str(parts.contents.config)):
        listed = ", ".join(str(rank) for rank, _ in absent[:8])
        parts.damages.append(
            Damaged(f"{len(absent)} of {len(wanted)} optimizer partitions are missing (rank {listed})", Integrity.TORN)
        )


def _check_latest(parts: Parts) -> None:
    """`latest` is written after every rank is done: it tells a save that was not finished, or was begun again."""
    latest = parts.root.parent / LATEST
    step = re.search(r"(\d+)$", parts.root.name)
    if step is None or not latest.is_file() or latest.stat().st_size > 256:
        return
    named = re.search(r"(\d+)\s*$", latest.read_text(errors="replace"))
    if named and int(named[1]) < int(step[1]):
        parts.notes.append(f"`latest` still names step {int(named[1])}: this save may not have been finished")
    elif named and int(named[1]) == int(step[1]):
        parts.note_times(latest, [parts.root / name for name in parts.used])


READER = DeepSpeed()
