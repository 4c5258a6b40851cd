"""What is in a Lightning `.ckpt`? One torch archive with the trainer's own keys, or a directory of a sharded strategy.

A file is written to a temporary name and moved, so one that exists is usually whole. The directory of FSDP and
ModelParallel is a distributed checkpoint with the trainer's keys in meta.pt, which is written last and in place.
(lightning/pytorch/strategies/model_parallel.py `save_checkpoint`)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.errors import InputUnreadable
from spike.domain.rotation import Rotation
from spike.readers.checkpoints._contents import Contents, as_mapping, flatten, interpret, number, step_of
from spike.readers.checkpoints._dcp import METADATA
from spike.readers.checkpoints._describe import describe, foreign_note
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import Parts
from spike.readers.checkpoints._rotation import setting
from spike.readers.checkpoints._zip import is_zip, mismatches
from spike.readers.checkpoints.contract import NAMED_STACK, Checked, Damaged, LazyTensor
from spike.readers.checkpoints.dcp import read_dcp
from spike.readers.checkpoints.torch_zip import read_any, unverifiable

MARKER = "meta.pt"
_MARK = b"pytorch-lightning_version"
HEAD_BYTES = 4096
"""data.pkl is the first member, and the version one of its first keys."""
_SAVER_FIELDS = ("monitor", "best_model_path", "kth_best_model_path", "last_model_path", "dirpath")


class Lightning(DirectoryReader):
    """One file or directory; `last.ckpt` is a copy of another one or a link to it."""

    layout = "lightning"
    step_name = re.compile(r"^epoch=\d+-step=(\d+)(-v\d+)?\.ckpt$")
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """A torch archive whose first bytes hold Lightning's version key; a `.ckpt` directory of shards."""
        if names:
            is_dcp = any(name.endswith(".distcp") or METADATA.match(name) for name in names)
            return is_dcp and (path.suffix == ".ckpt" or MARKER in names)
        if path.suffix != ".ckpt" or not path.is_file() or not is_zip(path):
            return False
        with path.open("rb") as file:
            return _MARK in file.read(HEAD_BYTES)

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts and its structural verdict."""
        if path.is_dir():
            return super().inspect(path)
        try:
            file = read_any(path)
            contents = interpret(file, path.name)
        except InputUnreadable as error:
            damage = error if isinstance(error, Damaged) else Damaged(error.message, Integrity.CORRUPT)
            return describe(path, self.layout, [path], Contents(), damage=damage)
        _understand(contents, file.value)
        return describe(
            path, self.layout, [path], contents, damage=unverifiable(file), notes=foreign_note(file.foreign)
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Every tensor, whole."""
        if path.is_dir():
            yield from super().tensors(path)
        else:
            yield from interpret(read_any(path), path.name).tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Members that belong to no tensor, and slices, against their CRCs."""
        if path.is_dir():
            yield from super().finish(path, checked)
            return
        archive = read_any(path).archive
        if archive is not None:
            yield from mismatches(archive, checked, path.name)

    def read(self, parts: Parts) -> None:
        """The shards, and the trainer's own state; torn without it."""
        marker = parts.root / MARKER
        if marker.is_file():
            file = parts.add(marker)
            if file is not None:
                _understand(parts.contents, file.value)
            parts.note_times(marker, parts.root.glob("*.distcp"))
        else:
            parts.damages.append(
                Damaged(f"{MARKER} is missing: it is written last, so the save was cut off", Integrity.TORN)
            )
        read_dcp(parts, parts.root)

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """After a save the worst by the monitored value goes, or the one before where nothing is monitored."""
        directory = str(Path(group[0].path).parent)
        saved = [c for c in group if not Path(c.path).name.startswith("last")]
        newest = max(saved or group, key=lambda c: c.mtime_ns)
        monitor, best = _remembered(newest, "monitor"), _remembered(newest, "best_model_path")
        if monitor is None and best is None:
            return Rotation(self.layout, directory, "save_top_k decides", unknown="no ModelCheckpoint left its state")
        if monitor:
            return self._by_value(directory, saved, newest, str(monitor))
        rule = "save_top_k, nothing monitored: after the next save the one before it goes"
        if len(saved) > 1:
            return Rotation(self.layout, directory, "save_top_k=-1, as the older ones that are there say: all are kept")
        return Rotation(self.layout, directory, rule, (newest.path,), assumes="save_top_k is 1 (it is stored nowhere)")

    def _by_value(self, directory: str, saved: list[Checkpoint], newest: Checkpoint, monitor: str) -> Rotation:
        rule = f"save_top_k by {monitor!r}: once k are kept, a better save deletes the worst of them"
        kept, worst = _remembered(newest, "num_best"), str(_remembered(newest, "kth_best_model_path") or "")
        # With save_top_k=-1 the list grows at every save; a list that an older file already had is full.
        is_full = any(c is not newest and _remembered(c, "num_best") == kept for c in saved)
        path = Path(directory) / Path(worst).name
        if not worst or not path.exists():
            return Rotation(self.layout, directory, rule, unknown="no k checkpoints are kept yet, or the worst is gone")
        if is_full:
            assumes = f"the next save is better in {monitor!r} than {path.name}, the worst of {kept}"
        else:
            assumes = f"save_top_k is {kept} (it is stored nowhere) and the next save is better in {monitor!r}"
        return Rotation(self.layout, directory, rule, (str(path),), assumes=assumes)

    def knows(self, name: str) -> bool:
        """Data files and indexes."""
        return name.endswith((".distcp", ".metadata"))


def _understand(contents: Contents, value: Any) -> None:
    """The trainer's progress, its version, and what its ModelCheckpoint callbacks remember."""
    top = as_mapping(value) or {}
    contents.step = step_of(top)
    for key, text in flatten(top.get("loops"), "loops"):
        if ".batch_progress.total." in key and "fit_loop" in key and "val_loop" not in key:
            amount = number(int(text)) if text.isdecimal() else None
            if amount is not None:
                # `completed` lags one behind where the file was saved at the end of a batch: `processed` counts.
                contents.scalars[f"fit_loop.batches.{key.rpartition('.')[2]}"] = amount
    version = top.get(_MARK.decode())
    if isinstance(version, str):
        contents.config["lightning_version"] = f'"{version[:40]}"'
    savers = [state for key, state in (as_mapping(top.get("callbacks")) or {}).items() if "ModelCheckpoint" in str(key)]
    for place, state in enumerate(savers):
        _remember(contents, f"model_checkpoint.{place}", as_mapping(state) or {})


def _remember(contents: Contents, prefix: str, state: dict[Any, Any]) -> None:
    for name in _SAVER_FIELDS:
        if isinstance(state.get(name), str | None):
            contents.config[f"{prefix}.{name}"] = json.dumps(state.get(name))
    best = as_mapping(state.get("best_k_models"))
    if best is not None:
        contents.config[f"{prefix}.num_best"] = str(len(best))


def _remembered(checkpoint: Checkpoint, name: str) -> object:
    """What the first ModelCheckpoint remembers under a name, None where there is none."""
    try:
        return setting(checkpoint, f"model_checkpoint.0.{name}")
    except (KeyError, ValueError):
        return None


READER = Lightning()
