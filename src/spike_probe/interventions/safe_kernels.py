"""Does it take fast kernels? Plain attention, deterministic algorithms, no fused optimizer, no compilation, no TF32.

Applied before every forward of the acting steps, so that settings which the script makes later do not win.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from spike_probe.intervention import Intervention, Live
from spike_probe.kernels import kernel_flags, optimizer_lines
from spike_probe.plan import PlannedChange

NAME = "safe-kernels"
FACTOR = "kernels"
SUMMARY = "Attention, matrix products, reductions and optimizer run on the plainest kernels there are."
PARAMETERS = ()
SPECIFIC = True

_OPTIMIZER_SWITCHES = ("foreach", "fused")


class SafeKernels(Intervention):
    """Sets every switch; stays set after the acting steps, because kernels that were left are not remembered."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._before: dict[str, str] = {}
        self._is_eager = False

    def before_forward(self, live: Live, module: torch.nn.Module) -> None:
        is_first = not self._before
        if is_first:
            self._before = kernel_flags()
            self._before["optimizers"] = "; ".join(optimizer_lines(live.optimizers()))
        self._set_attention()
        self._set_numerics()
        self._set_eager()
        for optimizer in live.optimizers():
            _set_plain(optimizer)
        if is_first:
            self._report(live)

    def before_update(self, live: Live, optimizer: torch.optim.Optimizer) -> None:
        _set_plain(optimizer)

    def _set_attention(self) -> None:
        cuda = torch.backends.cuda
        cuda.enable_flash_sdp(False)
        cuda.enable_mem_efficient_sdp(False)
        cuda.enable_math_sdp(True)
        if hasattr(cuda, "enable_cudnn_sdp"):
            cuda.enable_cudnn_sdp(False)

    def _set_numerics(self) -> None:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True

    def _set_eager(self) -> None:
        if self._is_eager:
            return
        self._is_eager = True
        compiler: Any = torch.compiler
        if hasattr(compiler, "set_stance"):
            compiler.set_stance("force_eager")
        else:
            os.environ["TORCHDYNAMO_DISABLE"] = "1"

    def _report(self, live: Live) -> None:
        after = kernel_flags()
        after["optimizers"] = "; ".join(optimizer_lines(live.optimizers()))
        changed = [name for name in after if after[name] != self._before.get(name)]
        for name in changed:
            live.effect(f"kernel.{name}", self._before.get(name, ""), after[name], True)
        if not changed:
            live.effect("kernels", "safe already", "nothing to change", False)


def _set_plain(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for switch in _OPTIMIZER_SWITCHES:
            if switch in group:
                group[switch] = False


INTERVENTION = SafeKernels
