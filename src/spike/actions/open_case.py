"""Which case is meant? The one named, the newest one that fits, or a new one frozen from the run's own signals."""

from __future__ import annotations

from pathlib import Path

from spike.actions.detect import detect_run, primary_incident
from spike.actions.evidence.freeze import freeze
from spike.actions.experiment.investigation import Investigation, Steps, Talk, open_investigation
from spike.casefile.case import Case, cases_dir, latest_case, open_case
from spike.domain.errors import SpikeError
from spike.domain.run import Run

SAME_INCIDENT_STEPS = 64
"""A step this near to a case's onset or peak means that case's incident."""


def existing_case(run: Run, named: Path | None) -> Case:
    """The named case, or the newest of the run. Raises `SpikeError` where there is none."""
    if named is not None:
        return open_case(named)
    found = latest_case(cases_dir(run))
    if found is None:
        raise SpikeError(f"the run in {run.directory} has no case yet", hint="spike freeze")
    return found


def case_for(run: Run, named: Path | None, step: int | None, *, operator: str, talk: Talk) -> Case:
    """The case to work on; freezes one where the run has none (or none about `step`)."""
    if named is not None:
        return open_case(named)
    found = latest_case(cases_dir(run))
    if found is not None and (step is None or _is_about(found, step)):
        return found
    talk("no case is open for this: detecting and freezing the evidence first")
    signals, detection = detect_run(run)
    incident = primary_incident(detection, step)
    if incident is None:
        near = f" near step {step}" if step is not None else ""
        raise SpikeError(
            f"no incident{near} stands out in the signals of {run.directory}, so there is nothing to replay",
            hint="spike detect, which says what was read; spike freeze --step STEP to freeze a step of your own",
        )
    return freeze(run, incident, signals=signals, cases=cases_dir(run), operator=operator)


def _is_about(case: Case, step: int) -> bool:
    incident = case.facts.incident
    if incident is None:
        return False
    return min(abs(step - incident.onset_step), abs(step - incident.peak_step)) <= SAME_INCIDENT_STEPS


def investigate(
    run: Run,
    named: Path | None = None,
    step: int | None = None,
    *,
    operator: str = "",
    talk: Talk | None = None,
    on_step: Steps | None = None,
) -> Investigation:
    """The case to work on, opened for trials."""
    say = talk or (lambda _text: None)
    case = case_for(run, named, step, operator=operator, talk=say)
    return open_investigation(case, run, talk=say, on_step=on_step)
