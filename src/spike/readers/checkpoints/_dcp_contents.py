"""Which entry of a distributed checkpoint is what? Weights, moments and settings by their qualified names."""

from __future__ import annotations

import re
from typing import Any

from spike.domain.checkpoint import Role
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._bytes import load
from spike.readers.checkpoints._contents import (
    CONFIG_KEYS,
    MODEL_KEYS,
    STEP_KEYS,
    Contents,
    as_mapping,
    flatten,
    number,
)
from spike.readers.checkpoints._dcp import DcpIndex, Slice, object_of, source_of
from spike.readers.checkpoints._numbers import bits_of, decode
from spike.readers.checkpoints.contract import Damaged, LazyTensor

MOMENT_KEYS = frozenset(
    ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "fp32_param", "param", "sum")
)
MAX_OBJECT_BYTES = 16 << 20
MAX_OBJECTS = 20_000
_OPTIMIZER = re.compile(r"^(?:chained_\d+\.|optim\.)?optim(?:izer)?s?(?:_states?|_\d+)?\b(?:\.[\w-]+)*?\.state\.(.+)$")
_GROUPS = re.compile(r"^(?:optim\.)?optim(?:izer)?s?(?:_states?|_\d+)?\b.*?\.param_groups\.(.+)$")
_OTHER = re.compile(
    r"^(train_state|train|lr_schedulers?|schedulers?|dataloader|data_loader|rng|optim|rerun|common|ema)", re.I
)
_STEP_HOLDERS = ("train_state", "trainer", "state", "progress", "train")


def contents_of(index: DcpIndex, prefix: str, damages: list[Damaged]) -> Contents:
    """What the entries mean. `prefix` is the folder's name inside the checkpoint, "" or "model_and_optim/".

    Objects that cannot be read are added to `damages`.
    """
    contents = Contents()
    has_model_group = any(_path(index, fqn)[0] in MODEL_KEYS and len(_path(index, fqn)) > 1 for fqn in index.tensors)
    objects = _objects(index, damages)
    order = _parameter_order(objects)
    for fqn, tensor in index.tensors.items():
        role, name, key = _classify(fqn, _path(index, fqn), has_model_group)
        file = prefix + (tensor.chunks[0][2].path.relative_to(index.folder).as_posix() if tensor.chunks else "")
        place = order.get(name, -1) if role is Role.MOMENT else -1
        contents.tensors.append(LazyTensor(role, name, place, key, tensor.dtype, tensor.shape, file, source_of(tensor)))
        if role is Role.MOMENT:
            contents.present.add("optimizer")
        _mark(contents, fqn)
    for fqn, value in objects.items():
        _mark(contents, fqn)
        _scalar(contents, fqn, value)
    _collapse_groups(contents)
    contents.step = _step(index, contents)
    return contents


def _path(index: DcpIndex, fqn: str) -> tuple[str, ...]:
    return tuple(map(str, index.paths.get(fqn, (fqn,)))) or (fqn,)


def _classify(fqn: str, path: tuple[str, ...], has_model_group: bool) -> tuple[Role, str, str]:
    match = _OPTIMIZER.match(fqn)
    if match:
        rest = match[1]
        first, _, tail = rest.partition(".")
        head, _, last = rest.rpartition(".")
        if first in MOMENT_KEYS and tail:  # Megatron: optimizer.state.exp_avg.<parameter>
            return Role.MOMENT, tail, first
        return (Role.MOMENT, head, last) if head else (Role.OTHER, fqn, "")
    if path[0] in MODEL_KEYS and len(path) > 1:
        return Role.PARAMETER, ".".join(path[1:]), ""
    if has_model_group or _OTHER.match(fqn):
        return Role.OTHER, fqn, ""
    head, _, tail = fqn.partition(".")
    return (Role.PARAMETER, tail, "") if head in MODEL_KEYS and tail else (Role.PARAMETER, fqn, "")


def _objects(index: DcpIndex, damages: list[Damaged]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for fqn, piece in list(index.objects.items())[:MAX_OBJECTS]:
        if piece.length <= MAX_OBJECT_BYTES and piece.path.is_file():
            try:
                found[fqn] = object_of(piece)
            except InputUnreadable as error:
                damages.append(error if isinstance(error, Damaged) else _damage(error, piece))
    return found


def _damage(error: InputUnreadable, piece: Slice) -> Damaged:
    from spike.domain.checkpoint import Integrity

    return Damaged(f"{piece.path.name}: {error.message}", Integrity.CORRUPT)


def _parameter_order(objects: dict[str, Any]) -> dict[str, int]:
    """Parameter name -> position, where the groups list their parameters."""
    order: dict[str, int] = {}
    groups = [(fqn, value) for fqn, value in objects.items() if fqn.endswith(".params") and isinstance(value, list)]
    for _, names in sorted(groups, key=lambda pair: _natural(pair[0])):
        for name in names:
            if isinstance(name, str):
                order.setdefault(name, len(order))
    return order


def _natural(text: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]


def _scalar(contents: Contents, fqn: str, value: Any) -> None:
    """Numbers of one stored object, and the configuration where it is one."""
    last = fqn.rpartition(".")[2]
    mapping = as_mapping(value)
    if last in ("params", "param_names"):
        return
    if mapping is not None and (last in CONFIG_KEYS or fqn.partition(".")[0] in CONFIG_KEYS):
        contents.config |= dict(flatten(value, fqn))
    elif mapping is not None:
        for key, inner in list(mapping.items())[:200]:
            _scalar(contents, f"{fqn}.{key}", inner)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value[:8]):
            _scalar(contents, f"{fqn}.{place}", item)
    else:
        amount = number(value)
        if amount is not None:
            group = _GROUPS.match(fqn)
            contents.scalars[f"optimizer.param_groups.{group[1]}" if group else fqn] = amount


_FLAT_GROUP = re.compile(r"^optimizer\.param_groups\.(?!\d+\.)(.+)\.(\w+(?:\.\d+)?)$")


def _collapse_groups(contents: Contents) -> None:
    """Settings stored once a parameter (flattened optimizer state) become those of as many groups as differ."""
    settings: dict[str, dict[str, float]] = {}
    for key in list(contents.scalars):
        match = _FLAT_GROUP.match(key)
        if match:
            settings.setdefault(match[1], {})[match[2]] = contents.scalars.pop(key)
    distinct = list(dict.fromkeys(tuple(sorted(group.items())) for group in settings.values()))
    for number_, group in enumerate(distinct):
        contents.scalars |= {f"optimizer.param_groups.{number_}.{key}": value for key, value in group}


def _mark(contents: Contents, fqn: str) -> None:
    low = fqn.lower()
    if "sched" in low:
        contents.present.add("scheduler")
    if re.search(r"(^|[._/])(rng|random)", low):
        contents.present.add("rng")
    if re.search(r"data_?loader|sampler|data_?iter|consumed", low):
        contents.present.add("data-cursor")
    if "param_groups" in low:
        contents.present.add("optimizer")


def _step(index: DcpIndex, contents: Contents) -> int | None:
    """A stored number of steps, as an object or as a tensor of one element."""
    names = [*STEP_KEYS, *(f"{holder}.{key}" for holder in _STEP_HOLDERS for key in STEP_KEYS)]
    for name in names:
        value = contents.scalars.get(name)
        if value is not None and value >= 0 and value.is_integer():
            return int(value)
        tensor = index.tensors.get(name)
        if tensor is not None and tensor.dtype.startswith(("int", "uint")) and tensor.shape in ((), (1,)):
            import numpy as np

            try:
                raw = np.frombuffer(load(source_of(tensor)), dtype=np.uint8)
                return int(decode(bits_of(raw, tensor.dtype), tensor.dtype).reshape(-1)[0])
            except InputUnreadable:
                continue
    return None
