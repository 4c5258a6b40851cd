"""What do the logs say by themselves about the onset? Non-finite, lasting, a jump of the learning rate, a restart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from spike.actions.checks.check_scene import Scene
from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.incident import Incident, Kind
from spike.domain.measured import NotMeasured
from spike.domain.schedule import first_departure
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, Signals

LEAD_STEPS = 4
"""A bad state shows in the loss within this many steps: the first forward is off (wrong weights), or the first few
updates ruin it (wrong moments, a wrong rate), and logs count from 0 or 1."""
MAX_LOG_BYTES = 256 << 20
_START = re.compile(
    r"\b(resum(?:e|ed|ing)|restor(?:ed|ing)|load(?:ed|ing)?\b.{0,40}\bcheckpoint|checkpoint.{0,40}\bload(?:ed|ing)|"
    r"starting from (?:step|iteration|checkpoint)|restart(?:ed|ing)?|continuing (?:training|from))\b",
    re.I,
)
_NOT_A_START = re.compile(r"\b(sav(?:ed|ing)|will be|to resume|can be resumed|no checkpoint)\b", re.I)
_NUMBER = re.compile(r"(?<![\d.])0*(\d{1,12})(?![\d.]*\d)")
_STEP_LINE = re.compile(r"\b(?:global_?step|step|iter(?:ation)?)\b[\s:=/#\[]*(\d{1,12})", re.I)


def signal_facts(scene: Scene) -> tuple[Fact, ...]:
    """`signal.non-finite`, `signal.persists`, `lr.discontinuity`, `resume.at-onset`."""
    if isinstance(scene.signals, NotMeasured) or scene.incident is None or scene.onset is None:
        if isinstance(scene.signals, NotMeasured):
            reason = f"there are no signals: {scene.signals.not_measured}"
        else:
            reason = "no incident stands out in the signals"
        names = ("signal.non-finite", "signal.persists", "lr.discontinuity", "resume.at-onset")
        return tuple(Fact(name, NOT_MEASURED, reason, scene.signals_evidence) for name in names)
    return (
        _non_finite(scene.incident, scene.signals, scene.signals_evidence),
        _persists(scene.incident, scene.signals, scene.signals_evidence),
        _lr(scene.signals, scene.onset, scene.signals_evidence),
        _resume(scene, scene.signals, scene.onset),
    )


def _non_finite(incident: Incident, signals: Signals, evidence: tuple[str, ...]) -> Fact:
    for name in (LOSS, GRAD_NORM):
        series = signals.get(name)
        if series is None:
            continue
        near = (series.steps >= incident.onset_step - 1) & (
            series.steps <= max(incident.peak_step, incident.onset_step)
        )
        bad = near & ~np.isfinite(series.values)
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            step, value = int(series.steps[place]), float(series.values[place])
            return Fact("signal.non-finite", "yes", f"{name} is {value} at step {step}", evidence, step=step)
    notes = [text for pattern, text in signals.notes if "nan" in pattern.lower()]
    if notes and (
        incident.kind is Kind.NON_FINITE or any(not math.isfinite(s.peak_value) for s in incident.signatures)
    ):
        return Fact("signal.non-finite", "yes", notes[0], evidence, step=incident.onset_step)
    return Fact("signal.non-finite", "no", "loss and gradient norm stay finite through the peak", evidence)


def _persists(incident: Incident, signals: Signals, evidence: tuple[str, ...]) -> Fact:
    last = max((int(s.steps[-1]) for s in signals.series if s.steps.size), default=incident.onset_step)
    if incident.recovered:
        return Fact("signal.persists", "no", f"the signals are back on their trend by step {last}", evidence)
    return Fact("signal.persists", "yes", f"still off the trend at step {last}, the end of the record", evidence)


def _lr(signals: Signals, onset: int, evidence: tuple[str, ...]) -> Fact:
    series = signals.get(LEARNING_RATE)
    if series is None or not series.steps.size:
        return Fact("lr.discontinuity", NOT_MEASURED, "no learning rate was logged", evidence)
    steps, rates = [int(s) for s in series.steps], [float(v) for v in series.values]
    healthy_until = onset - LEAD_STEPS - 1
    if not any(s <= healthy_until for s in steps):
        reason = f"no learning rate was logged before step {onset - LEAD_STEPS}"
        return Fact("lr.discontinuity", NOT_MEASURED, reason, evidence)
    departure = first_departure(steps, rates, healthy_until=healthy_until, last=onset + 1)
    if departure is None:
        return Fact(
            "lr.discontinuity", "no", f"the logged learning rate follows its trend up to step {onset}", evidence
        )
    text = (
        f"the learning rate logged at step {departure.step} is {departure.used:.6g}, {departure.ratio:.3g} times "
        f"the {departure.expected:.6g} that its trend continues to"
    )
    return Fact("lr.discontinuity", "yes", text, evidence, step=departure.step)


def _resume(scene: Scene, signals: Signals, onset: int) -> Fact:
    """A restart shows as a rewound counter, a new log file, a line that says so, or a recorded process."""
    name, evidence, reach = "resume.at-onset", scene.signals_evidence, range(onset - LEAD_STEPS, onset + 1)
    for rewind in signals.rewinds:
        if rewind.to_step in reach or rewind.to_step + 1 in reach:
            text = f"the log goes back from step {rewind.from_step} to {rewind.to_step} in {rewind.source}"
            return Fact(name, "yes", text, evidence, step=rewind.to_step)
    for trace in scene.traces:
        if trace.first_step in reach and trace.first_step > 0:
            text = f"the recorded process of rank {trace.process.rank} started after step {trace.first_step}"
            return Fact(name, "yes", text, ("trace",), step=trace.first_step)
    firsts = sorted(s.first_step for s in signals.sources if s.first_step is not None)
    for source in signals.sources:
        if source.first_step in reach and firsts[0] < (source.first_step or 0) - 1:
            text = f"the log file {source.path} begins at step {source.first_step}"
            return Fact(name, "yes", text, evidence, step=source.first_step)
    says, starts = _said(scene, signals, reach)
    if says is not None:
        step, place, line = says
        return Fact(name, "yes", f"{place} tells of a start at step {step}: {line}", (place,), step=step)
    resumable = [c for c in _known_steps(scene) if c in range(onset - LEAD_STEPS, onset)]
    if not resumable:
        text = f"no checkpoint lies within {LEAD_STEPS} steps before the onset, and no counter goes back there"
        return Fact(name, "no", text, evidence)
    if starts:
        text = f"the console names {starts} starts of the job, none of them near step {onset}"
        return Fact(name, "no", text, evidence)
    text = (
        f"a checkpoint of step {resumable[-1]} lies right before the onset, and no log shows where the job was started"
    )
    return Fact(name, NOT_MEASURED, text, evidence)


def _known_steps(scene: Scene) -> list[int]:
    found = (scene.last_good, *scene.earlier, *scene.suspect, *scene.others)
    return sorted(c.step for c in found if c is not None and isinstance(c.step, int))


def _said(scene: Scene, signals: Signals, reach: range) -> tuple[tuple[int, str, str] | None, int]:
    """(step, file, line) of a line that tells of a start near the onset, and how many starts are told of at all."""
    starts = 0
    for path, shown in _text_logs(scene, signals):
        last_step = 0
        pending = ""
        for line in _lines(path):
            match = _STEP_LINE.search(line)
            is_start = _START.search(line) is not None and not _NOT_A_START.search(line)
            if is_start:
                starts += 1
                pending = line.strip()[:160]
                named = [int(m[1]) for m in _NUMBER.finditer(line)]
                hit = next((n for n in named if n in reach or n + 1 in reach), None)
                if hit is not None and last_step and hit in range(last_step - 1, last_step + 2):
                    return (hit, shown, pending), starts
            elif match is not None:
                step = int(match[1])
                if pending and last_step and step in reach:
                    return (step, shown, pending), starts
                pending, last_step = "", step
    return None, starts


def _text_logs(scene: Scene, signals: Signals) -> Iterator[tuple[Path, str]]:
    """Console logs beside the metric files, from the run or from the case's copies."""
    roots = [scene.directory]
    if scene.case is not None and not scene.directory.is_dir():
        roots = [scene.case.path / "evidence" / "run"]
    for root in roots:
        folders = {(root / source.path).parent for source in signals.sources} | {root, root / "logs"}
        seen: set[Path] = set()
        for folder in sorted(folders):
            for path in sorted(folder.glob("*")) if folder.is_dir() else ():
                text = path.suffix in (".log", ".out", ".err", ".txt") or path.name.startswith(("stdout", "stderr"))
                if text and path.is_file() and path not in seen and path.stat().st_size <= MAX_LOG_BYTES:
                    seen.add(path)
                    yield path, path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            yield line[:2000]
