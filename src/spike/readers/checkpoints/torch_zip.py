"""What is in a single file written by `torch.save`? nanoGPT's ckpt.pt, and any dictionary of a trainer's own.

Refuses to run anything: the pickle inside is read as data, and the zip around it must be what torch writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.errors import InputUnreadable
from spike.domain.rotation import Rotation
from spike.readers.checkpoints._contents import Contents, interpret
from spike.readers.checkpoints._describe import describe, foreign_note
from spike.readers.checkpoints._rotation import UNKNOWN_RULE
from spike.readers.checkpoints._torch_file import TorchFile, is_legacy, read_legacy_file, read_torch_file
from spike.readers.checkpoints._zip import is_zip, mismatches
from spike.readers.checkpoints.contract import GENERIC_FILE, Checked, Damaged, LazyTensor

SUFFIXES = (".pt", ".pth", ".ckpt")
"""Where even an empty file is a checkpoint that a full disk cut off."""
LOOSE_SUFFIXES = (".bin", ".tar")
"""Other things have these suffixes too: only the file's first bytes tell."""


class TorchZip:
    """One file, one checkpoint."""

    layout = "torch-zip"
    specificity = GENERIC_FILE

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """A file that starts as torch's files do, or an empty one with the name of such a file."""
        if not path.is_file():
            return False
        if path.suffix in SUFFIXES:
            return path.stat().st_size == 0 or is_zip(path) or is_legacy(path)
        return path.suffix in LOOSE_SUFFIXES and (is_zip(path) or is_legacy(path))

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts and its structural verdict; storages are compared with their CRCs by a scan."""
        try:
            file = read_any(path)
            contents = interpret(file, path.name)
        except InputUnreadable as error:
            damage = error if isinstance(error, Damaged) else Damaged(error.message, Integrity.CORRUPT)
            return describe(path, self.layout, [path], Contents(), damage=damage)
        return describe(
            path, self.layout, [path], contents, damage=unverifiable(file), notes=foreign_note(file.foreign)
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Every tensor of the file."""
        yield from interpret(read_any(path), path.name).tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Members that belong to no tensor, against their CRCs."""
        archive = read_any(path).archive
        if archive is not None:
            yield from mismatches(archive, checked, path.name)

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """A file whose name counts nothing is written again and again, as nanoGPT's ckpt.pt is."""
        directory = str(Path(group[0].path).parent)
        fixed = [checkpoint for checkpoint in group if not re.search(r"\d", Path(checkpoint.path).stem)]
        if not fixed:
            return Rotation(self.layout, directory, UNKNOWN_RULE, unknown="nothing in the files tells")
        is_nanogpt = all("iter_num" in dict(checkpoint.scalars) for checkpoint in fixed)
        rule = "a name that counts nothing: the next save writes to it in place"
        assumes = "" if is_nanogpt else "the script saves to this name again"
        paths = tuple(checkpoint.path for checkpoint in fixed)
        return Rotation(self.layout, directory, rule, paths, is_overwritten=True, assumes=assumes)


def read_any(path: Path) -> TorchFile:
    """A torch file of either format; raises `Damaged`."""
    return read_legacy_file(path) if is_legacy(path) else read_torch_file(path)


def unverifiable(file: TorchFile) -> Damaged | None:
    """The reason why a readable file's bytes cannot be verified, if there is one."""
    if file.archive is None:
        why = "the torch format from before 1.6 has no checksums"
    elif not file.archive.has_checksums:
        why = "it was written without CRCs (compute_crc32=False)"
    else:
        return None
    return Damaged(f"{file.path.name}: structurally whole, but {why}", Integrity.UNVERIFIABLE)


READER = TorchZip()
