"""Which checkpoints does a run have, what is in them, and can they be trusted? One file a layout, found by scanning.

Reads only: nothing that a checkpoint contains is ever run, and nothing is written but a donor file on request.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from spike.domain.checkpoint import Checkpoint, CheckpointScan, Role
from spike.domain.errors import ExitCode, InputUnreadable, SpikeError
from spike.domain.rotation import Resume, Rotation
from spike.readers.checkpoints.contract import CheckpointReader, Damaged, LazyTensor, OnBytes

if TYPE_CHECKING:
    from spike.readers.checkpoints._tap import Tap

__all__ = [
    "CheckpointReader",
    "Damaged",
    "LazyTensor",
    "box_digest",
    "checksums",
    "file_checksums",
    "find_checkpoints",
    "inspect_checkpoint",
    "lazy_tensors",
    "next_deleted",
    "readers",
    "resumed_from",
    "scan_checkpoint",
    "write_donor",
]


@cache
def readers() -> tuple[CheckpointReader, ...]:
    """Every layout of this folder, the most specific first. Raises `SpikeError` naming a file that is broken."""
    found: list[CheckpointReader] = []
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.name == "contract":
            continue
        try:
            found.append(importlib.import_module(f"{__name__}.{module.name}").READER)
        except Exception as error:
            raise SpikeError(
                f"checkpoint layout {module.name!r} cannot be used: {type(error).__name__}: {error}",
                hint=f"fix or remove readers/checkpoints/{module.name}.py",
                exit_code=ExitCode.BUG,
            ) from error
    return tuple(sorted(found, key=lambda reader: (-reader.specificity, reader.layout)))


def reader_of(layout: str) -> CheckpointReader:
    """The reader of a layout by name; raises `InputUnreadable` for one that is not there."""
    for reader in readers():
        if reader.layout == layout:
            return reader
    raise InputUnreadable(f"no reader for the checkpoint layout {layout!r}", hint="spike show formats")


def find_checkpoints(root: Path, pattern: str = "", *, near: int | None = None) -> tuple[Checkpoint, ...]:
    """Every checkpoint below `root`, sorted by step; those without one first, by time.

    `pattern` is relative to `root` with `{step}` for digits, zero-padded or not ("out/step-{step}/state.pt"), and
    shell wildcards within a name; "" recognises layouts below `root`, to a bounded depth. Damaged ones are in the
    answer with their verdict. Of very many only the newest, and those around the step `near`, are looked into; the
    others are `unverifiable`, "not read". Raises `SpikeError` for a pattern that cannot be one.
    """
    from spike.readers.checkpoints import _find

    return _find.find(root, pattern, near)


def inspect_checkpoint(path: Path) -> Checkpoint:
    """What is in one checkpoint, without tensor bytes. Raises `InputUnreadable` where no layout knows the path."""
    from spike.readers.checkpoints import _find

    return _find.inspect(path)


def lazy_tensors(checkpoint: Checkpoint) -> Iterator[LazyTensor]:
    """Every tensor of a checkpoint, unread. Raises `Damaged` where its index cannot be believed."""
    yield from reader_of(checkpoint.layout).tensors(Path(checkpoint.path))


def open_tap(checkpoint: Checkpoint) -> Tap:
    """The facts of `scan_checkpoint(digests=False)` for whoever reads the checkpoint's files anyway.

    Hand every piece to `Tap.feed`, then ask for `Tap.result`. Never raises: what cannot be read is in the result.
    """
    from spike.readers.checkpoints._tap import Tap

    return Tap(checkpoint, reader_of(checkpoint.layout))


def scan_checkpoint(checkpoint: Checkpoint, on_bytes: OnBytes | None = None, *, digests: bool = True) -> CheckpointScan:
    """Read every byte once: digest and statistics of each tensor, and every checksum compared.

    Digests are what makes a scan slow; without them a scan takes a quarter of the time. Whatever cannot be read is in
    `unreadable`; only an empty `unreadable` makes a scan clean.
    """
    from spike.readers.checkpoints import _scan

    if not digests:
        tap = open_tap(checkpoint)
        tap.read(on_bytes)
        return tap.result(on_bytes)
    path = Path(checkpoint.path)
    try:
        reader = reader_of(checkpoint.layout)
        result = _scan.scan_tensors(reader.tensors(path), on_bytes)
        result.unreadable += reader.finish(path, result.checked)
    except (InputUnreadable, OSError) as error:
        return CheckpointScan(checkpoint.path, (), ((path.name, str(error)),))
    return CheckpointScan(checkpoint.path, tuple(result.facts), tuple(dict.fromkeys(result.unreadable)))


def next_deleted(checkpoints: Sequence[Checkpoint]) -> tuple[Rotation, ...]:
    """What the next save of the run deletes or writes over, one answer for each layout and directory.

    By the stack's own rule and the limits that the checkpoints hold; a limit that is stored nowhere is named as an
    assumption or makes the answer unknown. Looks at names and times beside the checkpoints, reads no tensor.
    """
    from spike.readers.checkpoints import _rotation

    return _rotation.next_deleted(checkpoints)


def resumed_from(checkpoints: Sequence[Checkpoint]) -> tuple[Resume, ...]:
    """Which checkpoint the stack itself would load, one answer for each layout and directory that has such a rule."""
    from spike.readers.checkpoints import _rotation

    return _rotation.resumed_from(checkpoints)


TensorKey = tuple[str, str, str]
"""(role, name, moment key)"""


def tensor_digests(checkpoint: Checkpoint, wanted: Set[TensorKey]) -> dict[TensorKey, str]:
    """(role, name, moment key) -> digest of the wanted tensors, for those that a scan without digests left out.

    Reads nothing but those tensors; one that is not there, or cannot be read, is not in the answer.
    """
    from spike.readers.checkpoints import _scan

    try:
        tensors = [t for t in lazy_tensors(checkpoint) if (t.role.value, t.name, t.key) in wanted]
    except (InputUnreadable, OSError):
        return {}
    facts = _scan.scan_tensors(tensors).facts
    return {(t.role.value, t.name, t.key): t.digest for t in facts if isinstance(t.digest, str)}


def checksums(
    checkpoint: Checkpoint, wanted: Set[TensorKey] | None = None, *, limit: int | None = None
) -> dict[TensorKey, tuple[int, int]]:
    """(role, name, moment key) -> (bytes, CRC-32) of every tensor whose checksum the file itself stores.

    Costs no tensor bytes: zip directories hold them. Only tensors of `wanted`, and at most `limit` of each role, evenly
    spread. Empty where the format has none or the index is broken. Equal entries mean equal bytes for all practical
    purposes when many tensors are compared.
    """
    from spike.readers.checkpoints._marks import mark_of

    try:
        named = {(t.role.value, t.name, t.key): t.data for t in lazy_tensors(checkpoint)}
        keys = [key for key in named if wanted is None or key in wanted]
        if limit is not None:
            by_role = [[key for key in keys if key[0] == role.value and named[key].nbytes > 64] for role in Role]
            keys = [key for group in by_role for key in group[:: max(1, len(group) // limit)][:limit]]
        marks = {key: mark_of(named[key]) for key in keys}
    except (InputUnreadable, OSError):
        return {}
    return {key: mark for key, mark in marks.items() if mark is not None}


def file_checksums(
    checkpoint: Checkpoint, wanted: Mapping[str, Iterable[str]] | None = None
) -> dict[str, dict[str, tuple[int, int]]]:
    """File inside the checkpoint -> piece of a tensor -> (bytes, checksum), from a bounded, even choice of pieces.

    Unlike `checksums`, the shards of one tensor count apart, so that one file of another save shows, and where the
    format stores no checksum the first bytes of a piece stand for it. Only the pieces of `wanted` where it is given.
    Empty where the index is broken.
    """
    from spike.readers.checkpoints._marks import marks_by_file

    try:
        return marks_by_file(Path(checkpoint.path), lazy_tensors(checkpoint), wanted)
    except (InputUnreadable, OSError):
        return {}


def write_donor(checkpoint: Checkpoint, path: Path, *, parameters: bool, moments: bool) -> None:
    """Write the state that an intervention puts into a live process, as a torch file loadable with weights_only.

    {"schema": "spike.donor/1", "parameters": {name: tensor}, "moments": {index: {key: tensor}}}; `parameters` and
    `moments` say which of the two is filled. Raises `InputUnreadable` where a tensor cannot be read.
    """
    from spike.readers.checkpoints import _donor

    _donor.write(lazy_tensors(checkpoint), path, parameters=parameters, moments=moments)


def box_digest(tensor: LazyTensor, offset: Sequence[int], shape: Sequence[int]) -> str:
    """Digest of a box of the tensor, as if it were a tensor of its own (docs/FORMATS.md). Raises `InputUnreadable`."""
    import hashlib

    from spike.readers.checkpoints._scan import digest_header

    part = tensor.read()[tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))]
    digest = hashlib.sha256(digest_header(tensor.dtype, part.shape))
    digest.update(part.tobytes())
    return digest.hexdigest()
