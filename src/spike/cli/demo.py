"""spike demo: a real small incident from scratch, start to postmortem."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.options import JsonOption
from spike.cli.output import answer, emit_json, finish, progress, talk

if TYPE_CHECKING:
    from spike.actions.demo import DemoResult

TELL_EVERY = 40
"""Steps between two lines where there is no terminal for a bar."""


def demo(
    directory: Annotated[Path, typer.Argument(help="A new directory for the run.")] = Path("demo-run"),
    as_json: JsonOption = False,
) -> None:
    """Train a small model for a minute, let its data go bad, and walk through the whole runbook unattended."""
    from spike.actions.demo import LAST_STEP
    from spike.actions.demo import demo as act
    from spike.domain.errors import ExitCode

    with _training(LAST_STEP) as on_step:
        result = act(directory.absolute(), walk=_walker(answers_to_stderr=as_json), on_step=on_step, talk=talk)
    if as_json:
        emit_json(_payload(result))
    else:
        _tell(result)
    found = result.verdict is not None and result.verdict.cause == result.truth.cause
    finish(ExitCode.PASSED if found and result.postmortem is not None else ExitCode.ANSWER_NO)


@contextmanager
def _training(total: int) -> Iterator[Callable[[int, float], None]]:
    with progress("training (steps)", total) as advance:
        last = [0, 0]

        def on_step(step: int, loss: float) -> None:
            advance(max(step - last[0], 0))
            last[0] = max(step, last[0])
            if not sys.stderr.isatty() and step >= last[1] + TELL_EVERY:
                last[1] = step
                talk(f"  step {step} of {total}, loss {loss:.3f}")

        yield on_step


def _walker(*, answers_to_stderr: bool) -> Callable[[Path], int]:
    def walk(directory: Path) -> int:
        sys.stdout.flush()
        command = [sys.executable, "-m", "spike.cli.app", "walk", "--yes", "--run", str(directory)]
        return subprocess.run(command, stdout=sys.stderr if answers_to_stderr else None, check=False).returncode

    return walk


def _tell(result: DemoResult) -> None:
    answer("")
    if result.verdict is not None:
        cause = result.verdict.cause or "no cause"
        answer(f"verdict     {cause}, {result.verdict.status}, at step {result.verdict.step}")
    answer(f"planted     {result.truth.cause} at step {result.truth.step}. {result.truth.why}")
    answer(f"took        {result.train_s:.0f} s to train, {result.walk_s:.0f} s to investigate")
    answer(f"run         {result.run}")
    answer(f"case        {result.case or 'none was opened'}")
    answer(f"postmortem  {result.postmortem or 'none was written'}")


def _payload(result: DemoResult) -> dict[str, Any]:
    from spike.casefile.codec import to_payload
    from spike.cli.bisect import verdict_payload

    verdict = result.verdict
    return {
        "schema": "spike.demo/1",
        "run": str(result.run),
        "case": str(result.case) if result.case is not None else None,
        "postmortem": str(result.postmortem) if result.postmortem is not None else None,
        "verdict": verdict_payload(verdict) if verdict is not None else None,
        "planted": to_payload(result.truth),
        "walk_exit": result.exit_code,
        "train_s": round(result.train_s, 1),
        "walk_s": round(result.walk_s, 1),
    }
