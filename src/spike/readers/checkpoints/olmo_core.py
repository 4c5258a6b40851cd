"""What is in an OLMo-core checkpoint? `step<N>/` with train/rank<r>.pt, model_and_optim/ and .metadata.json last.

(olmo_core/train/checkpoint.py: a directory counts as a checkpoint with train/rank0.pt, model_and_optim/.metadata and
.metadata.json; removal deletes .metadata.json first)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.readers.checkpoints._dcp import DcpIndex, slice_mismatches
from spike.readers.checkpoints._describe import describe, files_below, foreign_note
from spike.readers.checkpoints._parts import Parts, check_ranks
from spike.readers.checkpoints.contract import NAMED_STACK, Checked, Damaged, LazyTensor
from spike.readers.checkpoints.dcp import read_dcp

MARKER = ".metadata.json"
_RANK = re.compile(r"^rank(\d+)\.pt$")


class OlmoCore:
    """One `step<N>` directory."""

    layout = "olmo-core"
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Its two folders, or one of them with the marker."""
        return "model_and_optim" in names and ("train" in names or MARKER in names)

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts; torn without the marker or without a rank's state."""
        parts = Parts(path)
        self._read(parts)
        files = files_below(path)
        known = (".distcp", ".metadata", MARKER)
        return describe(
            path,
            self.layout,
            files,
            parts.contents,
            damage=parts.damage(),
            notes=(*parts.notes, *foreign_note(parts.foreign)),
            strays=(n for n in map(parts.name, files) if n not in parts.used and not n.endswith(known)),
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Every tensor, whole, and the states of every rank."""
        parts = Parts(path)
        self._read(parts)
        yield from parts.contents.tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Damage of the structure, and everything against its CRC."""
        parts = Parts(path)
        index = self._read(parts)
        yield from ((damage.message.partition(":")[0], damage.message) for damage in parts.damages)
        yield from parts.mismatches(checked)
        if index is not None:
            yield from slice_mismatches(index, checked)

    def _read(self, parts: Parts) -> DcpIndex | None:
        root = parts.root
        if not (root / MARKER).is_file():
            parts.damages.append(
                Damaged(f"{MARKER} is missing: it is written last, so the save was cut off", Integrity.TORN)
            )
        train = root / "train"
        names = sorted(entry.name for entry in train.iterdir()) if train.is_dir() else []
        ranks = [name for name in names if _RANK.match(name)]
        if not ranks:
            parts.damages.append(Damaged("train/rank0.pt is missing", Integrity.TORN))
        for name in sorted(ranks, key=lambda name: int(_RANK.sub(r"\1", name))):
            parts.add(train / name)
        check_ranks(parts, ranks, _RANK, "train states")
        _check_world(parts, len(ranks))
        if (root / "config.json").is_file():
            parts.add_json(root / "config.json", "config")
        return read_dcp(parts, root / "model_and_optim")


def _check_world(parts: Parts, num_ranks: int) -> None:
    world = int(parts.contents.scalars.get("world_size", 0))
    if world > num_ranks:
        parts.damages.append(
            Damaged(f"train states of {world - num_ranks} of {world} ranks are missing", Integrity.TORN)
        )


READER = OlmoCore()
