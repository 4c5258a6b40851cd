"""What is in a Hugging Face Trainer checkpoint? `checkpoint-<step>/`, complete once trainer_state.json is there.

The Trainer writes the model first and trainer_state.json last, straight into the final directory; there is no
other completion marker. (transformers/trainer.py `_save_checkpoint`)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.errors import InputUnreadable
from spike.domain.rotation import Rotation, beyond
from spike.readers.checkpoints._contents import as_mapping, flatten, number
from spike.readers.checkpoints._describe import step_counter
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import Parts, check_ranks, check_shards, read_json
from spike.readers.checkpoints._rotation import directories, highest, limit_of, setting
from spike.readers.checkpoints._torch_file import read_torch_file
from spike.readers.checkpoints.contract import NAMED_STACK, Damaged
from spike.readers.checkpoints.dcp import read_dcp

_DIRECTORY = re.compile(r"^checkpoint-(\d+)$")
_MODEL = re.compile(r"^((adapter_)?model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)$")
_SHARDED = re.compile(r"^(pytorch_model_fsdp|optimizer)_\d+$")
"""Directories of a sharded FSDP save."""
_RNG_RANK = re.compile(r"^rng_state_(\d+)\.pth$")
_EARLY = re.compile(
    r"^(optimizer|scheduler|scaler)\.(pt|bin)$|^rng_state(_\d+)?\.pth$|^.*\.safetensors$|^pytorch_model.*\.bin$"
)
"""Written before trainer_state.json."""
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin", "optimizer_0")
_KNOWN = re.compile(
    r"^(trainer_state\.json|training_args\.bin|config\.json|generation_config\.json|adapter_config\.json|"
    r"(optimizer|scheduler|scaler)\.(pt|bin)|rng_state(_\d+)?\.pth|.*token.*|.*\.index\.json|vocab\..*|merges\.txt|"
    r"chat_template\..*|.*preprocessor_config\.json|processor_config\.json|spiece\.model|README\.md|latest|"
    r"zero_to_fp32\.py)$"
)


class HfTrainer(DirectoryReader):
    """One `checkpoint-<step>` directory."""

    layout = "hf-trainer"
    step_name = _DIRECTORY
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

    def read(self, parts: Parts) -> None:
        """Its parts; torn where the last file of the save is missing or parts of it are."""
        path = parts.root
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
        _check_counts(parts)
        if (path / "config.json").is_file():
            parts.add_json(path / "config.json", "config")

    def knows(self, name: str) -> bool:
        """What else the Trainer saves beside the state: tokenizers, settings, sharded data files."""
        return _KNOWN.match(name) is not None or name.endswith((".distcp", ".metadata"))

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """After a save the oldest by time go, by number where all times lie within a second; the best stays."""
        directory = str(Path(group[0].path).parent)
        stored, limit = limit_of(group, "training_args.save_total_limit")
        if not stored:
            why = "training_args.bin is not there to tell save_total_limit"
            return Rotation(self.layout, directory, "save_total_limit decides", unknown=why)
        if limit is None or limit <= 0:
            return Rotation(self.layout, directory, "save_total_limit is not set: the Trainer keeps all")
        ordered = [str(path) for path in by_time([path for _, path in directories(directory, _DIRECTORY)])]
        best, coming = _best(group[-1]), "the next one"
        gone = beyond([*ordered, coming], limit, {coming, *(path for path in ordered if Path(path).name == best)})
        rule = f"save_total_limit={limit}: after the next save the oldest by time beyond {limit} go"
        return Rotation(self.layout, directory, rule + (f", never the best one, {best}" if best else ""), gone)

    def latest(self, group: tuple[Checkpoint, ...]) -> tuple[str, str]:
        """The highest number, whole or not."""
        return highest(str(Path(group[0].path).parent), _DIRECTORY), "the highest checkpoint-<step>, whole or not"

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
        best = state.get("best_model_checkpoint")
        parts.contents.config["trainer_state.best_model_checkpoint"] = json.dumps(
            best if isinstance(best, str) else None
        )
        parts.note_times(state_file, (entry for entry in path.iterdir() if _EARLY.match(entry.name)))

    def _check_complete(self, parts: Parts, names: set[str], args: dict[Any, Any]) -> None:
        if not any(_MODEL.match(name) or name.startswith("pytorch_model_fsdp") for name in names):
            parts.damages.append(Damaged("has no model file", Integrity.TORN))
        has_optimizer = any(name in _OPTIMIZERS or name.startswith("global_step") for name in names)
        if not has_optimizer and args.get("save_only_model") is not True:
            parts.damages.append(Damaged("has no optimizer file, and save_only_model was not set", Integrity.TORN))
        check_ranks(parts, names, _RNG_RANK, "RNG states")


def _check_counts(parts: Parts) -> None:
    """The Trainer moves its scheduler with its optimizer, so their counts are equal unless one is of another save."""
    counted, scheduled = step_counter(parts.contents), parts.contents.scalars.get("scheduler.last_epoch")
    if counted is not None and scheduled is not None and counted != scheduled:
        parts.notes.append(
            f"mixed generations? optimizer counts {counted:g} updates and scheduler.pt {scheduled:g} steps, which the "
            "Trainer moves together"
        )


def by_time(folders: list[Path]) -> list[Path]:
    """The Trainer's order of age: by the directories' times, by number where those lie within a second."""
    times = {folder: folder.stat().st_mtime for folder in folders}
    if not times or max(times.values()) - min(times.values()) < 1.0:
        return folders
    return sorted(folders, key=lambda folder: (times[folder], str(folder)))


def _best(checkpoint: Checkpoint) -> str:
    """Name of the directory that the newest state calls the best, "" where there is none."""
    try:
        best = setting(checkpoint, "trainer_state.best_model_checkpoint")
    except (KeyError, ValueError):
        return ""
    return Path(best).name if isinstance(best, str) else ""


READER = HfTrainer()
