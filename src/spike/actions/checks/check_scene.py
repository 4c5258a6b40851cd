"""What do the checks look at? One case, or a bare run: its incident, signals, and the checkpoints around the onset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from spike.actions.detect import detect_run, primary_incident
from spike.actions.evidence.remote_run import REMOTE_LAYOUT, checkpoints_of
from spike.casefile.case import Case
from spike.casefile.signals_store import SIGNALS_NAME, read_signals
from spike.domain.case import PinnedCheckpoint
from spike.domain.checkpoint import Checkpoint, CheckpointScan, Integrity
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.incident import Incident
from spike.domain.measured import NotMeasured
from spike.domain.remote import is_url, shown_url
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.domain.trace import RankTrace
from spike.readers.checkpoints import find_checkpoints, inspect_checkpoint, scan_checkpoint

OnBytes = Callable[[int], None]


@dataclass(slots=True)
class Scene:
    """Everything that the checks read; scans are made once and kept."""

    run: Run
    case: Case | None
    incident: Incident | None
    onset: int | None
    """Logged step; None where there is no incident and the operator named none."""
    signals: Signals | NotMeasured
    last_good: Checkpoint | None
    """Inspected where it is pinned; its `path` is the pinned one."""
    earlier: tuple[Checkpoint, ...]
    """Newest first."""
    suspect: tuple[Checkpoint, ...]
    """Oldest first."""
    others: tuple[Checkpoint, ...]
    """Every other checkpoint of the run, as far as it is still there."""
    present: tuple[Checkpoint, ...] = ()
    """Everything that lies in the run now, pinned or not: what its next save acts on."""
    not_used: tuple[tuple[str, str], ...] = ()
    """(path, reason) of checkpoints that were rejected before."""
    originals: dict[str, str] = field(default_factory=dict)
    """Pinned path -> path in the run."""
    traces: tuple[RankTrace, ...] = ()
    on_bytes: OnBytes = lambda _count: None
    _scans: dict[str, CheckpointScan] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return Path(self.run.directory)

    def predecessor(self) -> Checkpoint | None:
        """The newest older checkpoint of the last good one's layout: a copy of the same step tells nothing."""
        good = self.last_good
        if good is None:
            return None
        return next((c for c in self.earlier if c.layout == good.layout and _step(c) < _step(good)), None)

    def scan(self, checkpoint: Checkpoint) -> CheckpointScan:
        """Every byte of it, read once."""
        if checkpoint.path not in self._scans:
            self._scans[checkpoint.path] = scan_checkpoint(checkpoint, self.on_bytes)
        return self._scans[checkpoint.path]

    def scanned(self, checkpoint: Checkpoint) -> CheckpointScan | None:
        """Its scan, if that was made."""
        return self._scans.get(checkpoint.path)

    def original(self, checkpoint: Checkpoint) -> str:
        """Its path in the run, relative where it lies below the run."""
        original = self.originals.get(checkpoint.path, checkpoint.path)
        if is_url(original):
            return original
        path = Path(original)
        return path.relative_to(self.directory).as_posix() if path.is_relative_to(self.directory) else str(path)

    def evidence(self, checkpoint: Checkpoint) -> str:
        """The id under which the case (or the run) keeps it."""
        path = Path(checkpoint.path)
        base = self.case.path if self.case is not None else self.directory
        return path.relative_to(base).as_posix() if path.is_relative_to(base) else str(path)

    @property
    def signals_evidence(self) -> tuple[str, ...]:
        """Where the signals are kept."""
        if isinstance(self.signals, NotMeasured):
            return ()
        return (SIGNALS_NAME,) if self.case is not None else tuple(s.path for s in self.signals.sources[:3])

    def written(self, checkpoint: Checkpoint) -> float:
        """When it was written, Unix seconds: the original's time where that is still there."""
        original = Path(self.originals.get(checkpoint.path, checkpoint.path))
        if original.is_file():
            return original.stat().st_mtime
        return checkpoint.mtime_ns / 1e9

    def end_of_record(self) -> float | None:
        """When the run last wrote anything that is on record, Unix seconds."""
        times = [self.written(c) for c in (*self.suspect, *((self.last_good,) if self.last_good else ()))]
        for source in self.signals.sources if isinstance(self.signals, Signals) else ():
            path = self.directory / source.path
            if path.is_file():
                times.append(path.stat().st_mtime)
        return max(times, default=None)


def scene_of_case(
    case: Case, run: Run, *, traces: tuple[RankTrace, ...] = (), on_bytes: OnBytes | None = None
) -> Scene:
    """What a frozen case holds. Raises `InputUnreadable` where its pinned evidence is gone."""
    facts = case.facts
    originals: dict[str, str] = {}

    def pinned(pin: PinnedCheckpoint) -> Checkpoint:
        path = case.path / pin.pinned
        found = inspect_checkpoint(path)
        originals[found.path] = pin.original
        return found if isinstance(found.step, int) else replace(found, step=pin.step)

    last_good = pinned(facts.last_good) if facts.last_good is not None else None
    earlier = tuple(pinned(pin) for pin in facts.earlier)
    suspect = tuple(pinned(pin) for pin in facts.suspect)
    try:
        signals: Signals | NotMeasured = read_signals(case.path)
    except InputUnreadable as error:
        signals = NotMeasured(_sentence(error))
    incident = facts.incident
    present, unseen = _present(run, incident.onset_step if incident is not None else None)
    return Scene(
        run=run,
        case=case,
        incident=incident,
        onset=incident.onset_step if incident is not None else None,
        signals=signals,
        last_good=last_good,
        earlier=earlier,
        suspect=suspect,
        others=tuple(c for c in present if c.path not in originals.values()),
        present=_on_disk(present),
        not_used=(*facts.not_pinned, *unseen),
        originals=originals,
        traces=traces,
        on_bytes=on_bytes or (lambda _count: None),
    )


def scene_of_run(run: Run, *, traces: tuple[RankTrace, ...] = (), on_bytes: OnBytes | None = None) -> Scene:
    """What a run shows as it lies there: nothing is pinned, nothing is written."""
    try:
        signals, detection = detect_run(run)
        incident = primary_incident(detection)
    except InputUnreadable as error:
        signals, incident = NotMeasured(_sentence(error)), None  # type: ignore[assignment]
    onset = incident.onset_step if incident is not None else None
    found, not_used = _found(run, onset)
    known = [c for c in found if isinstance(c.step, int) and c.layout != REMOTE_LAYOUT]
    before = [c for c in reversed(known) if onset is None or _step(c) < onset]
    whole = [c for c in before if c.is_whole]
    whole = whole or [c for c in before if c.integrity is Integrity.UNVERIFIABLE and c.num_tensors]
    last_good = whole[0] if whole else None
    suspect = tuple(c for c in known if onset is not None and _step(c) >= onset)
    earlier = tuple(_of_its_kind(whole)[:3])
    used = {c.path for c in (*whole[:1], *earlier, *suspect[:2])}
    return Scene(
        run=run,
        case=None,
        incident=incident,
        onset=onset,
        signals=signals,
        last_good=last_good,
        earlier=earlier,
        suspect=suspect[:2],
        others=tuple(c for c in found if c.path not in used),
        present=_on_disk(found),
        not_used=not_used,
        traces=traces,
        on_bytes=on_bytes or (lambda _count: None),
    )


def bytes_to_scan(scene: Scene) -> int:
    """Bytes that the checks will read, for a progress bar."""
    wanted = [scene.last_good, scene.predecessor(), *scene.suspect[:1]]
    return sum(c.num_bytes for c in wanted if c is not None)


def _found(run: Run, near: int | None) -> tuple[tuple[Checkpoint, ...], tuple[tuple[str, str], ...]]:
    """Checkpoints of the run as they lie there, and why some of them say nothing."""
    if not is_url(run.checkpoints):
        return find_checkpoints(Path(run.directory), run.checkpoints, near=near), ()
    try:
        found = checkpoints_of(run)
    except SpikeError as error:
        return (), ((shown_url(run.checkpoints), error.message),)
    if not found:
        return (), ((shown_url(run.checkpoints), "nothing in the store matches"),)
    return found, ((shown_url(run.checkpoints), f"{len(found)} are listed and not read: spike freeze fetches them"),)


def _of_its_kind(whole: list[Checkpoint]) -> list[Checkpoint]:
    """What can be compared with the newest one: of its layout, or where there is none, whatever is older."""
    return [c for c in whole[1:] if c.layout == whole[0].layout] or whole[1:]


def _present(run: Run, near: int | None) -> tuple[tuple[Checkpoint, ...], tuple[tuple[str, str], ...]]:
    """Checkpoints that the run has now, none where it is gone; and why a store shows none."""
    if not Path(run.directory).is_dir() and not is_url(run.checkpoints):
        return (), ()
    found, why = _found(run, near)
    return found, () if found else why


def _on_disk(checkpoints: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """Without those of an object store: no rule of a training stack's rotation is known to hold there."""
    return tuple(c for c in checkpoints if c.layout != REMOTE_LAYOUT)


def _step(checkpoint: Checkpoint) -> int:
    return checkpoint.step if isinstance(checkpoint.step, int) else -1


def _sentence(error: InputUnreadable) -> str:
    """The message as one line of a table."""
    return "; ".join(line.strip() for line in error.message.splitlines())
