"""spike report: write the postmortem."""

from __future__ import annotations

from pathlib import Path

from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, talk


def report(run: RunOption = Path(), case: CaseOption = None, as_json: JsonOption = False) -> None:
    """Write postmortem.md, postmortem.html and the figures from the case alone.

    A partial case gives a partial report, which names the steps that were not taken. The same case gives the same
    bytes, whoever writes it and when.
    """
    from spike.actions.report import write_report
    from spike.actions.status import run_and_case, shipped_pages
    from spike.domain.errors import SpikeError

    described, opened = run_and_case(run, case)
    if opened is None:
        raise SpikeError(f"the run in {described.directory} has no case yet", hint="spike freeze")
    talk(f"reading {opened.path}")
    written = write_report(opened, shipped_pages())
    if as_json:
        payload = {"case": str(opened.path), "files": list(written.files), "not_run": list(written.not_run)}
        emit_json({"schema": "spike.report/1", **payload})
        return
    for file in written.files:
        answer(str(opened.path / file))
    if written.not_run:
        answer(f"not taken: {', '.join(written.not_run)}; the report says what that leaves open")
