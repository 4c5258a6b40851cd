"""Did the ranks of this run stay together? From what they logged: by a column store where there is much of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spike.domain.errors import InputUnreadable
from spike.domain.rank_sync import RankSync, gather, judge
from spike.domain.signals import Signals
from spike.readers.metrics import find_metric_files
from spike.readers.rank_rows import gather_files

SMALL_ROWS = 100_000
"""Rows of all ranks together up to which signals that are in memory anyway are compared there."""

STORED_FORMATS = frozenset(("jsonl", "spike-trace"))
"""Formats that the column store reads itself."""


def rank_sync(signals: Signals, base: Path) -> RankSync | None:
    """The ranks behind these signals, whose files lie below `base`; None where at most one rank logged anything."""
    ranked = [s for s in signals.series if s.rank is not None]
    if len({s.rank for s in ranked}) < 2:
        return None
    files = [base / source.path for source in signals.sources]
    stored = all(source.format in STORED_FORMATS for source in signals.sources)
    if stored and all(path.is_file() for path in files):
        is_small = sum(int(s.steps.size) for s in ranked) <= SMALL_ROWS
        # Traces tell more than their signals do: fingerprints, the checkpoint they started from, the host.
        if not is_small or any(source.format == "spike-trace" for source in signals.sources):
            found = _stored(files)
            if found is not None:
                return found
    return judge(gather(signals))


def rank_sync_of(directory: Path) -> RankSync | None:
    """The ranks whose JSON lines or traces lie below a directory, read by the column store alone; None where there are
    none. Raises `InputUnreadable`."""
    return _stored(list(find_metric_files(directory)))


def _stored(files: Sequence[Path]) -> RankSync | None:
    try:
        gathered = gather_files(files)
    except InputUnreadable:
        return None
    return judge(gathered) if gathered is not None and len(gathered.extents) > 1 else None
