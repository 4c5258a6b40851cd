"""How much of a micro-batch is supervised? Counted at the loss function, else from labels that reached the model."""

from __future__ import annotations

import inspect
from typing import Any, Optional

import torch

from spike_probe.readback import number_of
from spike_probe.structure import MAPPINGS

LABEL_NAMES = ("labels", "label", "targets", "target")
"""Parameter names of a model's forward that hold class indices, in every stack looked at."""
_INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)


class TargetCount:
    """Targets of one micro-batch: how many there are, and how many of them are not the ignore index."""

    def __init__(self) -> None:
        self.num_targets: Optional[int] = None
        self.num_supervised: Any = None
        """A number, or a scalar on the device; None: not measured."""
        self._labels: Optional[torch.Tensor] = None

    def add_classes(self, prediction: torch.Tensor, target: torch.Tensor, ignore_index: int) -> None:
        """Count a classification loss; `target` holds class indices, or probabilities shaped as `prediction`."""
        if target.is_floating_point():
            count = target.numel() // max(1, prediction.shape[1] if prediction.dim() > 1 else prediction.shape[0])
            self._add(count, count)
        else:
            self._add(target.numel(), number_of((target != ignore_index).sum()))

    def add_all(self, target: torch.Tensor) -> None:
        """Count a loss without an ignore index."""
        self._add(target.numel(), target.numel())

    def note_labels(self, labels: Optional[torch.Tensor]) -> None:
        """Remember labels that reached the model, for when the loss itself stays out of sight (compiled)."""
        self._labels = labels if self._labels is None else self._labels

    def settle(self) -> None:
        """Fall back on the labels where no loss function was seen; -100 and -1 are both "ignore" there."""
        if self.num_targets is None and self._labels is not None:
            self._add(self._labels.numel(), number_of((self._labels >= 0).sum()))
        self._labels = None

    def _add(self, targets: int, supervised: Any) -> None:
        self.num_targets = targets + (self.num_targets or 0)
        self.num_supervised = supervised if self.num_supervised is None else self.num_supervised + supervised


def labels_of(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optional[torch.Tensor]:
    """The integer tensor that this call passes under a label name, if there is one."""
    for name in LABEL_NAMES:
        if _is_index(kwargs.get(name)):
            return kwargs[name]
    if not args:
        return None
    if len(args) == 1 and isinstance(args[0], MAPPINGS):
        return next((args[0][n] for n in LABEL_NAMES if n in args[0] and _is_index(args[0][n])), None)
    named = zip(_parameter_names(module), args)
    return next((value for name, value in named if name in LABEL_NAMES and _is_index(value)), None)


def _is_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _INDEX_TYPES


_names_by_type: dict[type, list[str]] = {}


def _parameter_names(module: torch.nn.Module) -> list[str]:
    inner: Any = module
    for attribute in ("module", "_orig_mod", "module"):
        held = getattr(inner, attribute, None)
        inner = held if isinstance(held, torch.nn.Module) else inner
    known = _names_by_type.get(type(inner))
    if known is None:
        try:
            known = list(inspect.signature(inner.forward).parameters)
        except (TypeError, ValueError):
            known = []
        _names_by_type[type(inner)] = known
    return known
