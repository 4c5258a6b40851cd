"""Checkpoints that the real stacks wrote."""

from pathlib import Path

import pytest
from tests.readers.checkpoints.stacks import Written

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "sample-checkpoints"


@pytest.fixture
def samples():
    """Checkpoints written by the real stacks."""
    if not SAMPLES.is_dir():
        pytest.skip("the sample checkpoints are not beside this checkout")
    return SAMPLES


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Two generations of every stack, each trained once in a session."""
    return Written(tmp_path_factory.mktemp("stacks"))
