"""Which formats and line shapes are there? The modules of two folders, in their own order."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from spike.readers.metrics import formats, lines
from spike.readers.metrics.console_text import LineShape
from spike.readers.metrics.contract import MetricReader


def _modules(package: ModuleType) -> list[ModuleType]:
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


@cache
def metric_readers() -> tuple[MetricReader, ...]:
    """Every READER of `formats/`. Raises TypeError naming a module whose READER is missing or incomplete."""
    found: list[MetricReader] = []
    for module in _modules(formats):
        reader = getattr(module, "READER", None)
        if not isinstance(reader, MetricReader):
            raise TypeError(f"{module.__name__} exports no READER with format, order, sniff and read")
        found.append(reader)
    return tuple(sorted(found, key=lambda reader: reader.order))


@cache
def line_shapes() -> tuple[LineShape, ...]:
    """Every SHAPE of `lines/`. Raises TypeError naming a module whose SHAPE is missing or incomplete."""
    found: list[LineShape] = []
    for module in _modules(lines):
        shape = getattr(module, "SHAPE", None)
        if not isinstance(shape, LineShape):
            raise TypeError(f"{module.__name__} exports no SHAPE with name, order, match and wants_more")
        found.append(shape)
    return tuple(sorted(found, key=lambda shape: shape.order))
