"""Does it take reduced precision? Autocast regions are entered disabled.

Parameters that are themselves half precision are not converted: optimizer state and checkpoint would no longer fit
them. Where autocast is off already there is nothing to change, and the effect says so.
"""

from __future__ import annotations

from typing import Any

import torch

from spike_probe.autocast import ambient_autocast, set_autocast
from spike_probe.digests import dtype_name
from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange

NAME = "full-precision"
FACTOR = "precision"
SUMMARY = "Automatic mixed precision is switched off."
PARAMETERS = ()
SPECIFIC = True


class FullPrecision(Intervention):
    """Disables each autocast region as it is entered, and one that was entered before the acting steps."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._disabled: dict[int, str] = {}
        """Autocast type that was refused, by step."""
        self._ambient: list[str] = []

    def autocast(self, live: Live, step: int, region: Any) -> None:
        if region._enabled:
            region._enabled = False
            self._disabled.setdefault(step, dtype_name(region.fast_dtype))

    def before_forward(self, live: Live, module: torch.nn.Module) -> None:
        for device, dtype in ambient_autocast():
            set_autocast(device, False)
            self._ambient.append(device)
            self._disabled.setdefault(live.step, dtype_name(dtype))

    def after_step(self, live: Live) -> None:
        while self._ambient:
            set_autocast(self._ambient.pop(), True)
        found = self._disabled.pop(live.step, None)
        if found is not None:
            live.effect("autocast", found, "off", True)
            return
        dtypes = sorted({dtype_name(param.dtype) for _, param in live.named_parameters()})
        after = f"off; parameters are {'+'.join(dtypes)} and are not converted"
        live.effect("autocast", "off", f"nothing to change: {after}", False)


INTERVENTION = FullPrecision
