"""Which part of a stored object is what? Model, optimizer, scheduler, scaler, RNG, cursor, step and configuration.

Trainers agree on shapes more than on names: an optimizer's state is a mapping with `state` and `param_groups`, a
scheduler's has `last_epoch`, a model's maps names to tensors. Shapes decide, names settle the rest.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spike.domain.checkpoint import Role
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints._torch_file import TensorRef, TorchFile
from spike.readers.checkpoints.contract import LazyTensor
from spike.readers.pickles import Global, Record

STEP_KEYS = (
    "global_step",
    "global_steps",
    "iter_num",
    "iteration",
    "train_step",
    "num_updates",
    "step",
    "steps",
    "iter",
)
"""Names under which trainers store the number of optimizer steps taken, the least ambiguous first."""
MODEL_KEYS = ("model", "state_dict", "model_state_dict", "module", "net", "network", "weights")
CONFIG_KEYS = frozenset(
    (
        "config",
        "cfg",
        "args",
        "hparams",
        "hyper_parameters",
        "hyperparameters",
        "model_args",
        "model_config",
        "train_config",
        "training_args",
        "ds_config",
        "options",
    )
)
_STEP_HOLDERS = ("train_state", "trainer_state", "trainer", "state", "progress", "meta", "metadata")
_RNG = re.compile(r"(^|[._])(rng|random_?states?)([._]|$)|rng_states?|random_state|cuda_rng", re.I)
_CURSOR = re.compile(r"data_?loader|sampler|data_?cursor|consumed_(train_)?samples|dl_state|data_?iter", re.I)
_DATA_KEYS = frozenset({"data", "dataset", "loader", "batches", "train_data", "stream"})
_POSITION = re.compile(r"cursor|position|offset|index|samples|consumed|batch|epoch", re.I)
_SCHEDULER = re.compile(r"sched", re.I)
_SCALER = re.compile(r"scaler|^MixedPrecision$", re.I)
_SECRET = re.compile(r"(?i)((hub|hf|auth|access|api|bearer|session)_?token|^token|secret|passw|api_?key|access_?key)$")
MAX_DEPTH = 24
MAX_NODES = 5_000_000
MAX_CONFIG_ITEMS = 5_000
MAX_TEXT = 500


@dataclass(slots=True)
class Contents:
    """What one file contributes to a checkpoint."""

    tensors: list[LazyTensor] = field(default_factory=list)
    step: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    """Of optimizer, scheduler, scaler, rng, data-cursor."""
    num_groups: int = 0
    num_moment_parameters: int = 0
    """Parameters that the optimizers so far have; the next one's indices start here."""

    def merge(self, other: Contents) -> None:
        """Add what another file of the same checkpoint holds; the first step found stays."""
        self.tensors += other.tensors
        self.step = self.step if self.step is not None else other.step
        self.config |= other.config
        self.scalars = {**other.scalars, **self.scalars}
        self.present |= other.present


def interpret(file: TorchFile, name: str, *, role: Role | None = None) -> Contents:
    """The parts of one torch file; `name` is the file inside the checkpoint.

    `role` fixes what a bare mapping of names to tensors is; without it such a mapping is a model. Raises
    `InputUnreadable` for structures nested beyond reason.
    """
    reader = _Interpreter(file, name)
    value = file.value
    attributes = as_mapping(value)
    if is_optimizer(value):
        reader.optimizer(value)
    elif isinstance(value, list) and value and all(is_optimizer(item) for item in value):
        for item in value:
            reader.optimizer(item)
    elif role is not None or (attributes is not None and _is_state_dict(attributes)):
        reader.collect(role or Role.PARAMETER, value, "")
    elif _is_module(value):
        reader.module(value, "")
    elif attributes is not None:
        reader.mapping(attributes)
    else:
        reader.collect(Role.OTHER, value, "")
    return reader.contents


def as_mapping(value: Any) -> dict[Any, Any] | None:
    """A dictionary, or the attributes of a record that has a dictionary of them."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Record):
        if isinstance(value.state, dict):
            return value.state
        if value.pairs:
            return value.pairs
        if isinstance(value.state, tuple) and any(isinstance(part, dict) for part in value.state):
            return {k: v for part in value.state if isinstance(part, dict) for k, v in part.items()}
    return None


def is_optimizer(value: Any) -> bool:
    """True for the state of a torch optimizer."""
    return (
        isinstance(value, dict) and isinstance(value.get("param_groups"), list) and isinstance(value.get("state"), dict)
    )


def number(value: Any) -> float | None:
    """A finite or non-finite number that is no truth value, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def step_of(mapping: dict[Any, Any]) -> int | None:
    """The step that a mapping stores under one of the usual names, directly or one level down."""
    for key in STEP_KEYS:
        value = mapping.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    for holder in _STEP_HOLDERS:
        inner = as_mapping(mapping.get(holder))
        if inner is not None and "param_groups" not in inner:
            for key in STEP_KEYS:
                value = inner.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                    return value
    return None


def flatten(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Dotted keys with JSON texts of everything in a configuration; secrets by name are withheld."""
    budget = [MAX_CONFIG_ITEMS]
    yield from _flatten(value, prefix, 0, budget)


def _flatten(value: Any, prefix: str, depth: int, budget: list[int]) -> Iterator[tuple[str, str]]:
    if budget[0] <= 0:
        return
    mapping = as_mapping(value)
    if mapping is not None and depth < 8:
        for key, inner in mapping.items():
            if isinstance(key, str | int) and not str(key).startswith("__"):
                yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1, budget)
        return
    budget[0] -= 1
    if _SECRET.search(prefix.rpartition(".")[2]) and isinstance(value, str) and value:
        yield prefix, '"<withheld>"'
    else:
        yield prefix, json.dumps(_plain(value, 0), ensure_ascii=False)[:MAX_TEXT]


def _plain(value: Any, depth: int) -> Any:
    """A value as JSON types; what is none becomes its type's name and arguments."""
    if value is None or isinstance(value, bool | str):
        return value if not isinstance(value, str) else value[:MAX_TEXT]
    if isinstance(value, int | float):
        return value if math.isfinite(number(value) or 0.0) else str(value)
    if depth > 4:
        return "..."
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in list(value)[:64]]
    if isinstance(value, Global):
        return str(value)
    if isinstance(value, Record):
        parts = [_plain(item, depth + 1) for item in value.args[:8]]
        if value.type_name.startswith("pathlib."):
            return "/".join(str(part) for part in parts).replace("//", "/")
        return parts[0] if len(parts) == 1 else {value.type_name or "object": parts}
    if isinstance(value, TensorRef):
        return f"tensor {value.dtype} {list(value.shape)}"
    return type(value).__name__


def _is_state_dict(mapping: dict[Any, Any]) -> bool:
    if not mapping:
        return False
    tensors = sum(isinstance(value, TensorRef) for value in mapping.values())
    others = sum(as_mapping(value) is not None or isinstance(value, list) for value in mapping.values())
    return tensors > 0 and others == 0 and all(isinstance(key, str) for key in mapping)


def _is_module(value: Any) -> bool:
    """True for a whole pickled torch.nn.Module."""
    state = value.state if isinstance(value, Record) else None
    return isinstance(state, dict) and "_parameters" in state and "_modules" in state


class _Interpreter:
    """Walks one file's objects once and fills a `Contents`."""

    def __init__(self, file: TorchFile, name: str) -> None:
        self.file = file
        self.name = name
        self.contents = Contents()
        self.nodes = MAX_NODES

    def mapping(self, top: dict[Any, Any]) -> None:
        """A trainer's checkpoint: model, optimizer and everything else under names."""
        self.contents.step = step_of(top)
        models = [key for key in MODEL_KEYS if _has_tensors(top.get(key))]
        for key, value in top.items():
            name = str(key)
            amount = number(value)
            if amount is not None:
                self.contents.scalars[name] = amount
            self._mark_present(name, value)
            if key in models:
                self._model(value, name if len(models) > 1 else "")
            elif name in CONFIG_KEYS and as_mapping(value) is not None:
                self._config(name, value)
            else:
                self._part(name, value)

    def optimizer(self, value: dict[Any, Any]) -> None:
        """The state of one optimizer: moments by parameter, and the numbers of its groups."""
        contents = self.contents
        contents.present.add("optimizer")
        order, names = self._parameter_order(value["param_groups"])
        base = contents.num_moment_parameters
        for identity, moments in value["state"].items():
            place = order.get(identity, -1)
            index = place + base if place >= 0 else -1
            name = identity if isinstance(identity, str) else names.get(identity, str(identity))
            for key, tensor in _tensors(moments, str, MAX_DEPTH, self):
                self._add(Role.MOMENT, name, index, key, tensor)
        contents.num_moment_parameters += len(order)
        self._optimizer_steps(value["state"])

    def collect(self, role: Role, value: Any, prefix: str) -> None:
        """Every tensor below `value`, named by its dotted path."""
        for path, tensor in _tensors(value, str, MAX_DEPTH, self):
            self._add(role, f"{prefix}.{path}" if prefix and path else prefix or path, -1, "", tensor)

    def module(self, value: Any, prefix: str, depth: int = 0) -> None:
        """A whole pickled module: its parameters and buffers by qualified name."""
        state = value.state
        for kind in ("_parameters", "_buffers"):
            for name, tensor in (as_mapping(state.get(kind)) or {}).items():
                if isinstance(tensor, TensorRef):
                    self._add(Role.PARAMETER, f"{prefix}{name}", -1, "", tensor)
        for name, child in (as_mapping(state.get("_modules")) or {}).items():
            if _is_module(child) and depth < MAX_DEPTH:
                self.module(child, f"{prefix}{name}.", depth + 1)

    def visit(self) -> None:
        """Count one visited object; raises `InputUnreadable` beyond the bound."""
        self.nodes -= 1
        if self.nodes < 0:
            raise InputUnreadable(f"{self.name}: its objects refer to each other too often to be listed")

    # -- parts

    def _model(self, value: Any, prefix: str) -> None:
        if _is_module(value):
            self.module(value, f"{prefix}." if prefix else "")
        else:
            self.collect(Role.PARAMETER, value, prefix)

    def _config(self, name: str, value: Any) -> None:
        self.contents.config |= dict(flatten(value, name))
        inner = as_mapping(value) or {}
        for key in ("consumed_train_samples", "iteration"):
            amount = number(inner.get(key))
            if amount is not None:
                self.contents.scalars.setdefault(key, amount)
        if "consumed_train_samples" in inner:
            self.contents.present.add("data-cursor")
        if self.contents.step is None:
            iteration = inner.get("iteration")
            self.contents.step = iteration if isinstance(iteration, int) else None

    def _part(self, name: str, value: Any) -> None:
        """Anything under a name that is neither model nor configuration."""
        if is_optimizer(value):
            self.optimizer(value)
        elif isinstance(value, list | dict) and _all_optimizers(value):
            for item in value.values() if isinstance(value, dict) else value:
                self.optimizer(item)
        elif _SCALER.search(name) and as_mapping(value) is not None:
            self._numbers("scaler", value)
        elif _SCHEDULER.search(name) and value is not None:
            self.contents.present.add("scheduler")
            self._schedulers(value)
        else:
            self.collect(Role.OTHER, value, name)

    def _schedulers(self, value: Any) -> None:
        several = value if isinstance(value, list) else [value]
        for place, one in enumerate(several):
            self._numbers("scheduler" if place == 0 else f"scheduler.{place}", one)

    def _numbers(self, prefix: str, value: Any) -> None:
        """Numbers one or two levels below: last_epoch, base_lrs.0, scale."""
        for key, inner in (as_mapping(value) or {}).items():
            several = inner if isinstance(inner, list) and len(inner) <= 64 else [inner]
            for place, item in enumerate(several):
                amount = number(item)
                if amount is not None:
                    name = f"{prefix}.{key}.{place}" if isinstance(inner, list) else f"{prefix}.{key}"
                    self.contents.scalars[name] = amount

    def _parameter_order(self, groups: list[Any]) -> tuple[dict[Any, int], dict[Any, str]]:
        order: dict[Any, int] = {}
        names: dict[Any, str] = {}
        for group in groups:
            if not isinstance(group, dict):
                continue
            identities = group.get("params")
            identities = identities if isinstance(identities, list) else []
            labels = group.get("param_names")
            labels = labels if isinstance(labels, list) and len(labels) == len(identities) else identities
            for identity, label in zip(identities, labels, strict=True):
                if isinstance(identity, int | str):
                    order.setdefault(identity, len(order))
                    names[identity] = str(label)
            self._group(group)
        return order, names

    def _group(self, group: dict[Any, Any]) -> None:
        prefix = f"optimizer.param_groups.{self.contents.num_groups}"
        self.contents.num_groups += 1
        for key, value in group.items():
            if key in ("params", "param_names"):
                continue
            several = list(value) if isinstance(value, tuple | list) and len(value) <= 8 else [value]
            for place, item in enumerate(several):
                amount = number(item)
                if amount is not None:
                    suffix = f".{place}" if isinstance(value, tuple | list) else ""
                    self.contents.scalars[f"{prefix}.{key}{suffix}"] = amount

    def _optimizer_steps(self, state: dict[Any, Any]) -> None:
        """Counters stored as Python numbers; those stored as tensors are read with the tensors."""
        counts = [number(m.get("step")) for m in state.values() if isinstance(m, dict)]
        known = [count for count in counts if count is not None]
        if known:
            self.contents.scalars["optimizer.step"] = max(known)

    def _mark_present(self, name: str, value: Any) -> None:
        present = self.contents.present
        if value is None:
            return
        if _RNG.search(name):
            present.add("rng")
        if _CURSOR.search(name) or (name in _DATA_KEYS and _has_position(value)):
            present.add("data-cursor")
        if _SCALER.search(name) and as_mapping(value):
            present.add("scaler")

    def _add(self, role: Role, name: str, index: int, key: str, ref: TensorRef) -> None:
        data = self.file.locate(ref)
        self.contents.tensors.append(LazyTensor(role, name, index, key, ref.dtype, ref.shape, self.name, data))


def _has_position(value: Any) -> bool:
    mapping = as_mapping(value) or {}
    return any(_POSITION.search(str(key)) for key in mapping)


def _has_tensors(value: Any, depth: int = 6) -> bool:
    """True for a model: tensors under names, nested as deep as Megatron nests them."""
    if _is_module(value):
        return True
    mapping = as_mapping(value)
    if is_optimizer(value) or depth == 0:
        return False
    inner = list(mapping.values()) if mapping is not None else value if isinstance(value, list) else []
    if any(isinstance(item, TensorRef) for item in inner):
        return True
    return any(_has_tensors(item, depth - 1) for item in inner[:256] if isinstance(item, dict | Record | list))


def _all_optimizers(value: list[Any] | dict[Any, Any]) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    return bool(items) and all(is_optimizer(item) for item in items)


def _tensors(
    value: Any, text: type[str], depth: int, walk: _Interpreter, path: str = ""
) -> Iterator[tuple[str, TensorRef]]:
    """(dotted path, tensor) of every tensor below `value`."""
    walk.visit()
    if isinstance(value, TensorRef):
        yield path, value
        return
    if depth == 0:
        if isinstance(value, dict | list | tuple | Record):
            raise InputUnreadable(f"{walk.name}: objects nested more than {MAX_DEPTH} levels deep")
        return
    for key, inner in _children(value):
        if isinstance(inner, TensorRef | dict | list | tuple | Record):
            label = text(key)
            yield from _tensors(inner, text, depth - 1, walk, f"{path}.{label}" if path and label else path or label)


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from ((k if isinstance(k, str | int) else "", v) for k, v in value.items())
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, Record):
        if isinstance(value.state, dict):
            yield from value.state.items()
        elif value.state is not None:
            yield "", value.state
        yield from (("", item) for item in value.args)
        yield from enumerate(value.items)
        yield from value.pairs.items()
