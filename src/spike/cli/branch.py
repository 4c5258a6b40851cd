"""spike branch: what does one change show?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spike.cli.investigating import investigating
from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish
from spike.domain.errors import ExitCode, SpikeError


def branch(
    change: Annotated[str | None, typer.Argument(help="The change to make: skip-batch, full-precision, ...")] = None,
    run: RunOption = Path(),
    case: CaseOption = None,
    every: Annotated[bool, typer.Option("--list", help="List the changes, and why some cannot be made here.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run one branch: the unchanged command with exactly one change, computed and proven."""
    from spike.actions.experiment.bench import open_bench
    from spike.actions.experiment.branch import available
    from spike.actions.experiment.branch import branch as act
    from spike.casefile.codec import to_payload
    from spike.domain.trial import OutcomeKind
    from spike.report.phrases import effect_words

    if change is None and not every:
        raise SpikeError("no change was named", hint="spike branch --list")
    with investigating(run, case, None, f"branch {change or '--list'}") as investigation:
        bench = open_bench(investigation)
        rows = available(bench) if every else ()
        result = act(bench, change) if change is not None and not every else None
    if result is None:
        if as_json:
            emit_json({"schema": "spike.branches/1", "branches": [{"name": n, "unavailable": r} for n, r in rows]})
        for name, reason in rows if not as_json else ():
            answer(f"{name:28} {'can be run' if not reason else 'not here: ' + reason}")
        return
    if as_json:
        emit_json(to_payload(result, schema="spike.outcome/1"))
    else:
        answer(f"{result.spec.id}: {result.spec.purpose}")
        answer(f"outcome   {result.outcome.kind.value}: {result.outcome.reason}")
        answer(f"effect    {effect_words(result)}")
        answer("next      spike bisect")
    untestable = result.outcome.kind is OutcomeKind.UNTESTABLE
    finish(ExitCode.INCONCLUSIVE if untestable else ExitCode.PASSED)
