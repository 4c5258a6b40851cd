"""Is the postmortem assembled from every artefact, and is a damaged one named instead of skipped?"""

from __future__ import annotations

from pathlib import Path

import pytest

from spike.actions.evidence.verify import verify
from spike.actions.report import assemble, write_report
from spike.actions.status import shipped_pages
from spike.casefile.case import Case
from spike.casefile.codec import to_payload
from spike.casefile.signals_store import write_signals
from spike.domain.errors import ExitCode, InputUnreadable
from spike.domain.facts import Fact
from spike.domain.measured import NotMeasured
from spike.domain.signals import Signals
from spike.domain.verification import Integrity
from tests.report.synthetic_case import build_case, signals


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return build_case(tmp_path / "cases")


def untimed() -> Signals:
    found = signals()
    return Signals(tuple(s for s in found.series if s.name != "step_time_s"), found.sources)


def test_every_artefact_arrives(case: Case) -> None:
    facts = assemble(case, shipped_pages())
    assert facts.licence is not None
    assert facts.noise is not None
    assert facts.verdict is not None
    assert facts.gate is not None
    assert facts.checks is not None
    assert facts.signals is not None
    assert [t.spec.id[:4] for t in facts.trials] == ["T001", *(f"T{n:03d}" for n in range(3, 10)), "T012"]
    assert facts.unjudged == ()
    assert {r.path for r in facts.artefacts} >= {"case.yaml", "verdict.json", "trials/T001-replay/outcome.json"}
    assert facts.gaps == (("logs/rank3.log", "permission denied"),)
    assert facts.not_run == ()


def test_a_trial_that_was_interrupted_is_told_with_its_reason(case: Case) -> None:
    spec = to_payload(assemble(case, ()).trials[0].spec, schema="spike.trial/1")
    for number, role in ((20, "branch"), (21, "branch")):
        spec |= {"id": f"T{number:03d}-reseed", "role": role}
        case.trial_dir(spec["id"])
        case.write_json(f"trials/{spec['id']}/trial.json", spec)
    case.write_json("trials/T021-reseed/run.json", {"schema": "spike.trial-run/1"})
    case.trial_dir("donors")
    assert assemble(case, ()).unjudged == (
        ("T020-reseed", "it was started and has not come to an end"),
        ("T021-reseed", "it ran and was not judged"),
    )


def test_facts_that_trials_measured_replace_those_of_the_checks(case: Case) -> None:
    measured = Fact("hardware.events", "yes", "an Xid 79 at step 221", ("check:hardware",))
    more = Fact("receipt.moments", "equal", "all 582 moments are those of the checkpoint", ("T001-replay",))
    facts = [to_payload(f) for f in (measured, more)]
    case.write_json("facts.json", {"schema": "spike.facts/1", "facts": facts})
    found = {f.name: f.value for f in assemble(case, ()).facts}
    assert found["hardware.events"] == "yes"
    assert found["receipt.moments"] == "equal"
    assert found["checkpoint.finite"] == "yes"


def test_without_a_logged_time_the_replay_tells_how_long_a_step_takes(tmp_path: Path) -> None:
    case = build_case(tmp_path / "cases")
    write_signals(case.path, untimed())
    step_time = assemble(case, ()).impact.step_time
    assert step_time.seconds == 4.0
    assert step_time.source == "trials/T001-replay/trace/rank00000.jsonl"


def test_without_any_time_the_hours_are_not_measured(tmp_path: Path) -> None:
    case = build_case(tmp_path / "cases", through="check")
    write_signals(case.path, untimed())
    impact = assemble(case, ()).impact
    assert isinstance(impact.device_hours, NotMeasured)
    write_report(case, shipped_pages())
    assert "The run logs no time per step and no replay shows one." in (case.path / "postmortem.md").read_text()


def test_a_case_without_signals_still_gets_a_report(tmp_path: Path) -> None:
    case = build_case(tmp_path / "cases", through="freeze")
    (case.path / "evidence" / "signals.parquet").unlink()
    written = write_report(case, shipped_pages())
    assert written.files == ("postmortem.md", "postmortem.html")
    assert "figures/signals.svg" not in (case.path / "postmortem.md").read_text()


@pytest.mark.parametrize("artefact", ["verdict.json", "gate.json", "licence.json", "checks.json"])
@pytest.mark.parametrize("damage", ['{"schema": "spike.other/9"}', '{"schema"', "[]"])
def test_a_damaged_artefact_is_named_and_nothing_is_written(case: Case, artefact: str, damage: str) -> None:
    (case.path / artefact).write_text(damage)
    with pytest.raises(InputUnreadable) as raised:
        write_report(case, shipped_pages())
    assert artefact in raised.value.message
    assert raised.value.exit_code is ExitCode.UNREADABLE
    assert not (case.path / "postmortem.md").exists()


def test_the_report_is_in_the_journal_with_its_digests_and_the_case_stays_intact(case: Case) -> None:
    written = write_report(case, shipped_pages())
    last = case.journal()[-1]
    assert last.command == "report"
    assert {a.path for a in last.artefacts} == set(written.files)
    assert verify(case.path).integrity is Integrity.INTACT
