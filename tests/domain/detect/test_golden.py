"""Does the detector still say what it said? Its verdicts on public logs and on generated runs, line by line.

A change of the detector that is meant to change verdicts writes the file anew, and its difference is read by a person:

    python -m tests.domain.detect.test_golden
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.curves import labelled

from spike.domain.detect import detect
from spike.domain.incident import Detection
from spike.domain.signals import Signals
from spike.readers.metrics import find_metric_files, read_signals

REAL = Path(__file__).resolve().parents[4] / "shared" / "real-runs"
HERE = Path(__file__).parent / "golden"
PUBLIC, GENERATED = HERE / "public_logs.txt", HERE / "generated_runs.txt"
PER_FAMILY, SEED = 3, 90_001


def lines_of(name: str, detection: Detection) -> list[str]:
    """A line an incident: kind, severity, onset, peak, first signal; a run without one says so."""
    found = [
        f"{name}: {i.kind} {i.severity} {i.onset_step} {i.peak_step} {i.first_signal}" for i in detection.incidents
    ]
    return found or [f"{name}: nothing"]


def public_logs() -> dict[str, Signals]:
    """Every metric file of every public run, on its own."""
    found: dict[str, Signals] = {}
    for directory in sorted(path for path in REAL.iterdir() if path.is_dir()):
        for path in sorted(find_metric_files(directory)):
            found[str(path.relative_to(REAL))] = read_signals([path], base=REAL)
    return found


def public_lines() -> list[str]:
    return [line for name, signals in public_logs().items() for line in lines_of(name, detect(signals))]


def generated_lines() -> list[str]:
    records = labelled(PER_FAMILY, SEED)
    return [
        line
        for number, record in enumerate(records)
        for line in lines_of(f"{number:03} {record.name}", detect(record.signals()))
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason="the public run logs are not beside this checkout")
def test_the_public_logs_are_judged_as_they_were() -> None:
    lines = public_lines()
    assert len(lines) >= 20
    assert lines == PUBLIC.read_text().splitlines()


def test_generated_runs_of_every_family_are_judged_as_they_were() -> None:
    lines = generated_lines()
    assert len(lines) >= 75
    assert lines == GENERATED.read_text().splitlines()


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    GENERATED.write_text("\n".join(generated_lines()) + "\n")
    if REAL.is_dir():
        PUBLIC.write_text("\n".join(public_lines()) + "\n")
