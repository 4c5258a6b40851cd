"""spike ci: do the fixture incidents still get their right verdicts?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.options import JsonOption
from spike.cli.output import answer, emit_json, finish, talk

if TYPE_CHECKING:
    from spike.actions.ci import FixtureResult


def ci(
    fixtures: Annotated[
        Path | None, typer.Argument(help="Directory with incidents/<name>/; the shipped ones by default.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this fixture; may be repeated.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="How many fixtures at the same time.")] = 1,
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Keep run, case and logs of every fixture below this directory.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build fixture incidents, investigate them blind, compare every verdict with what was planted.

    Exit 1: a verdict is not the truth, or a fixture could not be run to the end.
    """
    from spike.actions.ci import run_fixtures
    from spike.domain.errors import ExitCode
    from spike.knowledge.shipped import shipped_directory

    where = fixtures if fixtures is not None else shipped_directory("fixtures")
    results = run_fixtures(where, only=tuple(only or ()), jobs=jobs, keep=keep, talk=talk)
    if junit is not None:
        junit.write_text(_junit(results), encoding="utf-8")
    if as_json:
        emit_json(_payload(results))
    else:
        _tell(results)
    bad = [r for r in results if not r.is_passed and not r.skipped]
    finish(ExitCode.ANSWER_NO if bad else ExitCode.PASSED)


def _tell(results: tuple[FixtureResult, ...]) -> None:
    rows = [("fixture", "expected", "found", "trials", "seconds", "")]
    for result in results:
        trials = str(result.found.num_trials) if result.found is not None else ""
        seconds = f"{result.build_s + result.investigate_s:.0f}"
        rows.append((result.truth.name, _expected(result), _answered(result), trials, seconds, _state(result)))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    for row in rows:
        answer("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for result in results:
        for sentence in (*result.wrong, *([result.failed] if result.failed else [])):
            answer(f"{result.truth.name}: {sentence}" + (f" (see {result.directory})" if result.directory else ""))
    passed = sum(r.is_passed for r in results)
    skipped = sum(bool(r.skipped) for r in results)
    answer(f"{passed} right, {len(results) - passed - skipped} wrong or broken, {skipped} skipped")


def _expected(result: FixtureResult) -> str:
    truth = result.truth
    if truth.is_clean:
        return "no incident"
    step = f" at {truth.step}" if truth.step is not None else ""
    return f"{truth.cause} {truth.status}{step}".strip()


def _answered(result: FixtureResult) -> str:
    found = result.found
    if found is None:
        return "not run" if result.skipped else "no answer"
    if not found.onsets:
        return "no incident"
    if found.status is None:
        return f"incident at {found.onsets[0]}"
    step = f" at {found.step}" if found.step is not None else ""
    return f"{found.cause} {found.status}{step}".strip()


def _state(result: FixtureResult) -> str:
    if result.skipped:
        return "skipped"
    return "right" if result.is_passed else "BROKEN" if result.failed else "WRONG"


def _payload(results: tuple[FixtureResult, ...]) -> dict[str, Any]:
    from spike.casefile.codec import to_payload

    rows = [to_payload(r) | {"passed": r.is_passed} for r in results]
    passed, skipped = sum(r.is_passed for r in results), sum(bool(r.skipped) for r in results)
    counts = {"passed": passed, "failed": len(results) - passed - skipped, "skipped": skipped}
    return {"schema": "spike.ci/1", **counts, "fixtures": rows}


def _junit(results: tuple[FixtureResult, ...]) -> str:
    from spike.report.junit import CaseState, JUnitCase, junit_xml

    cases = []
    for result in results:
        if result.skipped:
            state, message = CaseState.SKIPPED, result.skipped
        elif result.failed:
            state, message = CaseState.ERROR, result.failed
        else:
            state = CaseState.FAILURE if result.wrong else CaseState.PASSED
            message = "; ".join(result.wrong)
        cases.append(JUnitCase(result.truth.name, state, result.build_s + result.investigate_s, message))
    return junit_xml("spike-fixtures", tuple(cases))
