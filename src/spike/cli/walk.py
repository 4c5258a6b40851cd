"""spike walk: go through the whole runbook, step by step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from spike.cli.options import CaseOption, JsonOption, RunOption, YesOption
from spike.cli.output import emit_json, talk
from spike.domain.errors import SpikeError


def walk(
    run: RunOption = Path(),
    case: CaseOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take every step that is due: say why it exists, what it runs and costs, ask, run it, explain the answer.

    Stop whenever you like; the same command goes on from there, also in somebody else's hands. The exit code is that
    of the gate, or of the verdict where there is no gate.
    """
    from spike.actions.status import run_and_case, shipped_pages
    from spike.actions.walk import Walk
    from spike.actions.walk import walk as act

    if not yes and not sys.stdin.isatty():
        raise SpikeError(
            "walk asks before every step, and there is no terminal to ask at", hint="spike walk --yes, or one by one"
        )
    described, opened = run_and_case(run, case)
    at = Walk(
        run=described,
        given=opened.path if opened is not None and case is not None else None,
        pages=shipped_pages(),
        ask=(lambda _question: True) if yes else _ask,
        talk=talk,
        execute=_executor(answers_to_stderr=as_json),
    )
    code = act(at)
    if as_json:
        steps = [{"step": t.step, "exit": t.exit_code} for t in at.taken]
        left_out = [{"step": step, "because": reason} for step, reason in at.left_out]
        where = str(at.case.path) if at.case is not None else None
        emit_json({"schema": "spike.walk/1", "case": where, "steps": steps, "left_out": left_out, "exit": int(code)})
    raise typer.Exit(int(code))


def _ask(question: str) -> bool:
    return typer.confirm(question, default=True, err=True)


def _executor(*, answers_to_stderr: bool) -> Callable[[Sequence[str]], int]:
    """Runs a step as the operator would, its output going where ours goes.

    With --json stdout holds one object only, so the answers of the steps become talk.
    """

    def execute(arguments: Sequence[str]) -> int:
        sys.stdout.flush()
        command = [sys.executable, "-m", "spike.cli.app", *arguments]
        ended = subprocess.run(command, stdout=sys.stderr if answers_to_stderr else None, check=False)
        # A step ended by a signal has no answer; shells say 128 + its number.
        return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode

    return execute
