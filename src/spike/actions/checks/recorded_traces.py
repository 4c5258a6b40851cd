"""Which traces did a run leave that was recorded by the probe? Found by content, where the run's logs are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from spike.casefile.case import Case
from spike.domain.errors import InputUnreadable
from spike.domain.run import Run
from spike.domain.trace import RankTrace
from spike.lab.traces import SCHEMA, read_trace
from spike.readers.metrics.find import candidates

_PATTERN = "rank*.jsonl"
_HEAD_BYTES = 512
MAX_FILES = 4096
"""One a rank and recording; a job with more ranks is compared on the first of them."""


def recorded_traces(run: Run, case: Case | None = None) -> tuple[tuple[RankTrace, ...], tuple[str, ...]]:
    """(every rank's trace of every recording, oldest recording first; why a file could not be used).

    Traces lie anywhere below the run, or where `metrics:` says; of a run that is gone, the case's copies count.
    """
    directory = Path(run.directory)
    if not directory.is_dir() and case is not None:
        directory = case.path / "evidence" / "run"
    recordings: dict[Path, list[RankTrace]] = defaultdict(list)
    problems: list[str] = []
    for path in _files(directory, run.metrics)[:MAX_FILES]:
        try:
            trace = read_trace(path)
        except InputUnreadable as error:
            problems.append(error.message)
            continue
        if trace is not None:
            recordings[path.parent].append(trace)
    # Of two recordings that begin at the same step the one written last counts.
    ordered = sorted(recordings.items(), key=lambda item: (item[1][0].first_step, item[0].stat().st_mtime_ns))
    return tuple(trace for _, traces in ordered for trace in traces), tuple(problems)


def of_one_recording(traces: tuple[RankTrace, ...], onset: int | None) -> tuple[RankTrace, ...]:
    """The traces of the last recording that begins before the onset: ranks of different processes are no replicas."""
    starts = sorted({trace.first_step for trace in traces})
    before = [start for start in starts if onset is None or start < onset] or starts[:1]
    chosen = [trace for trace in traces if before and trace.first_step == before[-1]]
    return tuple({trace.process.rank: trace for trace in chosen}.values())


def _files(directory: Path, named: tuple[str, ...]) -> list[Path]:
    """Traces below the run, and among the files and directories that `named` gives: those may lie elsewhere."""
    found: list[Path] = []
    for place in (directory, *(directory / name for name in named)):
        below = candidates(place) if place.is_dir() else (place,)
        found += [path for path in below if path.match(_PATTERN) and _is_trace(path)]
    return sorted({path.resolve() for path in found})


def _is_trace(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return SCHEMA.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False
