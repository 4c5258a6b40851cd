"""Checkpoints that the real stacks wrote."""

from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "sample-checkpoints"


@pytest.fixture
def samples():
    """Checkpoints written by the real stacks."""
    if not SAMPLES.is_dir():
        pytest.skip("the sample checkpoints are not beside this checkout")
    return SAMPLES
