"""Runs one target under atheris. Every argument is libFuzzer's: -max_total_time=60, -runs=N, a corpus directory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import atheris

RSS_MB = 900
"""numpy, duckdb and torch's absence take about 350 MB; half a gigabyte more than that is a finding."""


def run(name: str) -> None:
    """Fuzz until libFuzzer ends; a finding is written to `crash-*` here and ends with exit code 77."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    place = Path(tempfile.mkdtemp(prefix=f"spike-fuzz-{name}-", dir=shared))
    corpus = place / "corpus"
    corpus.mkdir()
    with atheris.instrument_imports(include=["spike", "_targets"]):
        from _targets import TARGETS, emptied

        target, work = TARGETS[name], emptied(place / "work")
        for number, seed in enumerate(target.seeds(emptied(place / "seeds"))):
            (corpus / f"seed-{number}").write_bytes(seed)
            # Readers import what they need when they need it: what a seed does not import stays without guidance.
            target.feed(seed, work)
    done = 0

    @atheris.instrument_func
    def one(data: bytes) -> None:
        nonlocal done
        done += 1
        if done % 512 == 0:
            emptied(work)
        target.feed(data, work)

    options = [word for word in sys.argv[1:] if word.startswith("-")]
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    settings = [f"-rss_limit_mb={RSS_MB}", "-timeout=20", "-max_len=65536", *options]
    atheris.Setup([sys.argv[0], *settings, *given, str(corpus)], one)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(place, ignore_errors=True)
