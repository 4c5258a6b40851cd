"""What is in safetensors files? One file, or a directory of shards with an index, with an optimizer beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity, Role
from spike.readers.checkpoints._contents import Contents, step_of
from spike.readers.checkpoints._describe import describe
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import NO_CHECKSUM, TORCH_SUFFIXES, Parts, check_shards
from spike.readers.checkpoints._safetensors_file import read_safetensors
from spike.readers.checkpoints.contract import GENERIC_DIRECTORY, Checked, Damaged, LazyTensor

_WEIGHTS = re.compile(r"^((adapter_|pytorch_|consolidated)?model|weights|consolidated)([._-].*)?\.safetensors$")
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")


class Safetensors(DirectoryReader):
    """A file, or a directory of them."""

    layout = "safetensors"
    specificity = GENERIC_DIRECTORY + 1
    has_marker = False

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """A `.safetensors` file; a directory with an index, shards, or a model file under a usual name."""
        if not names:
            return path.suffix == ".safetensors" and path.is_file()
        if any(name.endswith(".safetensors.index.json") or _SHARD.search(name) for name in names):
            return True
        return any(_WEIGHTS.match(name) for name in names)

    def inspect(self, path: Path) -> Checkpoint:
        """Names, shapes and structure. Nothing in the format can prove the content."""
        return self._inspect_file(path) if path.is_file() else super().inspect(path)

    def tensors(self, path: Path) -> Iterator[LazyTensor]:
        """The tensors of every file."""
        if path.is_file():
            yield from read_safetensors(path).tensors(Role.PARAMETER, path.name)
        else:
            yield from super().tensors(path)

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Unreadable parts, and torch files beside the shards against their CRCs."""
        if path.is_dir():
            yield from super().finish(path, checked)

    def knows(self, name: str) -> bool:
        """Settings and vocabularies beside the weights."""
        return name.endswith((".json", ".txt"))

    def _inspect_file(self, path: Path) -> Checkpoint:
        contents = Contents()
        try:
            file = read_safetensors(path)
        except Damaged as damage:
            return describe(path, self.layout, [path], contents, damage=damage)
        contents.tensors += file.tensors(Role.PARAMETER, path.name)
        contents.step = step_of({key: int(v) for key, v in file.metadata.items() if v.isdecimal() and len(v) < 16})
        return describe(path, self.layout, [path], contents, notes=(NO_CHECKSUM,))

    def read(self, parts: Parts) -> None:
        """Every shard, what lies beside them, and whether the index and the shards fit each other."""
        path = parts.root
        names = {entry.name for entry in path.iterdir() if entry.is_file()}
        for name in sorted(names):
            if name.endswith(".safetensors"):
                parts.add(path / name)
        for name in sorted(names):
            if name.endswith(TORCH_SUFFIXES):
                parts.add(path / name)
            elif name.endswith(".json") and not name.endswith(".index.json") and "token" not in name:
                value = parts.add_json(path / name, Path(name).stem)
                parts.contents.step = step_of(value) if parts.contents.step is None else parts.contents.step
        check_shards(parts, path, names)
        parts.join_shards()
        if any(map(_SHARD.search, names)) and not any(name.endswith(".index.json") for name in names):
            parts.notes.append("has no index: only the numbers in their names tell that all shards are there")
        if not any(name.endswith(".safetensors") for name in names):
            parts.damages.append(Damaged("has an index and no shard", Integrity.TORN))


READER = Safetensors()
