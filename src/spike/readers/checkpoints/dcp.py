"""What is in a torch.distributed.checkpoint directory? torchtitan's step-<N>/, and whatever else `dcp.save` wrote.

`.metadata` is renamed into place last, so it is the marker of a fresh save. A save into a directory that has one keeps
the old one until its end: a data file written after the marker means that such a save was cut off.
"""

from __future__ import annotations

import re
from pathlib import Path

from spike.domain.checkpoint import Checkpoint
from spike.domain.rotation import Rotation, beyond, inferred_keep
from spike.readers.checkpoints._dcp import METADATA, read_index, tiling
from spike.readers.checkpoints._dcp_contents import contents_of
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import TORCH_SUFFIXES, Parts
from spike.readers.checkpoints._rotation import directories, highest
from spike.readers.checkpoints.contract import GENERIC_DIRECTORY, Damaged

_TITAN = re.compile(r"^step-(\d+)$")
DEFAULT_KEEP = 10
"""torchtitan's keep_latest_k. (torchtitan/components/checkpoint.py)"""
_NOT_STORED = "how many the application keeps is stored nowhere"


class Dcp(DirectoryReader):
    """One directory with an index and one or more data files a rank."""

    layout = "dcp"
    step_name = _TITAN
    specificity = GENERIC_DIRECTORY + 5

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Data files of the format, or its index."""
        return any(name.endswith(".distcp") or METADATA.match(name) for name in names)

    def read(self, parts: Parts) -> None:
        """The index and its small objects, and torch and JSON files beside them."""
        read_dcp(parts, parts.root)
        for file in sorted(parts.root.iterdir()):
            if file.suffix in TORCH_SUFFIXES:
                parts.add(file)
            elif file.suffix == ".json" and file.name != "metadata.json":
                parts.add_json(file, file.stem)

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """torchtitan's rule for step-<N>; the format itself deletes nothing."""
        directory = str(Path(group[0].path).parent)
        found = directories(directory, _TITAN)
        if not found:
            return Rotation(self.layout, directory, "DCP deletes nothing: the application decides", unknown=_NOT_STORED)
        rule = "torchtitan, keep_latest_k: after a save the lowest steps go by name, unfinished ones count"
        keep = inferred_keep([number for number, _ in found])
        gone = beyond([*(str(path) for _, path in found), "the next one"], keep or DEFAULT_KEEP)
        if keep is not None:
            assumes = f"keep_latest_k is {keep}, as the steps that are gone say (it is stored nowhere)"
        else:
            assumes = f"keep_latest_k has its default of {DEFAULT_KEEP} (it is stored nowhere)"
        return Rotation(self.layout, directory, rule, gone, assumes=assumes)

    def latest(self, group: tuple[Checkpoint, ...]) -> tuple[str, str]:
        """torchtitan's rule; elsewhere the application decides, the newest is a guess that is right for most."""
        directory = str(Path(group[0].path).parent)
        return highest(directory, _TITAN, ".metadata") or group[-1].path, "the highest step with a .metadata"

    def knows(self, name: str) -> bool:
        """Data files and indexes."""
        return name.endswith((".distcp", ".metadata"))


def read_dcp(parts: Parts, folder: Path) -> None:
    """The distributed checkpoint in `folder` into `parts`, damage remembered."""
    prefix = "" if folder == parts.root else f"{parts.name(folder)}/"
    try:
        index = read_index(folder)
    except Damaged as damage:
        parts.damages.append(damage)
        return
    parts.indexes.append(index)
    parts.damages += tiling(index)
    markers = [entry for entry in folder.iterdir() if METADATA.match(entry.name)]
    newest = max(markers, key=lambda marker: marker.stat().st_mtime_ns)
    parts.note_times(newest, folder.glob("*.distcp"))
    try:
        parts.contents.merge(contents_of(index, prefix, parts.damages))
    except Damaged as damage:
        parts.damages.append(damage)


READER = Dcp()
