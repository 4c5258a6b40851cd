"""What happened in this run's signals, and which incident is the one to investigate?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.actions.evidence.remote_logs import copied_logs, named_by_address
from spike.domain.detect import detect
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.incident import Detection, Incident, Severity
from spike.domain.remote import is_url
from spike.domain.run import Run
from spike.domain.signals import LOSS, Signals
from spike.readers.metrics import find_metric_files, read_signals
from spike.readers.metrics.read import rank_in_name, relative

SEVERITY_ORDER = (Severity.FATAL, Severity.LASTING, Severity.TRANSIENT)

NEAR_STEPS = 100
"""An operator's "--step 48200" is read off a chart: an incident this close to it is the one meant."""

NEAR_SHARE = 0.01
"""... or within this share of the step, for runs of millions of steps."""

PARTS_OF_A_RUN = frozenset(
    (
        *("logs", "log", "metrics", "lightning_logs", "csv_logs", "tb", "tensorboard", "events", "runs"),
        *("wandb", "mlruns", "output", "outputs", "out", "train", "training", "stdout"),
    )
)
"""Directory names that hold a part of one run; any other names side by side are runs of their own."""

SAME_STEPS_SHARE = 0.5
"""Two files of one format that share this much of their steps from the start on are two runs."""

SCHEMA = "spike.incidents/1"


@dataclass(frozen=True, slots=True, eq=False)
class RunDetection:
    """What one run's metric files showed."""

    source: str
    """The run's directory or file, as given or relative to the directory given."""
    signals: Signals
    detection: Detection
    base: Path = Path()
    """What the names of its sources are relative to."""


def detect_run(run: Run) -> tuple[Signals, Detection]:
    """Read the metrics that `spike.yaml` names (or that are found) and detect.

    Raises InputUnreadable where nothing could be read.
    """
    base = Path(run.directory)
    with copied_logs(run) as logs:
        paths = [*_local_paths(run), *(log.path for log in logs)]
        found = read_signals(paths, base=base, columns=dict(run.columns))
    signals = named_by_address(found, logs, base)
    return signals, detect(signals, constants=dict(run.detect))


def detect_paths(
    paths: Sequence[Path], columns: Mapping[str, str] | None = None, constants: Mapping[str, float] | None = None
) -> tuple[RunDetection, ...]:
    """Detect in files and directories; a directory of several runs gives one answer a run.

    Raises SpikeError where a path does not exist, InputUnreadable where nothing could be read.
    """
    for path in paths:
        if not path.exists():
            raise SpikeError(f"there is no {path}", hint="spike detect PATH, a metric file or a directory of one run")
    found: list[RunDetection] = []
    refused: list[InputUnreadable] = []
    for source, base, files in _runs(paths):
        try:
            signals = read_signals(files, base=base, columns=columns)
        except InputUnreadable as error:
            refused.append(error)
            continue
        found.append(RunDetection(source, signals, detect(signals, constants=constants), base))
    if not found:
        raise refused[0]
    return tuple(found)


def primary_incident(detection: Detection, step: int | None = None) -> Incident | None:
    """The incident to investigate; with `step` the one nearest to it.

    The worst first; of equals one that is not finite, then one in which the loss itself took part (a gradient norm
    that twitched early and healed is weather beside it), then the earliest.

    None where there is none, or none near `step`.
    """
    if step is None:
        return min(
            detection.incidents,
            key=lambda i: (
                SEVERITY_ORDER.index(i.severity),
                i.ratio < math.inf,
                i.signature(LOSS) is None,
                i.onset_step,
            ),
            default=None,
        )
    reach = max(NEAR_STEPS, int(NEAR_SHARE * step))
    near = [i for i in detection.incidents if _distance(i, step) <= reach]
    return min(near, key=lambda i: (_distance(i, step), SEVERITY_ORDER.index(i.severity)), default=None)


def incidents_payload(signals: Signals, detection: Detection) -> dict[str, Any]:
    """The answer of `spike detect --json` for one run, schema spike.incidents/1."""
    return {"schema": SCHEMA, **_body(signals, detection, "")}


def runs_payload(found: Sequence[RunDetection]) -> dict[str, Any]:
    """The same for several runs; each incident, notice and source says which one it belongs to."""
    bodies = [_body(one.signals, one.detection, one.source if len(found) > 1 else "") for one in found]
    keys = ("incidents", "notices", "sources", "damages", "rewinds", "notes")
    return {"schema": SCHEMA, **{key: [row for body in bodies for row in body[key]] for key in keys}}


def metric_paths(run: Run) -> list[Path]:
    """The metric files or directories of a described run: the named ones, else its directory.

    Raises InputUnreadable where the description names some and none exists, SpikeError where it names an object store:
    an object cannot be followed.
    """
    if any(is_url(name) for name in run.metrics):
        raise SpikeError(
            "spike.yaml names metrics in an object store, which is read once and cannot be followed",
            hint="spike detect, or name a file that the run writes: spike watch FILE",
        )
    return _local_paths(run)


def _local_paths(run: Run) -> list[Path]:
    base = Path(run.directory)
    if not run.metrics:
        return [base]
    names = [name for name in run.metrics if not is_url(name)]
    paths: list[Path] = []
    for name in names:
        matches = sorted(base.glob(name)) if any(mark in name for mark in "*?[") else [base / name]
        paths += [path for path in matches if path.exists()]
    if names and not paths:
        raise InputUnreadable(
            f"spike.yaml names the metrics {', '.join(names)}, and none of them exists in {run.directory}",
            hint="correct `metrics:` in spike.yaml, or leave it out",
        )
    return paths


def _runs(paths: Sequence[Path]) -> list[tuple[str, Path, list[Path]]]:
    """(name of the run, base for its sources, its files)."""
    files = [path for path in paths if path.is_file()]
    found: list[tuple[str, Path, list[Path]]] = []
    if files:
        found += _split(files, Path(), "")
    for directory in (path for path in paths if path.is_dir()):
        groups = _groups(directory)
        for name, members in groups.items():
            source = "/".join(part for part in (directory.as_posix() if len(paths) > 1 else "", name) if part)
            found += _split(members, directory / name, source)
        if not groups:
            found.append((directory.as_posix(), directory, [directory]))
    return found


def _groups(directory: Path) -> dict[str, list[Path]]:
    """The metric files of a directory by run: by first subdirectory where those are runs, else all together."""
    files = find_metric_files(directory)
    by_first: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        parts = file.relative_to(directory).parts
        by_first[parts[0] if len(parts) > 1 else ""].append(file)
    names = set(by_first) - {""}
    is_one_run = (directory / "spike.yaml").is_file() or "" in by_first or len(names) < 2
    if is_one_run or any(_is_part(name) for name in names):
        return {"": list(files)} if files else {}
    return dict(by_first)


def _is_part(name: str) -> bool:
    plain = name.lower()
    return plain in PARTS_OF_A_RUN or plain.startswith(("version_", "rank", "checkpoint", "attempt_", "events"))


def _split(files: list[Path], base: Path, source: str) -> list[tuple[str, Path, list[Path]]]:
    """Files side by side that each log a run from its start are several runs; anything else is one."""
    whole = [(source, base, files)]
    if len(files) < 2 or any(rank_in_name(file) is not None for file in files):
        return whole
    spans: list[tuple[str, int, int, int]] = []
    for file in files:
        try:
            signals = read_signals([file], base=base)
        except InputUnreadable:
            return whole
        loss = signals.get(LOSS)
        if loss is None or loss.steps.size < 2:
            return whole
        spans.append((signals.sources[0].format, int(loss.steps[0]), int(loss.steps[-1]), loss.steps.size))
    if not all(_are_two_runs(a, b) for i, a in enumerate(spans) for b in spans[i + 1 :]):
        return whole
    names = [relative(file, base) if base != Path() else file.as_posix() for file in files]
    return [
        ("/".join(part for part in (source, name) if part), base, [file])
        for name, file in zip(names, files, strict=True)
    ]


def _are_two_runs(one: tuple[str, int, int, int], other: tuple[str, int, int, int]) -> bool:
    (format_a, first_a, last_a, rows_a), (format_b, first_b, last_b, rows_b) = one, other
    spacing = max((last_a - first_a) / max(rows_a - 1, 1), (last_b - first_b) / max(rows_b - 1, 1))
    shorter = min(last_a - first_a, last_b - first_b)
    shared = min(last_a, last_b) - max(first_a, first_b)
    starts_alike = abs(first_a - first_b) <= 2 * spacing
    return format_a == format_b and starts_alike and shared >= SAME_STEPS_SHARE * shorter


def _distance(incident: Incident, step: int) -> int:
    """Steps between `step` and the incident; 0 inside of it."""
    last = max((s.last_step for s in incident.signatures), default=incident.peak_step)
    last = max(incident.peak_step, min(last, incident.peak_step + NEAR_STEPS))
    return max(incident.onset_step - step, step - last, 0)


def _body(signals: Signals, detection: Detection, source: str) -> dict[str, Any]:
    where = {"source": source} if source else {}
    return {
        "incidents": [_incident(i) | where for i in detection.incidents],
        "notices": [
            {"pattern": n.pattern, "steps": list(n.steps), "why_benign": n.why_benign} | where
            for n in detection.notices
        ],
        "sources": [
            {
                "path": source if source.endswith(s.path) else "/".join(p for p in (source, s.path) if p),
                "format": s.format,
                "rows": s.num_rows,
                "first_step": s.first_step,
                "last_step": s.last_step,
            }
            for s in signals.sources
        ],
        "damages": [
            {
                "source": d.source,
                "line": d.line,
                "byte_offset": d.byte_offset,
                "reason": d.reason,
                "benign": d.benign,
            }
            | where
            for d in signals.damages
        ],
        "rewinds": [
            {
                "from_step": r.from_step,
                "to_step": r.to_step,
                "source": r.source,
                "from_scratch": r.restarted_from_scratch,
            }
            | where
            for r in signals.rewinds
        ],
        "notes": [{"pattern": pattern, "sentence": sentence} | where for pattern, sentence in signals.notes],
    }


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "kind": incident.kind.value,
        "severity": incident.severity.value,
        "onset_step": incident.onset_step,
        "peak_step": incident.peak_step,
        "first_signal": incident.first_signal,
        "lead_steps": incident.lead_steps,
        "ratio": _number(incident.ratio),
        "recovered": incident.recovered,
        "rank": incident.rank,
        "hints": list(incident.hints),
        "signatures": [
            {
                "signal": s.signal,
                "kind": s.kind.value,
                "transform": s.transform,
                "centre": _number(s.centre),
                "scale": _number(s.scale),
                "threshold": _number(s.threshold),
                "direction": s.direction,
                "onset_step": s.onset_step,
                "peak_step": s.peak_step,
                "peak_value": _number(s.peak_value),
                "last_step": s.last_step,
            }
            for s in incident.signatures
        ],
    }


def _number(value: float) -> float | str:
    """JSON has no infinities: they are written as in every other artefact."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
