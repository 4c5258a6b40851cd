"""What did a captured batch hold? Its tensors, row by row, for statistics over samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spike.domain.errors import InputUnreadable


def sample_rows(path: Path) -> list[NDArray[np.int64] | NDArray[np.float64]]:
    """Every tensor of the batch with a sample dimension, as (samples, values): token ids as int64, numbers as float64.

    The file is read with `weights_only=True`: it comes from the training process, and nothing in it is run. Raises
    `InputUnreadable`.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        tensors = [t for site in content["sites"] for t in site["tensors"]]
    except Exception as error:
        raise InputUnreadable(f"captured batch {path} cannot be read: {error}") from error
    rows: list[NDArray[np.int64] | NDArray[np.float64]] = []
    for tensor in tensors:
        if tensor.dim() < 2 or tensor.is_complex():
            continue
        flat = tensor.reshape(tensor.shape[0], -1)
        rows.append(np.asarray(flat.to(torch.float64 if tensor.is_floating_point() else torch.int64).numpy()))
    return rows


def integer_rows(path: Path) -> NDArray[np.int64] | None:
    """The first of them that holds token ids: what the model read; None where there is none."""
    return next((rows.astype(np.int64) for rows in sample_rows(path) if rows.dtype == np.int64), None)
