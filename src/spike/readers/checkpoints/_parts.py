"""What do several files say together? The parts of a checkpoint directory, read one by one and merged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spike.domain.checkpoint import Integrity, Role
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._bytes import assemble
from spike.readers.checkpoints._contents import Contents, as_mapping, flatten, interpret, number, step_of
from spike.readers.checkpoints._dcp import DcpIndex
from spike.readers.checkpoints._numbers import width
from spike.readers.checkpoints._safetensors_file import Entry, SafetensorsFile, read_safetensors
from spike.readers.checkpoints._times import saved_over
from spike.readers.checkpoints._torch_file import TorchFile, is_legacy, read_legacy_file, read_torch_file
from spike.readers.checkpoints._zip import Archive, mismatches
from spike.readers.checkpoints.contract import Checked, Damaged, LazyTensor

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pkl")
NO_CHECKSUM = "safetensors has no checksum and no step: its content and its save cannot be verified"
SHARDING_KEY = "DCP_SHARDING_INFO"
"""Where torch's own safetensors writer keeps the offset of each shard (torch/distributed/checkpoint/hf_storage.py)."""
MAX_REASONS = 3
MAX_JSON = 256 << 20

_MODEL = re.compile(r"^(pytorch_model|model|adapter_model|weights|state_dict|ema|net|module)([._-]|$)")
_OPTIMIZER = re.compile(r"optim")
_SCHEDULER = re.compile(r"sched")
_SCALER = re.compile(r"scaler")
_RNG = re.compile(r"rng|random_?states?")
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.(safetensors|bin)$")
_CURSOR = re.compile(r"sampler|data_?loader|dl_state")


@dataclass(slots=True)
class Parts:
    """Everything read so far from one directory."""

    root: Path
    contents: Contents = field(default_factory=Contents)
    damages: list[Damaged] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """Why it cannot be called complete though everything in it was read and nothing is proven wrong."""
    notes: list[str] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    archives: list[tuple[str, Archive]] = field(default_factory=list)
    shards: dict[str, list[tuple[tuple[int, ...], Entry, str]]] = field(default_factory=dict)
    """Pieces of tensors that lie in several safetensors files, with their offsets."""
    used: set[str] = field(default_factory=set)
    """Files that were understood, relative POSIX."""
    indexes: list[DcpIndex] = field(default_factory=list)
    """Indexes of the distributed checkpoints in it."""
    steps: dict[str, int] = field(default_factory=dict)
    """The step that a file says it was written at, by its name."""

    def damage(self) -> Damaged | None:
        """The worst damage, what is certainly broken before what merely cannot be verified, with the next two."""
        order = [Integrity.CORRUPT, Integrity.OVERWRITTEN, Integrity.TORN, Integrity.UNVERIFIABLE]
        doubts = [Damaged(doubt, Integrity.UNVERIFIABLE) for doubt in self.doubts]
        worst = sorted((*self.damages, *doubts), key=lambda damage: order.index(damage.integrity))
        messages = list(dict.fromkeys(damage.message for damage in worst))
        more = f"; and {len(messages) - MAX_REASONS} more" if len(messages) > MAX_REASONS else ""
        return Damaged("; ".join(messages[:MAX_REASONS]) + more, worst[0].integrity) if worst else None

    def name(self, path: Path) -> str:
        """The file's name inside the checkpoint."""
        return path.relative_to(self.root).as_posix()

    def add(self, path: Path) -> TorchFile | None:
        """Read one file of a kind that its name tells; damage is remembered, not raised.

        The objects of a torch file, None where there are none to be had.
        """
        self.used.add(self.name(path))
        try:
            if path.suffix != ".safetensors":
                return self.add_torch(path)
            self.add_safetensors(path)
        except InputUnreadable as error:
            damage = error if isinstance(error, Damaged) else Damaged(error.message, Integrity.CORRUPT)
            self.damages.append(damage)
        return None

    def add_safetensors(self, path: Path, role: Role = Role.PARAMETER) -> None:
        """Tensors of a safetensors file; shards of one tensor in several files wait for `join_shards`."""
        file = read_safetensors(path)
        if SHARDING_KEY in file.metadata:
            self._keep_shards(path, file)
        else:
            self.contents.tensors += file.tensors(role, self.name(path))
        if NO_CHECKSUM not in self.notes:
            self.notes.append(NO_CHECKSUM)

    def _keep_shards(self, path: Path, file: SafetensorsFile) -> None:
        try:
            info = json.loads(file.metadata[SHARDING_KEY])
            for entry in file.entries:
                offsets = tuple(int(n) for n in info[entry.name]["saved_offsets"])
                self.shards.setdefault(entry.name, []).append((offsets, entry, self.name(path)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(f"{path.name}: its sharding is described in an unknown way", Integrity.CORRUPT) from error

    def join_shards(self) -> None:
        """Put tensors together that were saved in pieces; what does not fit is remembered as damage.

        A hole shows, the last piece of every tensor does not: torch stores neither the whole shape nor the ranks.
        """
        if self.shards:
            why = "saved in shards that do not tell how many ranks wrote them: those of the last ranks may be missing"
            self.doubts.append(why)
        for name, pieces in self.shards.items():
            first = pieces[0][1]
            boxes = [(offsets, entry.shape, entry.data) for offsets, entry, _ in pieces]
            ends = [[at + n for at, n in zip(offsets, sizes, strict=False)] for offsets, sizes, _ in boxes]
            shape = tuple(map(max, zip(*ends, strict=True)))
            try:
                data = assemble(shape, width(first.dtype), boxes)
            except InputUnreadable as error:
                self.damages.append(Damaged(f"{pieces[0][2]}: {name[:80]}: {error.message}", Integrity.TORN))
                continue
            tensor = LazyTensor(Role.PARAMETER, name, -1, "", first.dtype, shape, pieces[0][2], data)
            self.contents.tensors.append(tensor)
        self.shards.clear()

    def add_torch(self, path: Path) -> TorchFile:
        """Objects of a torch file, understood by its name and its shape."""
        file = read_legacy_file(path) if is_legacy(path) else read_torch_file(path)
        self.foreign.update(file.foreign)
        if file.archive is not None:
            self.archives.append((self.name(path), file.archive))
        if file.archive is None or not file.archive.has_checksums:
            self.damages.append(Damaged(f"{path.name}: structurally whole, but it has no CRCs", Integrity.UNVERIFIABLE))
        self._understand(path, file)
        return file

    def _understand(self, path: Path, file: TorchFile) -> None:
        stem, name = path.stem.lower(), self.name(path)
        kind = _kind(stem)
        own = interpret(file, name, role=Role.OTHER if kind else None)
        step = own.step
        if kind:
            own.present.add(kind)
            step = step_of(as_mapping(file.value) or {})
        if kind in ("scaler", "scheduler"):
            _numbers(own, kind, file.value)
        elif step is not None:
            self.steps[name] = step
        self.contents.merge(own)

    def add_json(self, path: Path, prefix: str) -> dict[str, Any]:
        """A JSON file's settings under `prefix`; an empty mapping where it cannot be read (damage remembered)."""
        self.used.add(self.name(path))
        try:
            value = read_json(path)
        except Damaged as damage:
            self.damages.append(damage)
            return {}
        self.contents.config |= dict(flatten(value, prefix))
        return value

    def note_times(self, marker: Path, files: Iterable[Path]) -> None:
        """Remember what the times say of `files` that a save writes before `marker`."""
        over, note = saved_over(marker, (file for file in files if file.is_file()))
        self.damages += [over] if over else []
        self.notes += [note] if note and note not in self.notes else []

    def mismatches(self, checked: Checked) -> Iterator[tuple[str, str]]:
        """Members of all archives that do not match their CRCs."""
        for name, archive in self.archives:
            yield from mismatches(archive, checked, name)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises `Damaged` where there is none. NaN and Infinity are accepted, as trainers write them."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise Damaged(f"{path.name}: {path.stat().st_size:,} bytes of JSON", Integrity.UNVERIFIABLE)
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror or error}", Integrity.TORN) from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path.name}: no whole JSON ({str(error)[:120]})", Integrity.TORN) from error
    if not isinstance(value, dict):
        raise Damaged(f"{path.name}: its JSON is no object", Integrity.CORRUPT)
    return value


def check_ranks(parts: Parts, names: Iterable[str], pattern: re.Pattern[str], what: str) -> None:
    """Remember damage where the numbered per-rank files leave a gap."""
    ranks = sorted(int(match[1]) for name in names if (match := pattern.search(name)))
    absent = sorted(set(range(ranks[-1] + 1)) - set(ranks)) if ranks else []
    if absent:
        listed = ", ".join(map(str, absent[:8]))
        parts.damages.append(Damaged(f"{what} of rank {listed} are missing", Integrity.TORN))


def check_shards(parts: Parts, path: Path, names: set[str]) -> None:
    """Remember damage where shards are missing that the index or the numbering announces."""
    expected = {name for name in names if _SHARD.search(name)}
    for name in list(expected):
        match = _SHARD.search(name)
        assert match is not None
        stem = name[: match.start()]
        digits = len(match[1])
        expected |= {
            f"{stem}-{k:0{digits}d}-of-{match[2]}.{match[3]}" for k in range(1, min(int(match[2]), 10_000) + 1)
        }
    indexed: dict[str, Any] = {}
    for name in sorted(names):
        if name.endswith(".index.json"):
            parts.used.add(name)
            try:
                weights = read_json(path / name).get("weight_map")
            except Damaged as damage:
                parts.damages.append(damage)
                continue
            if isinstance(weights, dict):
                expected |= {str(file) for file in weights.values()}
                indexed |= weights
    absent = sorted(expected - names)
    if absent:
        parts.damages.append(
            Damaged(f"{len(absent)} of {len(expected)} shards are missing: {', '.join(absent[:3])}", Integrity.TORN)
        )
    else:
        _check_index(parts, indexed)


def _check_index(parts: Parts, weights: dict[str, Any]) -> None:
    held = {tensor.name for tensor in parts.contents.tensors}
    lost = sorted(set(weights) - held)
    if lost and not parts.damages:
        parts.damages.append(
            Damaged(f"{len(lost)} tensors of the index are in no shard: {', '.join(lost[:3])}", Integrity.TORN)
        )


def _kind(stem: str) -> str:
    """Which recovery state a file holds by its name; "" for models, optimizers and everything else."""
    if _MODEL.match(stem) or _OPTIMIZER.search(stem):
        return ""
    for pattern, kind in ((_RNG, "rng"), (_CURSOR, "data-cursor"), (_SCALER, "scaler"), (_SCHEDULER, "scheduler")):
        if pattern.search(stem):
            return kind
    return ""


def _numbers(contents: Contents, prefix: str, value: Any) -> None:
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        several = inner if isinstance(inner, list) and len(inner) <= 64 else [inner]
        for place, item in enumerate(several):
            amount = number(item)
            if amount is not None:
                suffix = f".{place}" if isinstance(inner, list) else ""
                contents.scalars[f"{prefix}.{key}{suffix}"] = amount
