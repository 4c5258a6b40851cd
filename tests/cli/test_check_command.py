"""Does `spike check` answer on stdout, with the right exit code, and safely for a terminal?"""

import json
import os
import subprocess
import sys

import pytest
import torch
from tests.actions.checked_run import CheckedRun
from typer.testing import CliRunner

from spike.cli.app import app

DESCRIPTION = "checkpoints: ckpt/step-{step}.pt\nmetrics: [log.jsonl]\n"


@pytest.fixture
def checked(tmp_path):
    run = CheckedRun(tmp_path / "run")
    run.write("spike.yaml", DESCRIPTION)
    return run


def spike(*words):
    return CliRunner().invoke(app, ["check", *map(str, words)])


def flipped(checked):
    state = checked.load(120)
    state["model"]["0.weight"].view(-1).view(torch.int32)[37] ^= 1 << 29
    checked.save(120, state)


def test_a_sound_run_exits_zero_with_a_question_and_an_answer_in_every_line(checked):
    found = spike("--run", checked.directory)
    assert found.exit_code == 0, found.output
    assert "is the last good checkpoint whole" in found.stdout
    assert "proves nothing about silent corruption" in found.stdout
    assert "nothing here is wrong by itself" in found.stdout
    assert found.stdout.rstrip().splitlines()[-1].startswith("next ")
    assert "no case" in found.stderr


def test_something_wrong_exits_one_and_is_marked(checked):
    flipped(checked)
    found = spike("--run", checked.directory)
    assert found.exit_code == 1
    (line,) = [row for row in found.stdout.splitlines() if row.startswith("WRONG")]
    assert "element 37 of 0.weight" in line


@pytest.mark.parametrize("is_wrong", [True, False])
def test_json_is_one_object_with_its_schema_and_the_same_exit_code(checked, is_wrong):
    if is_wrong:
        flipped(checked)
    found = spike("--run", checked.directory, "--json")
    payload = json.loads(found.stdout)
    assert payload["schema"] == "spike.checks/1"
    assert payload["exit_code"] == found.exit_code == int(is_wrong)
    assert {f["name"]: f["value"] for f in payload["facts"]}["checkpoint.bit-flip"] == ("yes" if is_wrong else "no")


def test_a_bare_directory_of_checkpoints_is_checked_without_a_description(tmp_path):
    torch.save({"model": {"w": torch.ones(3)}, "step": 5}, tmp_path / "a.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:300])
    found = spike("--run", tmp_path)
    assert found.exit_code == 0
    rows = [line.split() for line in found.stdout.splitlines()]
    assert any(row[:5] == ["5", "last", "good", "torch-zip", "complete"] for row in rows)
    assert any("torn" in row and "torn.pt" in row for row in rows)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "torn.pt"], "nothing is written"


def test_names_from_a_file_cannot_command_the_terminal(checked):
    for step in (40, 80):
        state = checked.load(step)
        state["model"]["evil\x1b[2J\nname"] = torch.full((30,), float("nan") if step == 80 else 1.0)
        checked.save(step, state)
    found = spike("--run", checked.directory)
    assert found.exit_code == 1
    assert "\x1b" not in found.stdout
    assert "evil\\x1b[2J" in found.stdout


def test_a_case_is_taken_where_there_is_one(checked):
    CliRunner().invoke(app, ["freeze", "--run", str(checked.directory)])
    found = spike("--run", checked.directory)
    assert found.exit_code == 0, found.output
    assert "spike replay --case" in found.stdout
    (case,) = [p for p in (checked.directory.parent / "run.spike").iterdir() if p.is_dir()]
    assert (case / "checks.json").is_file()


def test_a_named_case_is_enough_and_a_hardware_log_added_later_is_read(checked, tmp_path, monkeypatch):
    CliRunner().invoke(app, ["freeze", "--run", str(checked.directory)])
    (case,) = [p for p in (checked.directory.parent / "run.spike").iterdir() if p.is_dir()]
    monkeypatch.chdir(tmp_path)
    assert spike("--case", case).exit_code == 0
    checked.write("dmesg.txt", "[  9.000000] NVRM: Xid (PCI:0000:65:00): 94, pid=1, Contained\n")
    checked.write("spike.yaml", DESCRIPTION + "hardware: dmesg.txt\n")
    found = spike("--case", case)
    assert found.exit_code == 1
    assert "Xid 94" in found.stdout


def test_a_directory_that_is_not_there_is_a_usage_error(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "spike.cli.app", "check", "--run", str(tmp_path / "nothing")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert found.returncode == 2
    assert "nothing" in found.stderr
