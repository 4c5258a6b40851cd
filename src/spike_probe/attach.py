"""What happens when torch has just been imported? Plan, writer, recorder and hooks are put together."""

from __future__ import annotations

import os
from typing import Callable, Optional

from spike_probe.hooks import Hooks
from spike_probe.intervention import Intervention, load_intervention
from spike_probe.opened import report_opened
from spike_probe.plan import Plan, load_plan
from spike_probe.recorder import Recorder
from spike_probe.window import end_process
from spike_probe.writer import TraceWriter


def attach(plan_path: str) -> tuple[Recorder, Callable[[], None]]:
    """Arm this process; answers the recorder and what to call when the interpreter exits.

    Raises ValueError or OSError where the plan cannot be read.
    """
    plan = load_plan(plan_path)
    writer = TraceWriter(plan.out)
    recorder = Recorder(plan, writer, _intervention(plan, writer))
    hooks = Hooks(recorder)
    hooks.install()
    if recorder.intervention is not None:
        hooks.guard("arm", recorder.intervention.arm, recorder)
    if plan.checkpoint:
        report_opened(plan.checkpoint, writer)
    os.register_at_fork(after_in_child=lambda: _in_child(recorder))
    return recorder, lambda: _at_exit(recorder, hooks)


def _intervention(plan: Plan, writer: TraceWriter) -> Optional[Intervention]:
    try:
        return load_intervention(plan.intervention)
    except Exception as error:  # recorded; the trial runs on and is found to have changed nothing
        writer.error("intervention", error)
        return None


def _at_exit(recorder: Recorder, hooks: Hooks) -> None:
    """Loggers and user code have said everything by now."""
    hooks.guard("exit", recorder.finish)
    if recorder.window.is_complete and os.getpid() == recorder.writer.pid:
        end_process()


def _in_child(recorder: Recorder) -> None:
    """A fork of a recording process is a worker; one that forks before training may be a rank of its own."""
    if recorder.writer.is_open:
        recorder.is_off = True
    else:
        recorder.writer.pid = os.getpid()
