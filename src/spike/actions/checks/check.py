"""What can be known without a GPU? The facts that need only files: logs, checkpoints, machines, and what changed.

A difference is a lead, not a cause; a value that nobody measured is an answer with a reason, never a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spike.actions.checks.check_changes import change_facts
from spike.actions.checks.check_checkpoints import checkpoint_facts
from spike.actions.checks.check_machines import machine_facts
from spike.actions.checks.check_scene import OnBytes, Scene, scene_of_case, scene_of_run
from spike.actions.checks.check_signals import signal_facts
from spike.actions.checks.rank_sync import rank_tables
from spike.actions.checks.recorded_traces import recorded_traces
from spike.casefile.case import Case
from spike.casefile.codec import to_payload
from spike.domain.errors import ExitCode
from spike.domain.facts import CheckReport, Fact
from spike.domain.measured import NotMeasured
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.domain.trace import RankTrace

SCHEMA = "spike.checks/1"
CHECKS = "checks.json"

WRONG: dict[str, str] = {
    "ranks.agree": "no",
    "checkpoint.integrity": "damaged",
    "checkpoint.finite": "no",
    "checkpoint.training": "no",
    "checkpoint.bit-flip": "yes",
    "checkpoint.generation": "mixed",
    "checkpoint.tensors": "suspicious",
    "hardware.events": "yes",
}
"""Answers that mean something is wrong by itself. A changed commit or a restart is a lead, and no failure."""

Talk = Callable[[str], None]


def check_case(
    case: Case,
    run: Run,
    *,
    traces: Sequence[RankTrace] | None = None,
    on_bytes: OnBytes | None = None,
    talk: Talk | None = None,
) -> CheckReport:
    """Check what the case holds, write checks.json and record it.

    `traces` are those of a recorded run; by default those that the run (or the case's copy of its logs) holds.
    Raises `SpikeError` where the case is in use, `InputUnreadable` where its pinned evidence is gone.
    """
    with case.lock("check"):
        found = _traces(run, case, traces, talk)
        report = report_on(scene_of_case(case, run, traces=found, on_bytes=on_bytes), talk)
        case.write_json(CHECKS, to_payload(report, schema=SCHEMA))
        wrong = wrong_facts(report)
        summary = "; ".join(f"{fact.name} {fact.value}" for fact in wrong) or "nothing wrong was found"
        case.record("check", summary, int(exit_code(report)), (CHECKS,))
    return report


def check_run(
    run: Run, *, traces: Sequence[RankTrace] | None = None, on_bytes: OnBytes | None = None, talk: Talk | None = None
) -> CheckReport:
    """Check a run that has no case. Nothing is written anywhere."""
    found = _traces(run, None, traces, talk)
    return report_on(scene_of_run(run, traces=found, on_bytes=on_bytes), talk)


def _traces(run: Run, case: Case | None, given: Sequence[RankTrace] | None, talk: Talk | None) -> tuple[RankTrace, ...]:
    if given is not None:
        return tuple(given)
    say = talk or (lambda _text: None)
    found, problems = recorded_traces(run, case)
    for problem in problems:
        say(f"a trace is not used: {problem}")
    return found


def report_on(scene: Scene, talk: Talk | None = None) -> CheckReport:
    """Every fact of one scene, with the tables behind them."""
    say = talk or (lambda _text: None)
    say("reading signals")
    facts = list(signal_facts(scene))
    say("reading checkpoints")
    checkpoints, tables = checkpoint_facts(scene)
    say("comparing code, configuration and environment")
    changes, difference_tables = change_facts(scene)
    say("reading hardware records and ranks")
    machines, machine_tables = machine_facts(scene)
    facts += [*checkpoints, *machines, *changes]
    logged = rank_tables(scene.signals, scene.directory) if isinstance(scene.signals, Signals) else ()
    return CheckReport(tuple(facts), (*tables, *difference_tables, *machine_tables, *logged, *_log_tables(scene)))


def wrong_facts(report: CheckReport) -> tuple[Fact, ...]:
    """Facts whose answer means that something is wrong."""
    return tuple(fact for fact in report.facts if WRONG.get(fact.name) == fact.value)


def exit_code(report: CheckReport) -> ExitCode:
    """1 where something is wrong; what was not measured fails nothing."""
    return ExitCode.ANSWER_NO if wrong_facts(report) else ExitCode.PASSED


def _log_tables(scene: Scene) -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    """Where the logs contradict themselves: rewinds, damage, and what their readers noted."""
    if isinstance(scene.signals, NotMeasured):
        return ()
    rows = [
        (
            r.source,
            "goes back",
            f"from step {r.from_step} to {r.to_step}{', from scratch' if r.restarted_from_scratch else ''}",
        )
        for r in scene.signals.rewinds
    ]
    rows += [
        (d.source, "torn last line" if d.benign else "damaged", f"line {d.line}, byte {d.byte_offset}: {d.reason}")
        for d in scene.signals.damages[:20]
    ]
    rows += [("", pattern, text) for pattern, text in scene.signals.notes[:20]]
    return (("the logs by themselves", (("source", "what", "where"), *rows)),) if rows else ()
