"""In which process, on which machine, with which libraries did this happen? The `start` line."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from typing import Any

import torch

PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "GLOO_", "HIP_", "KMP_", "MKL_", "NCCL_", "NVIDIA_TF32", "NVTE_",
    "OMP_", "PYTORCH_", "ROCR_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_", "TRITON_", "XLA_",
)  # fmt: skip
NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "PYTHONHASHSEED",
    "ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_DEEPSPEED", "TOKENIZERS_PARALLELISM", "SLURM_JOB_ID", "SLURM_NODELIST",
)  # fmt: skip
"""Everything else of the environment stays out of the trace: it may hold secrets."""
LIBRARIES = (
    "torch", "numpy", "transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "safetensors",
    "datasets", "tokenizers", "trl", "peft", "triton", "flash_attn", "xformers", "apex", "transformer_engine",
    "torchdata", "torchao", "torchtitan", "megatron", "composer", "bitsandbytes", "jax",
)  # fmt: skip


def rank_and_world() -> tuple[int, int]:
    """(rank, world size) from the process group if there is one, else from the launcher's variables."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    world = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or "1"
    return (int(rank) if rank.isdigit() else 0), (int(world) if world.isdigit() else 1)


def process_facts(device: torch.device, first_step: int) -> dict[str, Any]:
    """Keys of the `start` line."""
    rank, world = rank_and_world()
    return {
        "schema": "spike.trace/1",
        "rank": rank,
        "world": world,
        "host": socket.gethostname(),
        "device": _device(device),
        "argv": list(sys.argv),
        "python": platform.python_version(),
        "packages": _packages(),
        "threads": torch.get_num_threads(),
        "env": {name: value for name, value in sorted(os.environ.items()) if _is_allowed(name)},
        "time": time.time(),
        "pid": os.getpid(),
        "first_step": first_step,
    }


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device.type)
    return f"{device} {torch.cuda.get_device_name(device)}"


def _packages() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def _is_allowed(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES)
