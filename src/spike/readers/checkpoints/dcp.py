"""What is in a torch.distributed.checkpoint directory? torchtitan's step-<N>/, and whatever else `dcp.save` wrote.

`.metadata` is renamed into place last, so it is the marker of a fresh save. A save into a directory that has one keeps
the old one until its end: a data file written after the marker means that such a save was cut off.
"""

from __future__ import annotations

from pathlib import Path

from spike.readers.checkpoints._dcp import METADATA, read_index, tiling
from spike.readers.checkpoints._dcp_contents import contents_of
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import TORCH_SUFFIXES, Parts
from spike.readers.checkpoints.contract import GENERIC_DIRECTORY, Damaged


class Dcp(DirectoryReader):
    """One directory with an index and one or more data files a rank."""

    layout = "dcp"
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
