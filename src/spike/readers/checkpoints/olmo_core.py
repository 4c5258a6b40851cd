"""What is in an OLMo-core checkpoint? `step<N>/` with train/rank<r>.pt, model_and_optim/ and .metadata.json last.

(olmo_core/train/checkpoint.py: a directory counts as a checkpoint with train/rank0.pt, model_and_optim/.metadata and
.metadata.json; removal deletes .metadata.json first)
"""

from __future__ import annotations

import re
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.rotation import Rotation
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import Parts, check_ranks
from spike.readers.checkpoints._rotation import highest, setting
from spike.readers.checkpoints.contract import NAMED_STACK, Damaged
from spike.readers.checkpoints.dcp import read_dcp

MARKER = ".metadata.json"
_DIRECTORY = re.compile(r"^step(\d+)$")
_RANK = re.compile(r"^rank(\d+)\.pt$")


class OlmoCore(DirectoryReader):
    """One `step<N>` directory."""

    layout = "olmo-core"
    step_name = _DIRECTORY
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Its two folders, or one of them with the marker."""
        return "model_and_optim" in names and ("train" in names or MARKER in names)

    def read(self, parts: Parts) -> None:
        """The states of every rank, then weights and moments; torn without the marker."""
        root = parts.root
        train = root / "train"
        names = sorted(entry.name for entry in train.iterdir()) if train.is_dir() else []
        ranks = sorted((name for name in names if _RANK.match(name)), key=lambda name: int(_RANK.sub(r"\1", name)))
        self._marker(parts, [train / name for name in ranks])
        if not ranks:
            parts.damages.append(Damaged("train/rank0.pt is missing", Integrity.TORN))
        for name in ranks:
            parts.add(train / name)
        check_ranks(parts, ranks, _RANK, "train states")
        _check_world(parts, len(ranks))
        if (root / "config.json").is_file():
            parts.add_json(root / "config.json", "config")
        if (root / "model_and_optim").is_dir():
            read_dcp(parts, root / "model_and_optim")

    def knows(self, name: str) -> bool:
        """Data files and indexes."""
        return name.endswith((".distcp", ".metadata"))

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """Checkpoints that call themselves ephemeral go at the next save, those of an earlier start included."""
        rule = "ephemeral checkpoints go at the next save, those of an earlier start included; permanent ones stay"
        gone = tuple(checkpoint.path for checkpoint in group if _is_ephemeral(checkpoint))
        return Rotation(self.layout, str(Path(group[0].path).parent), rule, gone)

    def latest(self, group: tuple[Checkpoint, ...]) -> tuple[str, str]:
        """The highest step that has the marker."""
        return highest(str(Path(group[0].path).parent), _DIRECTORY, MARKER), f"the highest step<N> with {MARKER}"

    def _marker(self, parts: Parts, ranks: list[Path]) -> None:
        marker = parts.root / MARKER
        if not marker.is_file():
            parts.damages.append(
                Damaged(f"{MARKER} is missing: it is written last, so the save was cut off", Integrity.TORN)
            )
            return
        parts.add_json(marker, "metadata")
        parts.note_times(marker, [*ranks, *(parts.root / "model_and_optim").glob("*.distcp")])


def _check_world(parts: Parts, num_ranks: int) -> None:
    world = int(parts.contents.scalars.get("world_size", 0))
    if world > num_ranks:
        parts.damages.append(
            Damaged(f"train states of {world - num_ranks} of {world} ranks are missing", Integrity.TORN)
        )


def _is_ephemeral(checkpoint: Checkpoint) -> bool:
    try:
        return setting(checkpoint, "metadata.ephemeral") is True
    except (KeyError, ValueError):
        return False


READER = OlmoCore()
