"""What is in a torch.distributed.checkpoint directory? torchtitan's step-<N>/, and whatever else `dcp.save` wrote.

`.metadata` is renamed into place last, so it is the marker of a fresh save. A save into a directory that has one keeps
the old one until its end: a data file written after the marker means that such a save was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint
from spike.readers.checkpoints._dcp import METADATA, DcpIndex, read_index, slice_mismatches, tiling
from spike.readers.checkpoints._dcp_contents import contents_of
from spike.readers.checkpoints._describe import describe, files_below, foreign_note
from spike.readers.checkpoints._parts import TORCH_SUFFIXES, Parts
from spike.readers.checkpoints._times import saved_over
from spike.readers.checkpoints.contract import GENERIC_DIRECTORY, Checked, Damaged, LazyTensor


class Dcp:
    """One directory with an index and one or more data files a rank."""

    layout = "dcp"
    specificity = GENERIC_DIRECTORY + 5

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Data files of the format, or its index."""
        return any(name.endswith(".distcp") or METADATA.match(name) for name in names)

    def inspect(self, path: Path) -> Checkpoint:
        """The index and its small objects; torn, overwritten or corrupt as far as sizes and times prove it."""
        parts = Parts(path)
        self.read(parts)
        return self.describe(parts)

    def describe(self, parts: Parts) -> Checkpoint:
        """The facts of what was read."""
        files = files_below(parts.root)
        return describe(
            parts.root,
            self.layout,
            files,
            parts.contents,
            damage=parts.damage(),
            notes=(*parts.notes, *foreign_note(parts.foreign)),
            strays=(
                n for n in map(parts.name, files) if n not in parts.used and not n.endswith((".distcp", ".metadata"))
            ),
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Every tensor, whole."""
        parts = Parts(path)
        if self.read(parts) is None and parts.damages:
            raise parts.damages[0]
        yield from parts.contents.tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Damage of the structure, and slices against their CRCs."""
        parts = Parts(path)
        index = self.read(parts)
        yield from ((damage.message.partition(":")[0], damage.message) for damage in parts.damages)
        yield from parts.mismatches(checked)
        if index is not None:
            yield from slice_mismatches(index, checked)

    def read(self, parts: Parts) -> DcpIndex | None:
        """Everything of the directory into `parts`; None where there is no usable index."""
        index = read_dcp(parts, parts.root)
        for file in sorted(parts.root.iterdir()):
            if file.suffix in TORCH_SUFFIXES:
                parts.add(file)
            elif file.suffix == ".json" and file.name not in ("metadata.json",):
                parts.add_json(file, file.stem)
        return index


def read_dcp(parts: Parts, folder: Path) -> DcpIndex | None:
    """The distributed checkpoint in `folder` into `parts`, damage remembered; None where there is no usable index."""
    prefix = "" if folder == parts.root else f"{parts.name(folder)}/"
    try:
        index = read_index(folder)
    except Damaged as damage:
        parts.damages.append(damage)
        return None
    parts.damages += tiling(index)
    markers = [entry for entry in folder.iterdir() if METADATA.match(entry.name)]
    newest = max(markers, key=lambda marker: marker.stat().st_mtime_ns)
    over, note = saved_over(newest, folder.glob("*.distcp"))
    parts.damages += [over] if over else []
    parts.notes += [note] if note else []
    try:
        parts.contents.merge(contents_of(index, prefix, parts.damages))
    except Damaged as damage:
        parts.damages.append(damage)
    return index


READER = Dcp()
