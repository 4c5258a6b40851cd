"""What is in Megatron's torch_dist layout? A distributed checkpoint, metadata.json as its marker, perhaps digests.

With --verify-integrity Megatron writes integrity.json, {"algorithm", "files": {name: digest}}: those digests are
recomputed. (megatron/core/dist_checkpointing)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.rotation import Rotation
from spike.readers.checkpoints._dcp import METADATA
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import TORCH_SUFFIXES, Parts, read_json
from spike.readers.checkpoints.contract import NAMED_STACK, Checked, Damaged
from spike.readers.checkpoints.dcp import read_dcp
from spike.readers.checkpoints.megatron import ITERATION, TRACKER, check_tracker, tracked, tracked_rotation

MARKER = "metadata.json"
INTEGRITY = "integrity.json"


class MegatronDist(DirectoryReader):
    """One `iter_<N>` directory."""

    layout = "megatron-dist"
    step_name = ITERATION
    specificity = NAMED_STACK

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """A distributed checkpoint with Megatron's marker or common state."""
        is_dcp = any(name.endswith(".distcp") or METADATA.match(name) for name in names)
        return is_dcp and (MARKER in names or "common.pt" in names or path.name.startswith("iter_"))

    def read(self, parts: Parts) -> None:
        """Common state and the distributed part; torn without the marker, which is written last."""
        for file in sorted(parts.root.iterdir()):
            if file.suffix in TORCH_SUFFIXES:
                parts.add(file)
        marker = parts.root / MARKER
        if marker.is_file():
            parts.note_times(marker, (file for file in parts.root.iterdir() if file.suffix in (".distcp", ".pt")))
        else:
            parts.damages.append(
                Damaged(f"{MARKER} is missing: it is written last, so the save was cut off", Integrity.TORN)
            )
        check_tracker(parts, parts.root)
        read_dcp(parts, parts.root)

    def knows(self, name: str) -> bool:
        """Data files, indexes, marker and digests."""
        return name.endswith((".distcp", ".metadata", MARKER, INTEGRITY))

    def rotation(self, group: tuple[Checkpoint, ...]) -> Rotation:
        """See `tracked_rotation`."""
        return tracked_rotation(self.layout, group)

    def latest(self, group: tuple[Checkpoint, ...]) -> tuple[str, str]:
        """What the tracker file names."""
        return tracked(Path(group[0].path).parent), f"what {TRACKER} names"

    def finish(self, path: Path, checked: Checked) -> Iterator[tuple[str, str]]:
        """Also files against the digests that Megatron stored."""
        yield from super().finish(path, checked)
        yield from _digests(path)


def _digests(path: Path) -> Iterator[tuple[str, str]]:
    """Files that do not have the digest which integrity.json promises."""
    if not (path / INTEGRITY).is_file():
        return
    try:
        promised = read_json(path / INTEGRITY)
    except Damaged as damage:
        yield INTEGRITY, damage.message
        return
    algorithm, files = promised.get("algorithm"), promised.get("files")
    if algorithm not in ("sha256", "sha512", "blake2b") or not isinstance(files, dict):
        yield INTEGRITY, f"its algorithm {str(algorithm)[:40]!r} is not known"
        return
    for name, digest in sorted(files.items()):
        file = path / str(name)
        if ".." in Path(str(name)).parts or not file.is_file():
            yield str(name), "is named in integrity.json and is not there"
            continue
        with file.open("rb") as content:
            found = hashlib.file_digest(content, algorithm).hexdigest()
        if found != digest:
            yield str(name), f"does not have the {algorithm} digest that integrity.json promises"


READER = MegatronDist()
