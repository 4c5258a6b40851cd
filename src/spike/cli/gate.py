"""spike gate: may the run be resumed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spike.cli.investigating import investigating, operator
from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish
from spike.domain.errors import ExitCode


def gate(
    run: RunOption = Path(),
    case: CaseOption = None,
    change: Annotated[str, typer.Option("--change", help="The change to resume with, instead of the playbook's.")] = "",
    waive: Annotated[
        list[str] | None,
        typer.Option("--waive", help="Answer, by your name, for a condition that cannot be measured here."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Resume with exactly one remedy for a short window, and hold it to the contract."""
    from spike.actions.experiment.bench import open_bench
    from spike.actions.experiment.gate import open_gate
    from spike.actions.playbooks import known_playbooks
    from spike.casefile.codec import to_payload

    with investigating(run, case, None, "gate") as investigation:
        playbooks = known_playbooks(investigation.run)
        decision = open_gate(
            open_bench(investigation), playbooks, change=change, waived=tuple(waive or ()), operator=operator()
        )
    if as_json:
        emit_json(to_payload(decision, schema="spike.gate/1"))
    else:
        answer(f"gate {'OPEN' if decision.is_open else 'CLOSED'}: {decision.remedy}")
        for condition in decision.conditions:
            waived = f" (waived by {condition.waived_by})" if condition.waived_by else ""
            answer(f"  {condition.state.value:12} {condition.name:18} {condition.statement}{waived}")
        answer(f"resume    {decision.resume_command}")
        answer(f"roll back {decision.rollback_command}")
        answer("next      spike report")
    finish(ExitCode.PASSED if decision.is_open else ExitCode.ANSWER_NO)
