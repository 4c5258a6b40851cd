"""spike bisect: what is the cause?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.investigating import investigating
from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish
from spike.domain.errors import ExitCode

if TYPE_CHECKING:
    from spike.domain.verdict import Verdict


def bisect(
    run: RunOption = Path(),
    case: CaseOption = None,
    step: Annotated[int | None, typer.Option("--step", "-s", help="The suspect step, where several are known.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every trial, and what each hypothesis expected.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the most separating trials until one cause is established, or say what cannot be told apart."""
    from spike.actions.experiment.bisect import bisect as act
    from spike.actions.playbooks import known_playbooks
    from spike.domain.verdict import Status
    from spike.report.terminal import explain_text, verdict_text

    with investigating(run, case, step, "bisect") as investigation:
        playbooks = known_playbooks(investigation.run)
        verdict, search = act(investigation, playbooks)
    if as_json:
        emit_json(verdict_payload(verdict))
    else:
        if explain:
            answer(explain_text(playbooks, search.evidence(), search.bench.results))
        answer(verdict_text(verdict, full=explain))
        answer(f"next      {'spike gate' if verdict.cause else 'spike report'}")
    finish(ExitCode.INCONCLUSIVE if verdict.status is Status.UNDETERMINED else ExitCode.PASSED)


def verdict_payload(verdict: Verdict) -> dict[str, Any]:
    """The documented shape: `class` for the cause class, the rest as in verdict.json."""
    from spike.casefile.codec import to_payload

    payload = to_payload(verdict, schema="spike.verdict/1")
    ordered = {"schema": payload.pop("schema"), "status": payload.pop("status"), "class": payload.pop("cause_class")}
    payload["trials"] = payload.pop("num_trials")
    return ordered | payload
