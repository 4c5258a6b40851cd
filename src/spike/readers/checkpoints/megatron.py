"""What is in Megatron-LM's own (legacy) layout? `iter_<N>/mp_rank_TT[_PPP]/model_optim_rng.pt`, one file a model rank.

Replicated weights (LayerNorm) are stored by every tensor-parallel rank, so ranks can be held against each other.
`latest_checkpointed_iteration.txt` above is written after the save. (megatron/training/checkpointing.py)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.readers.checkpoints._describe import describe, files_below, foreign_note
from spike.readers.checkpoints._parts import Parts
from spike.readers.checkpoints.contract import NAMED_STACK, Checked, Damaged, LazyTensor

_RANK = re.compile(r"^mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?$")
TRACKER = "latest_checkpointed_iteration.txt"
_FILES = ("model_optim_rng.pt", "model_rng.pt", "distrib_optim.pt")


class Megatron:
    """One `iter_<N>` directory."""

    layout = "megatron"
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Directories of model ranks; DeepSpeed's files of that name end in .pt."""
        return any(_RANK.match(name) for name in names)

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts; torn where a rank of the grid is missing."""
        parts = self._read(path)
        files = files_below(path)
        return describe(
            path,
            self.layout,
            files,
            parts.contents,
            damage=parts.damage(),
            notes=(*parts.notes, *foreign_note(parts.foreign)),
            strays=(n for n in map(parts.name, files) if n not in parts.used),
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """The tensors of every rank under their file."""
        yield from self._read(path).contents.tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Unreadable parts, and members against their CRCs."""
        parts = self._read(path)
        yield from ((damage.message.partition(":")[0], damage.message) for damage in parts.damages)
        yield from parts.mismatches(checked)

    def _read(self, path: Path) -> Parts:
        parts = Parts(path)
        ranks = {entry.name: _RANK.match(entry.name) for entry in sorted(path.iterdir()) if entry.is_dir()}
        for name, match in ranks.items():
            if match is None:
                continue
            found = [path / name / file for file in _FILES if (path / name / file).is_file()]
            if not found:
                parts.damages.append(Damaged(f"{name}: holds no checkpoint file", Integrity.TORN))
            for file in found:
                parts.add(file)
        _check_grid(parts, [m for m in ranks.values() if m is not None])
        note_tracker(parts, path)
        return parts


def _check_grid(parts: Parts, matches: list[re.Match[str]]) -> None:
    """Tensor ranks times pipeline ranks must be there; the stored arguments say how many there are of each."""
    present = {(int(m[1]), int(m[2] or 0)) for m in matches}
    sizes = []
    for place, key in enumerate(("tensor_model_parallel_size", "pipeline_model_parallel_size")):
        text = parts.contents.config.get(f"args.{key}", "")
        sizes.append(int(text) if text.isdecimal() else max((rank[place] for rank in present), default=0) + 1)
    wanted = {(tensor, pipeline) for tensor in range(sizes[0]) for pipeline in range(sizes[1])}
    absent = sorted(wanted - present)
    if absent:
        tensor, pipeline = absent[0]
        what = f"{len(absent)} of {len(wanted)} model ranks are missing, first tensor {tensor} pipeline {pipeline}"
        parts.damages.append(Damaged(what, Integrity.TORN))


def note_tracker(parts: Parts, path: Path) -> None:
    """The tracker names the newest finished save: a directory above it may not be finished."""
    tracker = path.parent / TRACKER
    step = re.search(r"(\d+)$", path.name)
    if step is None or not tracker.is_file() or tracker.stat().st_size > 256:
        return
    text = tracker.read_text(errors="replace").strip()
    if text.isdecimal() and int(text) < int(step[1]):
        parts.notes.append(f"{TRACKER} still names {int(text)}: this save may not have been finished")


READER = Megatron()
