"""spike replay: does the unchanged command show the incident again?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spike.cli.investigating import investigating
from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish
from spike.domain.errors import ExitCode


def replay(
    run: RunOption = Path(),
    case: CaseOption = None,
    step: Annotated[int | None, typer.Option("--step", "-s", help="The suspect step, where several are known.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the unchanged command from the last good checkpoint through the suspect step.

    First the licence: the healthy steps must reproduce the record. Only then does the outcome count.
    """
    from spike.actions.experiment.replay import replay as act
    from spike.casefile.codec import to_payload
    from spike.domain.trial import OutcomeKind
    from spike.report.phrases import licence_words, noise_words

    with investigating(run, case, step, "replay") as investigation:
        found = act(investigation)
        bench = found.bench
    outcome = bench.replay.outcome
    if as_json:
        emit_json(
            {
                "schema": "spike.replay/1",
                "case": str(investigation.case.path),
                "licence": to_payload(bench.licence),
                "noise": to_payload(bench.baseline.noise),
                "outcome": to_payload(outcome),
                "guard": bench.replay.guard,
                "trials": [bench.baseline.performed.id, *(p.id for p in bench.repeats)],
            }
        )
    else:
        answer(f"licence   {licence_words(bench.licence)}")
        answer(f"noise     {noise_words(bench.baseline.noise)}")
        answer(f"outcome   {outcome.kind.value}: {outcome.reason}")
        answer(f"guard     {bench.replay.guard}: nothing that the trials wrote reached {investigation.run.directory}")
        answer(f"next      {'spike bisect' if found.is_believable else 'spike report, which says what is missing'}")
    if not found.is_believable:
        finish(ExitCode.INCONCLUSIVE)
    finish(ExitCode.ANSWER_NO if outcome.kind is OutcomeKind.ABSENT else ExitCode.PASSED)
