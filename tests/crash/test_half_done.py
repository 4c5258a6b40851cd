"""What is a file worth that a killed command replaced and did not record, and what if somebody else did that?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spike.actions.evidence.verify import verify
from spike.casefile.case import Case, create_case, open_case
from spike.casefile.lock import read_holder
from spike.casefile.manifest import EVIDENCE, take_stock, write_manifest
from spike.domain.errors import SpikeError
from spike.domain.verification import Integrity
from tests.casefile.small_runs import facts, make_run

KILLED = """
import os, signal, sys
from pathlib import Path
from spike.casefile.case import open_case
case = open_case(Path(sys.argv[1]))
with case.lock("check"):
    case.write_json("checks.json", {"schema": "spike.checks/1", "facts": [sys.argv[2]]})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A frozen and checked case."""
    found = create_case(tmp_path / "cases", facts(make_run(tmp_path / "run")))
    (found.path / EVIDENCE).mkdir()
    found.write_text(f"{EVIDENCE}/run/cfg.yaml", "lr: 1\n")
    found.record("freeze", "done", 0, write_manifest(found.path, take_stock(found.path / EVIDENCE)))
    write_checks(found, "one")
    assert verify(found.path).integrity is Integrity.INTACT
    return found


def write_checks(case: Case, answer: str) -> None:
    with case.lock("check"):
        case.write_json("checks.json", {"schema": "spike.checks/1", "facts": [answer]})
        case.record("check", "done", 0, ("checks.json",))


def kill_a_check(case: Case, answer: str = "two") -> None:
    done = subprocess.run((sys.executable, "-c", KILLED, str(case.path), answer), env={**os.environ})
    assert done.returncode == -9


def another_command(case: Case) -> None:
    with open_case(case.path).lock("report"):
        case.write_text("postmortem.md", "x")
        case.record("report", "done", 0, ("postmortem.md",))


def test_it_is_unfinished_until_the_command_is_typed_again(case: Case) -> None:
    kill_a_check(case)
    assert verify(case.path).integrity is Integrity.INCOMPLETE
    another_command(case)
    found = verify(case.path)
    assert found.integrity is Integrity.INCOMPLETE
    assert any("checks.json" in text and "`spike check` of" in text for text in found.unfinished)
    kill_a_check(case, "three")
    another_command(case)
    assert verify(case.path).integrity is Integrity.INCOMPLETE
    write_checks(case, "four")
    assert verify(case.path).integrity is Integrity.INTACT


def test_a_change_after_the_kill_is_found_once_another_command_has_seen_what_was_left(case: Case) -> None:
    kill_a_check(case)
    another_command(case)
    case.write_text("checks.json", "{}\n")
    assert verify(case.path).integrity is Integrity.ALTERED


def test_a_change_from_before_is_not_taken_for_the_work_of_a_killed_command(case: Case) -> None:
    case.write_text("case-notes.json", "{}\n")
    case.record("note", "kept", 0, ("case-notes.json",))
    case.write_text("case-notes.json", '{"forged": true}\n')
    kill_a_check(case)
    assert verify(case.path).integrity is Integrity.ALTERED
    another_command(case)
    assert verify(case.path).integrity is Integrity.ALTERED


@pytest.mark.parametrize("writes", [False, True])
def test_a_command_that_fails_is_interrupted_only_where_it_left_something(case: Case, writes: bool) -> None:
    def fail() -> None:
        with case.lock("check"):
            if writes:
                case.write_json("checks.json", {"schema": "spike.checks/1", "facts": ["two"]})
            raise SpikeError("no room", hint="make some")

    with pytest.raises(SpikeError, match="no room"):
        fail()
    assert bool(read_holder(case.path)) is writes
    assert verify(case.path).integrity is (Integrity.INCOMPLETE if writes else Integrity.INTACT)


def test_a_failing_command_makes_no_forged_file_unfinished(case: Case) -> None:
    case.write_text("checks.json", '{"forged": true}\n')

    def fail() -> None:
        with case.lock("report"):
            raise SpikeError("no", hint="no")

    with pytest.raises(SpikeError, match="no"):
        fail()
    another_command(case)
    assert verify(case.path).integrity is Integrity.ALTERED


def test_temporary_files_of_a_killed_command_are_removed_and_those_of_the_run_are_kept(case: Case) -> None:
    draft = case.path / ".checks.json.4711.tmp"
    draft.write_text("{")
    theirs = case.path / EVIDENCE / "pinned" / "out@200" / ".shard.12.tmp"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("a file of the checkpoint that only looks like one of ours")
    another_command(case)
    assert not draft.exists()
    assert theirs.exists()
