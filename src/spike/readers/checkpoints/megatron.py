"""What is in Megatron-LM's own (legacy) layout? `iter_<N>/mp_rank_TT[_PPP]/model_optim_rng.pt`, one file a model rank.

Replicated weights (LayerNorm) are stored by every tensor-parallel rank, so ranks can be held against each other.
`latest_checkpointed_iteration.txt` above is written after the save. (megatron/training/checkpointing.py)
"""

from __future__ import annotations

import re
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.rotation import Rotation
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import Parts
from spike.readers.checkpoints._rotation import limit_of
from spike.readers.checkpoints.contract import NAMED_STACK, Damaged

_RANK = re.compile(r"^mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?$")
ITERATION = re.compile(r"^iter_(\d+)$")
TRACKER = "latest_checkpointed_iteration.txt"
_FILES = ("model_optim_rng.pt", "model_rng.pt", "distrib_optim.pt")


class Megatron(DirectoryReader):
    """One `iter_<N>` directory."""

    layout = "megatron"
    step_name = ITERATION
    specificity = NAMED_STACK
    has_marker = False

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Directories of model ranks; DeepSpeed's files of that name end in .pt."""
        return any(_RANK.match(name) for name in names)

    def read(self, parts: Parts) -> None:
        """The files of every rank; torn where a rank of the grid is missing."""
        folders = sorted(entry for entry in parts.root.iterdir() if entry.is_dir() and _RANK.match(entry.name))
        for folder in folders:
            found = [folder / file for file in _FILES if (folder / file).is_file()]
            if not found:
                parts.damages.append(Damaged(f"{folder.name}: holds no checkpoint file", Integrity.TORN))
            for file in found:
                parts.add(file)
        _check_grid(parts, [match for folder in folders if (match := _RANK.match(folder.name))])
        check_tracker(parts, parts.root)

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """See `tracked_rotation`."""
        return tracked_rotation(self.layout, group)

    def latest(self, group: tuple[Checkpoint, ...]) -> tuple[str, str]:
        """What the tracker file names."""
        return tracked(Path(group[0].path).parent), f"what {TRACKER} names"


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


def check_tracker(parts: Parts, path: Path) -> None:
    """The tracker is written after the save: it tells one that was not finished, or was begun again."""
    tracker = path.parent / TRACKER
    step = re.search(r"(\d+)$", path.name)
    if step is None or not tracker.is_file() or tracker.stat().st_size > 256:
        return
    text = tracker.read_text(errors="replace").strip()
    if text.isdecimal() and int(text) < int(step[1]):
        parts.notes.append(f"{TRACKER} still names {int(text)}: this save may not have been finished")
    elif text.isdecimal() and int(text) == int(step[1]):
        parts.note_times(tracker, [path / name for name in parts.used])


def tracked(directory: Path) -> str:
    """The checkpoint that the tracker file names, "" where there is none."""
    tracker = directory / TRACKER
    text = tracker.read_text(errors="replace").strip()[:64] if tracker.is_file() else ""
    path = directory / (f"iter_{int(text):07d}" if text.isdecimal() else text)
    return str(path) if text in ("release", *filter(str.isdecimal, [text])) and path.is_dir() else ""


def tracked_rotation(layout: str, group: tuple[Checkpoint, ...]) -> Rotation:
    """With save_retain_interval the iteration that was tracked before goes after a save, unless it is a multiple."""
    directory = Path(group[0].path).parent
    stored, interval = limit_of(group, "args.save_retain_interval")
    if not stored:
        why = "the stored arguments do not tell save_retain_interval"
        return Rotation(layout, str(directory), "save_retain_interval decides", unknown=why)
    if interval is None or interval <= 0:
        return Rotation(layout, str(directory), "save_retain_interval is not set: Megatron keeps all")
    path = tracked(directory)
    step = re.search(r"(\d+)$", path)
    rule = f"save_retain_interval={interval}: after the next save the one tracked before goes, unless it is a multiple"
    is_kept = step is None or int(step[1]) % interval == 0 or Path(path).is_symlink()
    return Rotation(layout, str(directory), rule, () if is_kept else (path,))


READER = Megatron()
