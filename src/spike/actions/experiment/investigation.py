"""What does every trial of a case need to know? The case, its incident, the record, and the steps to judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spike.casefile.case import Case
from spike.casefile.codec import from_payload
from spike.casefile.signals_store import read_signals
from spike.domain.case import PinnedCheckpoint
from spike.domain.detect.ranks import seen_by
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.facts import CheckReport
from spike.domain.incident import Incident
from spike.domain.measured import NotMeasured
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.readers.source_tree import read_source

MAX_WINDOW_STEPS = 32
"""A trial goes no further than this beyond the onset: enough for a gradient norm that leads the loss by many steps
to reach its peak, short enough that a dozen trials are affordable."""
SETTLING_STEPS = 2
"""Steps after the peak that a trial also runs, so that a one-step spike is judged with its aftermath."""

Talk = Callable[[str], None]
Steps = Callable[[str, int, int], None]
"""(trial id, steps done, steps in all)."""


@dataclass(frozen=True, slots=True)
class RecordedCode:
    """The code to put into a trial's view where the work tree has moved on since the freeze; empty where it has not."""

    commit: str = ""
    patch: str = ""


@dataclass(frozen=True, slots=True)
class Investigation:
    """One case at work. Ports (`talk`, `on_step`) have silent defaults."""

    case: Case
    run: Run
    incident: Incident
    record: Signals
    """What the run logged, one series a signal: the job's, or the incident's rank's."""
    checks: CheckReport | None
    code: RecordedCode
    talk: Talk = lambda _text: None
    on_step: Steps = lambda _trial, _done, _total: None

    @property
    def last_good(self) -> PinnedCheckpoint:
        """The checkpoint that trials start from. Raises `SpikeError` where the case has none."""
        found = self.case.facts.last_good
        if found is None:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.case.facts.not_pinned) or "none was found"
            raise SpikeError(
                f"no whole, finite checkpoint lies before the onset at step {self.incident.onset_step} ({reasons})",
                hint="spike report, which says what could not be tested; keep checkpoints longer for the next time",
                exit_code=ExitCode.INCONCLUSIVE,
            )
        return found

    @property
    def last_step(self) -> int:
        """Last logged step that trials are judged at: the peak with its aftermath, within bounds and the record."""
        onset = self.incident.onset_step
        wanted = max(min(self.incident.peak_step, onset + MAX_WINDOW_STEPS), onset + 1) + SETTLING_STEPS
        ends = [int(s.steps[-1]) for s in self.record.series if s.steps.size and s.name in ("loss", "grad_norm")]
        return min(wanted, max(ends, default=wanted))

    def pinned_path(self, checkpoint: PinnedCheckpoint) -> Path:
        """Where the case keeps this checkpoint."""
        return self.case.path / checkpoint.pinned


def open_investigation(
    case: Case, run: Run, *, talk: Talk | None = None, on_step: Steps | None = None
) -> Investigation:
    """Load what the case knows. Raises `SpikeError` where there is nothing to investigate or to launch."""
    incident = case.facts.incident
    if incident is None:
        raise SpikeError(
            f"case {case.facts.id} was frozen without an incident, so there is nothing to reproduce",
            hint="spike freeze --step STEP --new",
        )
    if not run.launch:
        raise SpikeError(
            f"spike.yaml in {run.directory} has no launch command, so no trial can be run",
            hint="add `launch: python train.py ... --resume {checkpoint}` to spike.yaml",
            exit_code=ExitCode.INCONCLUSIVE,
        )
    checks = case.read_json("checks.json")
    return Investigation(
        case=case,
        run=run,
        incident=incident,
        record=seen_by(read_signals(case.path), incident.rank),
        code=_recorded_code(case, run, talk or (lambda _text: None)),
        checks=from_payload(CheckReport, checks, schema="spike.checks/1", source="checks.json") if checks else None,
        talk=talk or (lambda _text: None),
        on_step=on_step or (lambda _trial, _done, _total: None),
    )


def _recorded_code(case: Case, run: Run, talk: Talk) -> RecordedCode:
    """Compare the code that was frozen with the code that is there now."""
    frozen = case.read_json("evidence/source/state.json") or {}
    state = frozen.get("state", {})
    commit, digest = state.get("commit", ""), state.get("patch_sha256", "")
    if not commit:
        return RecordedCode()
    now = read_source(Path(run.code or run.directory))
    if isinstance(now, NotMeasured) or (now.commit, now.patch_sha256) == (commit, digest):
        return RecordedCode()
    if frozen.get("secrets_taken_out_of_patch"):
        talk("the code was changed since the freeze, and its patch had secrets: trials run the code that is there now")
        return RecordedCode()
    talk(f"the code was changed since the freeze: trials run the recorded commit {commit[:10]}")
    file = case.path / "evidence/source/uncommitted.patch"
    patch = file.read_bytes().decode("utf-8", "surrogateescape") if file.is_file() else ""
    return RecordedCode(commit, patch)
