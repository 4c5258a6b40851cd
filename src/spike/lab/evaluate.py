"""What is the held-out number of the checkpoint that a trial started from, and of the one that it wrote?

The operator's own `holdout` command runs twice in the view that the trial has left, so it sees the trial's code and
files, and can change nothing either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spike.domain.measured import NotMeasured
from spike.domain.remote import is_url
from spike.domain.run import Run
from spike.lab import command
from spike.lab.holdout import last_number, write_holdout
from spike.lab.launch import run_aside
from spike.lab.view import View

Redact = Callable[[str], str]


def evaluate(view: View, run: Run, directory: Path, checkpoint: str, step: int, redact: Redact) -> None:
    """Measure both and store them as holdout.json; a number that cannot be had says why."""
    before: float | NotMeasured = NotMeasured("the trial started from scratch")
    if checkpoint:
        before = _measure(view, run, directory, "before", checkpoint, step, redact)
    written = newest_checkpoint(view, run)
    after: float | NotMeasured
    if isinstance(written, NotMeasured):
        after = written
    else:
        after = _measure(view, run, directory, "after", written[0], written[1], redact)
    write_holdout(directory, before, after)


def newest_checkpoint(view: View, run: Run) -> tuple[str, int] | NotMeasured:
    """(path as the trial sees it, step in its name) of the newest checkpoint that the trial wrote."""
    if is_url(run.checkpoints):
        return NotMeasured("the run's checkpoints go to an object store; what a trial wrote there is not looked at")
    parts = (Path(run.directory) / run.checkpoints).parts
    numbered = next((i for i, part in enumerate(parts) if "{step}" in part), None)
    if numbered is None:
        return NotMeasured("spike.yaml names no `checkpoints:` pattern, so the trial's own checkpoint is not known")
    name = re.compile(re.escape(parts[numbered]).replace(r"\{step\}", r"(\d+)") + r"\Z")
    rest = "/".join(("", *parts[numbered + 1 :]))
    found = [
        (int(match[1]), real + rest)
        for kept, real in view.written_below(str(Path(*parts[:numbered])))
        if (match := name.match(kept.name)) and Path(f"{kept}{rest}").exists() and not _is_the_runs(view, real + rest)
    ]
    if not found:
        return NotMeasured("the command wrote no checkpoint in the trial's window")
    step, path = max(found)
    return view.path(path), step


def _is_the_runs(view: View, real: str) -> bool:
    """True where a copied view only repeats what the run has."""
    return bool(view.copied) and Path(real).exists()


def _measure(
    view: View, run: Run, directory: Path, when: str, checkpoint: str, step: int, redact: Redact
) -> float | NotMeasured:
    argv = command.arguments(
        run.holdout,
        checkpoint=checkpoint,
        step=step,
        workdir=view.path(run.directory),
        rewrite=view.rewrite,
    )
    cwd = view.path(run.cwd or run.directory)
    entry = replace(view.entry, argv=argv, cwd=cwd, env=view.environment(run, cwd), again=True)
    out, err = directory / f"holdout-{when}.log", directory / f"holdout-{when}.err"
    for path in (out, err):
        path.unlink(missing_ok=True)
    report = run_aside(entry, out, err, limit_s=run.limits.trial_minutes * 60.0)
    texts = [redact(path.read_text(errors="replace")) for path in (out, err)]
    for path, text in zip((out, err), texts, strict=True):
        path.write_text(text)
    if report is None:
        return NotMeasured("the holdout command was ended, at its time limit (limits.trial_minutes) or by the operator")
    if report.error:
        return NotMeasured(f"the holdout command could not be started: {report.error}")
    if report.code != 0:
        last = (texts[1].strip() or texts[0].strip() or "nothing").splitlines()[-1]
        return NotMeasured(f"the holdout command ended with exit {report.code}; it last said: {last}")
    return last_number(texts[0])
