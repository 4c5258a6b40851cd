"""What is in a Hugging Face Trainer checkpoint? `checkpoint-<step>/`, complete once trainer_state.json is there.

The Trainer writes the model first and trainer_state.json last, straight into the final directory; there is no
other completion marker. (transformers/trainer.py `_save_checkpoint`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._contents import as_mapping, flatten, number
from spike.readers.checkpoints._describe import describe, files_below, foreign_note
from spike.readers.checkpoints._parts import Parts, check_ranks, check_shards, read_json
from spike.readers.checkpoints._times import saved_over
from spike.readers.checkpoints._torch_file import read_torch_file
from spike.readers.checkpoints.contract import NAMED_STACK, Checked, Damaged, LazyTensor
from spike.readers.checkpoints.dcp import read_dcp

_DIRECTORY = re.compile(r"^checkpoint-(\d+)$")
_MODEL = re.compile(r"^((adapter_)?model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)$")
_SHARDED = re.compile(r"^(pytorch_model_fsdp|optimizer)_\d+$")
"""Directories of a sharded FSDP save."""
_RNG_RANK = re.compile(r"^rng_state_(\d+)\.pth$")
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin", "optimizer_0")
_KNOWN = re.compile(
    r"^(trainer_state\.json|training_args\.bin|config\.json|generation_config\.json|adapter_config\.json|"
    r"(optimizer|scheduler|scaler)\.(pt|bin)|rng_state(_\d+)?\.pth|.*token.*|.*\.index\.json|vocab\..*|merges\.txt|"
    r"chat_template\..*|.*preprocessor_config\.json|processor_config\.json|spiece\.model|README\.md|latest|"
    r"zero_to_fp32\.py)$"
)


class HfTrainer:
    """One `checkpoint-<step>` directory."""

    layout = "hf-trainer"
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """A directory with the Trainer's files that is not the output directory above the checkpoints."""
        if any(_DIRECTORY.match(name) for name in names):
            return False
        has_model = any(_MODEL.match(name) for name in names)
        if "trainer_state.json" in names:
            return has_model or any(name in names for name in _OPTIMIZERS)
        marks = ("training_args.bin", "scheduler.pt", "optimizer.pt", "rng_state.pth", "rng_state_0.pth")
        return _DIRECTORY.match(path.name) is not None and (has_model or any(name in names for name in marks))

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts; torn where the last file of the save is missing or parts of it are."""
        parts = self._read(path)
        files = files_below(path)
        return describe(
            path,
            self.layout,
            files,
            parts.contents,
            damage=parts.damage(),
            notes=(*parts.notes, *foreign_note(parts.foreign)),
            strays=(n for n in map(parts.name, files) if n not in parts.used and not _KNOWN.match(n)),
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Model, moments and the RNG states of every rank."""
        yield from self._read(path).contents.tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Unreadable parts, and members against their CRCs."""
        parts = self._read(path)
        yield from ((damage.message.partition(":")[0], damage.message) for damage in parts.damages)
        yield from parts.mismatches(checked)

    def _read(self, path: Path) -> Parts:
        parts = Parts(path)
        names = {entry.name for entry in path.iterdir()}
        args = self._training_args(parts, path / "training_args.bin")
        self._state(parts, path, args)
        for name in sorted(filter(_MODEL.match, names)):
            parts.add(path / name)
        check_shards(parts, path, names)
        for name in sorted(names):
            if name in ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt") or name.startswith("rng_state"):
                parts.add(path / name)
        for name in sorted(filter(_SHARDED.match, names)):
            read_dcp(parts, path / name)
        self._check_complete(parts, names, args)
        if (path / "config.json").is_file():
            parts.add_json(path / "config.json", "config")
        return parts

    def _training_args(self, parts: Parts, path: Path) -> dict[Any, Any]:
        """The attributes of the pickled TrainingArguments, as data."""
        if not path.is_file():
            return {}
        parts.used.add(path.name)
        try:
            file = read_torch_file(path)
        except InputUnreadable as error:
            damage = error if isinstance(error, Damaged) else Damaged(error.message, Integrity.CORRUPT)
            parts.damages.append(damage)
            return {}
        if file.archive is not None:
            parts.archives.append((path.name, file.archive))
        parts.contents.config |= dict(flatten(file.value, "training_args"))
        return as_mapping(file.value) or {}

    def _state(self, parts: Parts, path: Path, args: dict[Any, Any]) -> None:
        state_file = path / "trainer_state.json"
        parts.used.add(state_file.name)
        if not state_file.is_file():
            parts.damages.append(
                Damaged("trainer_state.json is missing: it is written last, so the save was cut off", Integrity.TORN)
            )
            return
        try:
            state = read_json(state_file)
        except Damaged as damage:
            parts.damages.append(damage)
            return
        step = state.get("global_step")
        if isinstance(step, int) and not isinstance(step, bool):
            parts.contents.step = step
        for key in ("global_step", "epoch", "num_input_tokens_seen", "train_batch_size"):
            amount = number(state.get(key))
            if amount is not None:
                parts.contents.scalars[key] = amount
        if args.get("ignore_data_skip") is not True:
            # The Trainer derives the position in the data from the step, unless it was told not to.
            parts.contents.present.add("data-cursor")
        early = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "model.safetensors")
        over, note = saved_over(state_file, [path / name for name in early if (path / name).is_file()])
        parts.damages += [over] if over else []
        parts.notes += [note] if note else []

    def _check_complete(self, parts: Parts, names: set[str], args: dict[Any, Any]) -> None:
        if not any(_MODEL.match(name) or name.startswith("pytorch_model_fsdp") for name in names):
            parts.damages.append(Damaged("has no model file", Integrity.TORN))
        has_optimizer = any(name in _OPTIMIZERS or name.startswith("global_step") for name in names)
        if not has_optimizer and args.get("save_only_model") is not True:
            parts.damages.append(Damaged("has no optimizer file, and save_only_model was not set", Integrity.TORN))
        check_ranks(parts, names, _RNG_RANK, "RNG states")


READER = HfTrainer()
