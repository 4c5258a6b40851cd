"""Does a case survive crashes, second operators and hostile names?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spike.casefile.case import cases_dir, create_case, latest_case, open_case
from spike.casefile.lock import case_lock, interrupted, read_holder
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.run import Run
from tests.casefile.small_runs import facts


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "run").mkdir()
    return Run(directory=str(tmp_path / "run"), launch="python train.py")


def _child(body: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-c", textwrap.dedent(body), *arguments), stdout=subprocess.PIPE, text=True
    )


HOLD = """
import sys, time
from pathlib import Path
from spike.casefile.lock import case_lock
with case_lock(Path(sys.argv[1]), "bisect"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_case_comes_back_with_the_facts_it_was_given(run: Run, tmp_path: Path) -> None:
    given = facts(run)
    case = create_case(tmp_path / "run.spike", given)
    assert open_case(case.path).facts == given
    assert [e.command for e in case.journal()] == ["case"]


def test_saved_facts_are_on_disk_and_in_the_journal(run: Run, tmp_path: Path) -> None:
    import dataclasses

    case = create_case(tmp_path / "run.spike", facts(run))
    changed = dataclasses.replace(case.facts, operator="grace")
    case.save_facts(changed)
    assert open_case(case.path).facts == changed
    assert case.journal()[-1].artefacts[0].path == "case.yaml"


def test_the_newest_case_is_the_one_opened_last(run: Run, tmp_path: Path) -> None:
    cases = tmp_path / "run.spike"
    assert latest_case(cases) is None
    create_case(cases, facts(run, "20260801-031245-222"))
    create_case(cases, facts(run, "20260802-010101-90"))
    found = latest_case(cases)
    assert found is not None
    assert found.path.name == "20260802-010101-90"


def test_a_case_is_not_opened_twice_under_one_name(run: Run, tmp_path: Path) -> None:
    create_case(tmp_path / "run.spike", facts(run))
    with pytest.raises(SpikeError, match="exists already"):
        create_case(tmp_path / "run.spike", facts(run))


def test_a_directory_without_facts_is_no_case(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match=r"no case\.yaml"):
        open_case(tmp_path)


@pytest.mark.parametrize(
    "text", ["[1, 2", "- 1\n", "schema: spike.case/9\n", "!!python/object/apply:os.system ['true']"]
)
def test_facts_that_are_none_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "case.yaml").write_text(text)
    with pytest.raises(InputUnreadable, match=r"case\.yaml"):
        open_case(tmp_path)


def test_cases_are_never_kept_inside_the_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPIKE_CASES", raising=False)
    assert cases_dir(run) == tmp_path / "run.spike"
    assert cases_dir(run, tmp_path / "else") == tmp_path / "else"
    with pytest.raises(SpikeError, match="inside the run"):
        cases_dir(run, tmp_path / "run" / "cases")
    (tmp_path / "door").symlink_to(tmp_path / "run")
    with pytest.raises(SpikeError, match="inside the run"):
        cases_dir(run, tmp_path / "door" / "cases")
    monkeypatch.setenv("SPIKE_CASES", str(tmp_path / "shelf"))
    assert cases_dir(run) == tmp_path / "shelf"


@pytest.mark.parametrize("name", ["../escape.json", "/etc/passwd", "trials/../../x", "a\0b", ""])
def test_an_artefact_cannot_be_written_outside_of_the_case(run: Run, tmp_path: Path, name: str) -> None:
    case = create_case(tmp_path / "run.spike", facts(run))
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="not a path inside a case"):
        case.write_json(name, {})
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_a_missing_artefact_cannot_be_recorded(run: Run, tmp_path: Path) -> None:
    case = create_case(tmp_path / "run.spike", facts(run))
    with pytest.raises(ValueError, match="not in"):
        case.record("check", "done", 0, ("checks.json",))
    assert case.read_json("checks.json") is None


def test_recording_a_directory_records_each_of_its_files(run: Run, tmp_path: Path) -> None:
    case = create_case(tmp_path / "run.spike", facts(run))
    case.write_text("trials/T001/stdout.log", "hello")
    case.write_json("trials/T001/outcome.json", {"schema": "spike.outcome/1"})
    case.record("replay", "one trial", 0, ("trials/T001",))
    assert [a.path for a in case.journal()[-1].artefacts] == ["trials/T001/outcome.json", "trials/T001/stdout.log"]
    assert case.trial_ids() == ("T001",)


def test_a_secret_in_a_command_line_does_not_reach_the_journal(run: Run, tmp_path: Path) -> None:
    case = create_case(tmp_path / "run.spike", facts(run))
    case.record("record --api-key kV9sQ2mB7", "HF_TOKEN=hf_0123456789abcdefghij seen", 0)
    assert b"kV9sQ2mB7" not in (case.path / "journal.jsonl").read_bytes()
    assert b"hf_0123456789abcdefghij" not in (case.path / "journal.jsonl").read_bytes()


def test_the_second_operator_is_told_who_holds_the_case_and_since_when(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIKE_OPERATOR", "grace")
    case = create_case(tmp_path / "run.spike", facts(run))
    child = _child(HOLD, str(case.path))
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(SpikeError) as refused, case.lock("freeze"):
            pass
        for word in ("spike bisect", "grace", str(child.pid), os.uname().nodename, "since 20"):
            assert word in refused.value.message
    finally:
        child.kill()
        child.communicate()


def test_the_lock_of_a_killed_command_is_taken_over(run: Run, tmp_path: Path) -> None:
    case = create_case(tmp_path / "run.spike", facts(run))
    child = _child(HOLD, str(case.path))
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert interrupted(case.path)["command"] == "bisect"
    with case.lock("freeze"):
        assert read_holder(case.path)["command"] == "freeze"
    assert read_holder(case.path) == {}


def test_a_command_may_call_another_on_the_case_that_it_holds(run: Run, tmp_path: Path) -> None:
    case = create_case(tmp_path / "run.spike", facts(run))
    with case.lock("walk"):
        with case_lock(case.path, "freeze"):
            pass
        assert read_holder(case.path)["command"] == "walk"


def test_two_processes_that_record_at_once_make_one_sound_chain(run: Run, tmp_path: Path) -> None:
    from spike.casefile.journal import verify_chain

    case = create_case(tmp_path / "run.spike", facts(run))
    body = """
    import sys
    from pathlib import Path
    from spike.casefile.case import open_case
    case = open_case(Path(sys.argv[1]))
    for number in range(20):
        case.record("check", f"{sys.argv[2]} {number}", 0)
    """
    children = [_child(body, str(case.path), name) for name in ("a", "b", "c")]
    for child in children:
        assert child.wait(60) == 0
        child.communicate()
    assert len(case.journal()) == 61
    assert verify_chain(case.path) == ()


def test_a_read_only_place_is_refused_with_the_way_out(run: Run, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        place = Path("/proc/spike-cases")
    else:
        place = tmp_path / "closed"
        place.mkdir(mode=0o555)
    with pytest.raises(SpikeError) as refused:
        create_case(place, facts(run))
    assert "cannot write" in refused.value.message
    assert refused.value.hint


def test_a_draft_of_a_killed_command_is_cleared_away(run: Run, tmp_path: Path) -> None:
    gone = _child("print('x')")
    gone.communicate()
    draft = tmp_path / "run.spike" / f".20260101-000000-1.{gone.pid}.new"
    draft.mkdir(parents=True)
    create_case(tmp_path / "run.spike", facts(run))
    assert not draft.exists()
