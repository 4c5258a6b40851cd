"""What is in a directory of accelerate's `save_state`? Weights, optimizers and one file of random states a rank.

`checkpoint_<i>` counts saves, not steps, and no file is written last on purpose: only the files themselves can tell
whether the save came to its end. (accelerate/checkpointing.py)
"""

from __future__ import annotations

import re
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity, Role
from spike.domain.rotation import Rotation, beyond, inferred_keep
from spike.readers.checkpoints._describe import step_counter
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import Parts, check_ranks, check_shards
from spike.readers.checkpoints._rotation import directories, highest
from spike.readers.checkpoints.contract import NAMED_STACK, Damaged
from spike.readers.checkpoints.dcp import read_dcp

_RANDOM = re.compile(r"^random_states_(\d+)\.pkl$")
_MODEL = re.compile(r"^(model|pytorch_model)(_\d+)?(-\d+-of-\d+)?\.(safetensors|bin)$")
_OTHER = re.compile(r"^(optimizer|scheduler|sampler|dl_state_dict|custom_checkpoint)(_\d+)?\.(bin|pkl)$|^scaler\.pt$")
_OPTIMIZER = re.compile(r"^optimizer(_\d+)?(\.bin)?$")
_DIRECTORY = re.compile(r"^checkpoint_(\d+)$")
_SHARDED = re.compile(r"^(pytorch_model_fsdp|optimizer)_\d+$")


class Accelerate(DirectoryReader):
    """One `save_state` directory."""

    layout = "accelerate"
    specificity = NAMED_STACK
    has_marker = False

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Random states of a rank beside anything else that accelerate saves."""
        known = any(_MODEL.match(n) or _OTHER.match(n) or _SHARDED.match(n) for n in names)
        return known and any(_RANDOM.match(name) for name in names)

    def read(self, parts: Parts) -> None:
        """Everything in it; the step is the optimizer's own count, since nothing else in it counts steps."""
        names = {entry.name for entry in parts.root.iterdir()}
        for name in sorted(names):
            if _MODEL.match(name) or _OTHER.match(name) or _RANDOM.match(name):
                parts.add(parts.root / name)
            elif _SHARDED.match(name) and (parts.root / name).is_dir():
                read_dcp(parts, parts.root / name)
        check_shards(parts, parts.root, names)
        check_ranks(parts, names, _RANDOM, "random states")
        if not any(tensor.role is Role.PARAMETER for tensor in parts.contents.tensors) and not parts.damages:
            parts.damages.append(Damaged("has no model file", Integrity.TORN))
        if not any(_OPTIMIZER.match(name) for name in names):
            parts.notes.append("has no optimizer file: nothing in it tells a save that was cut off from one without")
        counted = step_counter(parts.contents)
        _check_counts(parts, counted, sum(_RANDOM.match(name) is not None for name in names))
        parts.contents.step = int(counted) if counted is not None and counted.is_integer() else parts.contents.step

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """Before a save the lowest numbers go, so a crash in the save leaves one less."""
        directory = str(Path(group[0].path).parent)
        found = directories(directory, _DIRECTORY)
        if not found:
            return Rotation(self.layout, directory, "saves to a directory of one's own choice are not rotated")
        rule = "BEFORE the next save the lowest numbers beyond total_limit go"
        keep = inferred_keep([number for number, _ in found], first=0)
        gone = beyond([str(path) for _, path in found], (keep or len(found)) - 1)
        if keep is not None:
            assumes = f"total_limit is {keep}, as the numbers that are gone say (it is stored nowhere)"
        else:
            assumes = "total_limit is set and reached (it is stored nowhere)"
        return Rotation(self.layout, directory, rule, gone, assumes=assumes)

    def latest(self, group: tuple[Checkpoint, ...]) -> tuple[str, str]:
        """The highest number, whole or not; a directory of one's own is loaded by its name."""
        directory = str(Path(group[0].path).parent)
        found = highest(directory, _DIRECTORY)
        return found or group[-1].path, "the highest checkpoint_<i>, whole or not" if found else "the one that is named"

    def knows(self, name: str) -> bool:
        """JSON of the model's configuration, and the data files of sharded parts."""
        return "/" in name or name.endswith(".json")


def _check_counts(parts: Parts, counted: float | None, num_ranks: int) -> None:
    """A prepared scheduler moves once a step, or once a step and rank; one that moves by epochs is far below."""
    scheduled = parts.contents.scalars.get("scheduler.last_epoch")
    if counted and scheduled and scheduled not in (counted, counted * num_ranks) and scheduled * 2 > counted:
        parts.notes.append(
            f"mixed generations? the optimizer counts {counted:g} updates and scheduler.bin {scheduled:g} steps"
        )


READER = Accelerate()
