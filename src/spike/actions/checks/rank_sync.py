"""Did the ranks of this run stay together? From what they logged, by a column store where it can read that.

It sees more than the signals do: hosts, the size of the world, fingerprints, the checkpoint that a rank started from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spike.domain.errors import InputUnreadable
from spike.domain.rank_sync import RankSync, gather, judge
from spike.domain.signals import Signals
from spike.readers.metrics import find_metric_files
from spike.readers.rank_rows import gather_files
from spike.report.rank_table import rank_lines

STORED_FORMATS = frozenset(("jsonl", "spike-trace"))
"""Formats that the column store reads itself."""


def rank_sync(signals: Signals, base: Path) -> RankSync | None:
    """The ranks behind these signals, whose files lie below `base`; None where at most one rank logged anything."""
    if len({s.rank for s in signals.series if s.rank is not None}) < 2:
        return None
    files = [base / source.path for source in signals.sources]
    is_stored = all(source.format in STORED_FORMATS for source in signals.sources)
    found = _stored(files) if is_stored and all(path.is_file() for path in files) else None
    return found if found is not None else judge(gather(signals))


def rank_tables(signals: Signals, base: Path) -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    """A table of where the ranks' logs part, for `spike check`; none where they agree and all are there."""
    sync = rank_sync(signals, base)
    if sync is None or not (sync.partings or sync.missing or sync.late):
        return ()
    head, *lines = rank_lines(sync)
    return ((head, tuple((line.strip(),) for line in lines)),)


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
