"""Which kernels and which optimizer settings was this computed with? Flags read from the live process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Callable

import torch

VARYING = ("params", "lr", "initial_lr")
"""Group keys that are no constants of the optimizer."""


def kernel_flags() -> dict[str, str]:
    """Every switch that changes numerics without changing the program, as text."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    readers: dict[str, Callable[[], Any]] = {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "cuda_matmul_allow_tf32": lambda: cuda.matmul.allow_tf32,
        "cuda_reduced_precision_fp16": lambda: cuda.matmul.allow_fp16_reduced_precision_reduction,
        "cuda_reduced_precision_bf16": lambda: cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn_allow_tf32": lambda: cudnn.allow_tf32,
        "cudnn_benchmark": lambda: cudnn.benchmark,
        "cudnn_deterministic": lambda: cudnn.deterministic,
        "sdp_flash": lambda: cuda.flash_sdp_enabled(),
        "sdp_mem_efficient": lambda: cuda.mem_efficient_sdp_enabled(),
        "sdp_cudnn": lambda: cuda.cudnn_sdp_enabled(),
        "sdp_math": lambda: cuda.math_sdp_enabled(),
        "cpu_capability": lambda: torch.backends.cpu.get_cpu_capability(),
        "mkldnn": lambda: torch._C._get_mkldnn_enabled(),
        "default_dtype": torch.get_default_dtype,
        "threads": torch.get_num_threads,
        "compile_stance": _compile_stance,
        "cublas_workspace": lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }
    flags = {}
    for name, read in readers.items():
        try:
            flags[name] = str(read())
        except Exception as error:  # an older torch lacks the switch
            flags[name] = f"not measured: {type(error).__name__}"
    return flags


def _compile_stance() -> str:
    import sys

    frame = sys.modules.get("torch._dynamo.eval_frame")
    return str(getattr(getattr(frame, "_stance", None), "stance", "default"))


def optimizer_lines(optimizers: Iterable[torch.optim.Optimizer]) -> list[str]:
    """One line an optimizer: class, number of groups and parameters, constant hyperparameters by group."""
    lines = []
    for optimizer in optimizers:
        groups = [
            ", ".join(f"{key}={_plain(group[key])}" for key in sorted(group) if key not in VARYING)
            for group in optimizer.param_groups
        ]
        distinct = list(dict.fromkeys(groups))
        sizes = "+".join(str(len(group["params"])) for group in optimizer.param_groups)
        lines.append(f"{type(optimizer).__name__}(params {sizes}): {' | '.join(distinct)}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.tolist()) if value.numel() <= 8 and value.device.type == "cpu" else "tensor"
    return repr(value) if isinstance(value, (bool, int, float, str, tuple, list, type(None))) else type(value).__name__
