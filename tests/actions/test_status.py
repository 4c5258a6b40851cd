"""Does status say where a case stands, to whoever asks?"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spike.actions.status import argv_of, run_and_case, shipped_pages, status
from spike.casefile.case import Case
from spike.cli.app import app
from spike.domain.run import Run
from tests.report.synthetic_case import build_case


def ask(case: Case, *options: str) -> str:
    found = CliRunner().invoke(app, ["status", "--case", str(case.path), *options])
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize(
    ("through", "following"),
    [("freeze", "check"), ("check", "replay"), ("replay", "bisect"), ("bisect", "gate"), ("gate", "report")],
)
def test_the_next_command_is_the_one_to_type(tmp_path: Path, through: str, following: str) -> None:
    case = build_case(tmp_path / "cases", through=through)
    answered = json.loads(ask(case, "--json"))
    assert answered["schema"] == "spike.status/1"
    assert answered["next"]["step"] == following
    assert answered["next"]["command"] == f"spike {following} --run /runs/owl-7b --case {case.path}"
    assert answered["next"]["missing"] == []
    assert answered["done"][-1] == through


def test_the_text_tells_findings_the_last_operator_and_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIKE_OPERATOR", "ada")
    case = build_case(tmp_path / "cases")
    text = ask(case)
    assert "incident  loss spike at step 222, recovered" in text
    assert "verdict   established: data/corrupt-batch" in text
    assert "gate      open: skip the batch" in text
    assert f"gate by ada on {socket.gethostname()}" in text
    assert f"next      spike report --run /runs/owl-7b --case {case.path}" in text


def test_looking_does_not_count_as_the_last_command(tmp_path: Path) -> None:
    case = build_case(tmp_path / "cases", through="check")
    case.record("verify", "intact", 0)
    assert json.loads(ask(case, "--json"))["last"]["command"] == "check"


def test_who_is_at_work_now_is_named(tmp_path: Path) -> None:
    case = build_case(tmp_path / "cases", through="check")
    with case.lock("replay"):
        answered = json.loads(ask(case, "--json"))
    assert answered["at_work"]["command"] == "replay"
    assert answered["at_work"]["pid"] == str(os.getpid())
    assert answered["interrupted"] is False
    assert json.loads(ask(case, "--json"))["at_work"] is None


def test_a_verdict_older_than_its_replay_is_due_again(tmp_path: Path) -> None:
    case = build_case(tmp_path / "cases")
    case.record("replay", "licence within log rounding", 0, ("licence.json",))
    answered = json.loads(ask(case, "--json"))
    assert answered["again"] == [{"step": "bisect", "newer": "replay"}, {"step": "gate", "newer": "replay"}]
    assert answered["next"]["step"] == "bisect"
    assert "next, again, replay is newer" in ask(case)


def test_a_run_without_a_case_is_told_to_begin_with_the_signals(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    found = CliRunner().invoke(app, ["status", "--run", str(run), "--json"])
    answered = json.loads(found.stdout)
    assert answered["case"] is None
    assert answered["next"]["command"] == f"spike detect --run {run}"


def test_a_case_that_was_handed_over_alone_is_enough(tmp_path: Path) -> None:
    case = build_case(tmp_path / "cases", through="check", run_directory=str(tmp_path / "gone"))
    run, opened = run_and_case(Path("/nowhere"), case.path)
    assert opened is not None
    assert run.directory == str(tmp_path / "gone")
    assert status(run, opened, shipped_pages()).command.endswith(f"--case {case.path}")


def test_a_path_with_a_blank_is_quoted_for_the_shell(tmp_path: Path) -> None:
    import shlex

    run = Run(str(tmp_path / "my run"))
    page = shipped_pages()[0]
    assert argv_of(page, run, None) == ["spike", "detect", "--run", str(tmp_path / "my run")]
    assert shlex.split(status(run, None, shipped_pages()).command) == argv_of(page, run, None)


def test_the_option_of_a_case_that_does_not_exist_yet_is_left_out() -> None:
    replay = next(p for p in shipped_pages() if p.id == "replay")
    assert argv_of(replay, Run("/r"), None) == ["spike", "replay", "--run", "/r"]
