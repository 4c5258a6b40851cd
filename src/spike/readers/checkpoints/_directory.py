"""What do all layouts of one directory have in common? Reading its parts, and telling what they say together.

A layout of a directory is a subclass with four things: its name, how it is recognised, how its parts are read, and
which other files belong to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint
from spike.readers.checkpoints._dcp import slice_mismatches
from spike.readers.checkpoints._describe import describe, files_below, foreign_note
from spike.readers.checkpoints._generation import check_generation
from spike.readers.checkpoints._parts import Parts
from spike.readers.checkpoints._times import written_apart
from spike.readers.checkpoints.contract import Checked, LazyTensor


class DirectoryReader:
    """One checkpoint in one directory."""

    layout: str
    specificity: int
    lockstep = False
    """True where every file's optimizer state takes every step, so that their counters must agree."""

    has_marker = True
    """False where no file inside the directory is written last, so that only the times of all tell about the end."""

    def read(self, parts: Parts) -> None:
        """Read every part of `parts.root` into `parts`; damage is remembered there, never raised."""
        raise NotImplementedError

    def knows(self, name: str) -> bool:
        """True for a file (relative POSIX) that belongs to the layout and that `read` does not open."""
        return False

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts, and what is wrong with them; files that no loader opens are strays."""
        parts = self._parts(path)
        files = files_below(path)
        return describe(
            path,
            self.layout,
            files,
            parts.contents,
            damage=parts.damage(),
            notes=(*parts.notes, *foreign_note(parts.foreign)),
            strays=(name for name in map(parts.name, files) if name not in parts.used and not self.knows(name)),
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Every tensor; raises `Damaged` where damage left none."""
        parts = self._parts(path)
        if parts.damages and not parts.contents.tensors:
            raise parts.damages[0]
        yield from parts.contents.tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Damage of the structure, and members and slices against their CRCs."""
        parts = self._parts(path)
        yield from ((damage.message.partition(":")[0], damage.message) for damage in parts.damages)
        yield from parts.mismatches(checked)
        for index in parts.indexes:
            yield from slice_mismatches(index, checked)

    def _parts(self, path: Path) -> Parts:
        parts = Parts(path)
        self.read(parts)
        check_generation(parts, lockstep=self.lockstep)
        apart = (
            "" if self.has_marker else written_apart(file for file in map(path.joinpath, parts.used) if file.is_file())
        )
        parts.doubts += [apart] if apart else []
        return parts
