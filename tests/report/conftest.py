"""The synthetic case, for every test of the report."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SYNTHETIC = runpy.run_path(str(Path(__file__).with_name("synthetic_case.py")))


@pytest.fixture(scope="session")
def facts() -> Any:
    """A whole case as facts."""
    return SYNTHETIC["facts"]()


@pytest.fixture(scope="session")
def drawn(facts: Any) -> Any:
    """The figures of that case, drawn once."""
    from spike.report.figures import draw_figures

    return draw_figures(facts)


@pytest.fixture
def build_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Builds the case on disk: `build_case(through="check")`."""
    monkeypatch.setenv("SPIKE_OPERATOR", "ada")
    return lambda **options: SYNTHETIC["build_case"](tmp_path / "cases", **options)
