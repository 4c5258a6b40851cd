"""What is in a directory of accelerate's `save_state`? Weights, optimizers and one file of random states a rank.

`checkpoint_<i>` counts saves, not steps, and no file is written last on purpose: only the files themselves can tell
whether the save came to its end. (accelerate/checkpointing.py)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity, Role
from spike.readers.checkpoints._describe import describe, files_below, foreign_note, step_counter
from spike.readers.checkpoints._parts import Parts, check_ranks, check_shards
from spike.readers.checkpoints.contract import NAMED_STACK, Checked, Damaged, LazyTensor
from spike.readers.checkpoints.dcp import read_dcp

_RANDOM = re.compile(r"^random_states_(\d+)\.pkl$")
_MODEL = re.compile(r"^(model|pytorch_model)(_\d+)?(-\d+-of-\d+)?\.(safetensors|bin)$")
_OTHER = re.compile(r"^(optimizer|scheduler|sampler|dl_state_dict|custom_checkpoint)(_\d+)?\.(bin|pkl)$|^scaler\.pt$")
_SHARDED = re.compile(r"^(pytorch_model_fsdp|optimizer)_\d+$")


class Accelerate:
    """One `save_state` directory."""

    layout = "accelerate"
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Random states of a rank beside anything else that accelerate saves."""
        known = any(_MODEL.match(n) or _OTHER.match(n) or _SHARDED.match(n) for n in names)
        return known and any(_RANDOM.match(name) for name in names)

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts; the step is the optimizer's own count, since nothing else in it counts steps."""
        parts = self._read(path)
        files = files_below(path)
        return describe(
            path,
            self.layout,
            files,
            parts.contents,
            damage=parts.damage(),
            notes=(*parts.notes, *foreign_note(parts.foreign)),
            strays=(
                n for n in map(parts.name, files) if n not in parts.used and "/" not in n and not n.endswith(".json")
            ),
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Weights, moments and random states."""
        yield from self._read(path).contents.tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Unreadable parts, and members against their CRCs."""
        parts = self._read(path)
        yield from ((damage.message.partition(":")[0], damage.message) for damage in parts.damages)
        yield from parts.mismatches(checked)

    def _read(self, path: Path) -> Parts:
        parts = Parts(path)
        names = {entry.name for entry in path.iterdir()}
        for name in sorted(names):
            if _MODEL.match(name) or _OTHER.match(name) or _RANDOM.match(name):
                parts.add(path / name)
            elif _SHARDED.match(name) and (path / name).is_dir():
                read_dcp(parts, path / name)
        check_shards(parts, path, names)
        check_ranks(parts, names, _RANDOM, "random states")
        if not any(tensor.role is Role.PARAMETER for tensor in parts.contents.tensors) and not parts.damages:
            parts.damages.append(Damaged("has no model file", Integrity.TORN))
        counted = step_counter(parts.contents)
        parts.contents.step = int(counted) if counted is not None and counted.is_integer() else parts.contents.step
        return parts


READER = Accelerate()
