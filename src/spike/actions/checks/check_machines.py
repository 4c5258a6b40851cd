"""Did the machines misbehave, and do the ranks agree? Hardware records near the onset, traces, per-rank files."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from spike.actions.checks.check_scene import Scene
from spike.actions.checks.recorded_traces import of_one_recording
from spike.actions.evidence.written_evidence import CAPTURED
from spike.casefile.manifest import EVIDENCE
from spike.domain.checkpoint import TensorFacts
from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.measured import NotMeasured
from spike.domain.ranks import RankAgreement, agreement_fact, logged_agreement, rank_agreement, replica_agreement
from spike.domain.signals import Signals
from spike.domain.verdict import Place
from spike.readers.hardware import (
    CLEAN_PROVES_NOTHING,
    HardwareEvent,
    HardwareRecord,
    Severity,
    find_hardware_files,
    read_hardware,
)

WINDOW_BEFORE_S = 3600.0
"""A failing part shows errors before it harms; an hour covers a step of the largest jobs with its checkpoint."""
WINDOW_AFTER_S = 900.0
MAX_EVENTS = 40
_RANK_FILE = re.compile(r"(?:^|[/_.-])(?:rank|mp_rank|tp_rank)[_-]?(\d+)", re.I)
_LAUNCHER = re.compile(r"\b(torchrun|torch\.distributed\.(run|launch)|accelerate launch|deepspeed|mpirun|srun)\b")
"""Commands that start an unknown number of processes where they are not told one."""
_TENSOR_PARALLEL = re.compile(r"mp_rank|tp_rank", re.I)

Rows = tuple[tuple[str, ...], ...]


def machine_facts(scene: Scene) -> tuple[tuple[Fact, ...], tuple[tuple[str, Rows], ...]]:
    """`hardware.events` and `ranks.agree`, with the events as a table."""
    record = read_hardware(_files(scene))
    hardware = _hardware(scene, record)
    found = _agreement(scene)
    evidence = ("trace",) if scene.traces else tuple(scene.evidence(c) for c in (scene.last_good,) if c is not None)
    ranks = _one_rank(scene) if found is None else agreement_fact(found, evidence)
    tables = [_events(record)] if record.events or record.unreadable else []
    if found is not None and (found.differences or found.notes or found.missing):
        tables.append(_differences(found))
    return (hardware, ranks), tuple(tables)


def _files(scene: Scene) -> tuple[Path, ...]:
    """Records of the run, or of the case where the run is gone; and what the freeze read out of the GPUs."""
    root, own = scene.directory, tuple[Path, ...]()
    if scene.case is not None:
        evidence = scene.case.path / EVIDENCE
        root = root if root.is_dir() else evidence / "run"
        own = tuple(evidence / name for name in CAPTURED if (evidence / name).is_file())
    return (*(find_hardware_files(root, scene.run.hardware) if root.is_dir() else ()), *own)


def _hardware(scene: Scene, record: HardwareRecord) -> Fact:
    name = "hardware.events"
    evidence = tuple(path for path, _, _ in record.files)
    if record.unreadable and not record.files:
        path, reason = record.unreadable[0]
        return Fact(name, NOT_MEASURED, f"{path}: {reason}; {CLEAN_PROVES_NOTHING}", evidence)
    if not record.files:
        hint = "name kernel logs, nvidia-smi -q -x or sacct output under hardware: in spike.yaml"
        return Fact(name, NOT_MEASURED, f"no hardware record was found ({hint}); {CLEAN_PROVES_NOTHING}", evidence)
    faults = [event for event in record.events if event.severity is Severity.FAULT]
    near = [event for event in faults if _is_near(scene, event)]
    if near:
        first = near[0]
        undated = ""
        if first.is_counter:
            undated = " (a counter: when it counted that is not known)"
        elif first.time is None:
            undated = " (the record has no clock time, so when it happened is not known)"
        text = f"{len(near)} hardware faults in the window, first {first.statement}{undated}"
        return Fact(name, "yes", text, (first.source,), Place(file=first.source, key=first.device))
    if record.unreadable:
        text = f"{len(record.unreadable)} hardware files cannot be read, first {record.unreadable[0][0]}"
        return Fact(name, NOT_MEASURED, f"{text}: {record.unreadable[0][1]}; {CLEAN_PROVES_NOTHING}", evidence)
    far = f"; {len(faults)} faults lie outside the window" if faults else ""
    text = f"no hardware fault near the onset in {len(record.files)} files{far}; {CLEAN_PROVES_NOTHING}"
    return Fact(name, "no", text, evidence)


def _is_near(scene: Scene, event: HardwareEvent) -> bool:
    """True within the time from the last good checkpoint to the end of the record; undated events count.

    A counter that was read after the incident may have counted in it.
    """
    if event.time is None:
        return True
    begin = scene.written(scene.last_good) if scene.last_good is not None else None
    end = scene.end_of_record()
    is_before_the_end = event.is_counter or end is None or event.time <= end + WINDOW_AFTER_S
    return (begin is None or event.time >= begin - WINDOW_BEFORE_S) and is_before_the_end


def _agreement(scene: Scene) -> RankAgreement | None:
    """From traces, else from per-rank files of the last good checkpoint, else from per-rank logs; None for one rank."""
    traces = of_one_recording(scene.traces, scene.onset)
    if traces and max(t.process.world for t in traces) > 1:
        shapes = {}
        if scene.last_good is not None:
            shapes = {t.name: t.shape for t in scene.scan(scene.last_good).tensors if t.role.value == "parameter"}
        return rank_agreement(traces, full_shapes=shapes)
    tried: list[RankAgreement] = []
    if scene.last_good is not None:
        files, is_tensor_parallel = _per_rank(scene.scan(scene.last_good).tensors)
        if len(files) > 1:
            step = scene.last_good.step if isinstance(scene.last_good.step, int) else 0
            tried.append(replica_agreement(files, step=step, only_norms=is_tensor_parallel))
    if isinstance(scene.signals, Signals) and len({s.rank for s in scene.signals.series if s.rank is not None}) > 1:
        tried.append(logged_agreement(scene.signals))
    disagreeing = next((found for found in tried if found.agree is False), None)
    measured = next((found for found in tried if found.agree is True), None)
    if disagreeing or measured or tried:
        return disagreeing or measured or tried[0]
    if _world(scene) == 1:
        return None
    reason = "no rank's trace, no per-rank checkpoint file and no per-rank log is on record"
    return RankAgreement(NotMeasured(reason), reason)


def _one_rank(_scene: Scene) -> Fact:
    return Fact("ranks.agree", "yes", "the run has one rank", ("spike.yaml",))


def _world(scene: Scene) -> int:
    """Ranks of the job; a launcher that starts several says so in the command."""
    match = re.search(r"nproc[-_]per[-_]node[ =](\S+)|--num_processes[ =](\d+)|-np? (\d+)", scene.run.launch)
    if match:
        text = next(group for group in match.groups() if group)
        return int(text) if text.isdecimal() else 0
    return 0 if _LAUNCHER.search(scene.run.launch) and scene.run.devices == 1 else scene.run.devices


def _per_rank(tensors: tuple[TensorFacts, ...]) -> tuple[dict[int, list[TensorFacts]], bool]:
    files: dict[int, list[TensorFacts]] = defaultdict(list)
    is_tensor_parallel = False
    for tensor in tensors:
        match = _RANK_FILE.search(tensor.file)
        if match:
            files[int(match[1])].append(tensor)
            is_tensor_parallel = is_tensor_parallel or _TENSOR_PARALLEL.search(tensor.file) is not None
    return dict(files), is_tensor_parallel


def _events(record: HardwareRecord) -> tuple[str, Rows]:
    rows: list[tuple[str, ...]] = [("time", "severity", "event", "source")]
    for event in record.events[:MAX_EVENTS]:
        source = f"{event.source}:{event.line}" if event.line else event.source
        rows.append((_clock(event.time), event.severity.value, event.statement, source))
    if len(record.events) > MAX_EVENTS:
        rows.append(("", "", f"and {len(record.events) - MAX_EVENTS} more events", ""))
    rows += [("", "unreadable", reason, path) for path, reason in record.unreadable]
    return "hardware events", tuple(rows)


def _clock(time: float | None) -> str:
    from datetime import UTC, datetime

    return "" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _differences(found: RankAgreement) -> tuple[str, Rows]:
    rows: list[tuple[str, ...]] = [("step", "quantity", "tensor", "ranks that differ", "values")]
    for difference in found.differences:
        values = "; ".join(f"{value} on {', '.join(map(str, ranks))}" for value, ranks in difference.values[:4])
        rows.append(
            (
                str(difference.step),
                difference.quantity,
                difference.tensor,
                ", ".join(map(str, difference.minority)),
                values,
            )
        )
    rows += [("", "note", "", "", note) for note in found.notes]
    if found.missing:
        rows.append(("", "missing", "", ", ".join(map(str, found.missing)), "left no trace"))
    return "ranks", tuple(rows)
