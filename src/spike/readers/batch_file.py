"""What did a captured batch hold? Its integer tensors, row by row, for statistics over samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spike.domain.errors import InputUnreadable


def integer_rows(path: Path) -> NDArray[np.int64] | None:
    """The first integer tensor with at least two dimensions, as (samples, tokens); None where there is none.

    The file is read with `weights_only=True`: it comes from the training process, and nothing in it is run.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        tensors = [t for site in content["sites"] for t in site["tensors"]]
    except Exception as error:
        raise InputUnreadable(f"captured batch {path} cannot be read: {error}") from error
    for tensor in tensors:
        if not tensor.is_floating_point() and not tensor.is_complex() and tensor.dim() >= 2:
            return np.asarray(tensor.reshape(tensor.shape[0], -1).to(torch.int64).numpy())
    return None
