"""What is in a Lightning `.ckpt`? One torch archive with the trainer's own keys, and the progress of its loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._contents import Contents, as_mapping, flatten, interpret, number
from spike.readers.checkpoints._describe import describe, foreign_note
from spike.readers.checkpoints._torch_file import TorchFile
from spike.readers.checkpoints._zip import is_zip, mismatches
from spike.readers.checkpoints.contract import NAMED_STACK, Checked, Damaged, LazyTensor
from spike.readers.checkpoints.torch_zip import read_any, unverifiable

_MARK = b"pytorch-lightning_version"
HEAD_BYTES = 4096
"""data.pkl is the first member, and the version one of its first keys."""


class Lightning:
    """One file; `last.ckpt` is a copy of another one."""

    layout = "lightning"
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """A torch archive whose first bytes hold Lightning's version key."""
        if path.suffix != ".ckpt" or not path.is_file() or not is_zip(path):
            return False
        with path.open("rb") as file:
            return _MARK in file.read(HEAD_BYTES)

    def inspect(self, path: Path) -> Checkpoint:
        """Its parts; it is written to a temporary file and moved, so a file that exists is usually whole."""
        try:
            file = read_any(path)
            contents = self._contents(file)
        except InputUnreadable as error:
            damage = error if isinstance(error, Damaged) else Damaged(error.message, Integrity.CORRUPT)
            return describe(path, self.layout, [path], Contents(), damage=damage)
        return describe(
            path, self.layout, [path], contents, damage=unverifiable(file), notes=foreign_note(file.foreign)
        )

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """Every tensor of the file."""
        yield from self._contents(read_any(path)).tensors

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Members that belong to no tensor, against their CRCs."""
        archive = read_any(path).archive
        if archive is not None:
            yield from mismatches(archive, checked, path.name)

    def _contents(self, file: TorchFile) -> Contents:
        contents = interpret(file, file.path.name)
        top = as_mapping(file.value) or {}
        progress = dict(flatten(top.get("loops"), "loops"))
        for key, text in progress.items():
            if ".batch_progress.total." in key and "fit_loop" in key and "val_loop" not in key:
                amount = number(int(text)) if text.isdecimal() else None
                if amount is not None:
                    # `completed` lags one behind where the file was saved at the end of a batch: `processed` counts.
                    contents.scalars[f"fit_loop.batches.{key.rpartition('.')[2]}"] = amount
        version = top.get(_MARK.decode())
        if isinstance(version, str):
            contents.config["lightning_version"] = f'"{version[:40]}"'
        return contents


READER = Lightning()
