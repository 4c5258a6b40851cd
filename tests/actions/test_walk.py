"""Does a walk explain, ask, run, stop where it must, and go on in other hands?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from spike.actions.status import shipped_pages
from spike.actions.walk import Walk, estimate_words, walk
from spike.casefile.case import Case, open_case
from spike.casefile.codec import to_payload
from spike.domain.errors import ExitCode
from spike.domain.verdict import CauseClass, Status, Verdict
from tests.report import synthetic_case
from tests.report.synthetic_case import build_case


@dataclass
class Operator:
    """Stands for person and machine: answers questions, and leaves what a step's command would leave."""

    case: Case
    codes: dict[str, int] = field(default_factory=dict)
    says_no_to: str = ""
    verdict: Verdict = field(default_factory=synthetic_case.verdict)
    ran: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def ask(self, question: str) -> bool:
        return not self.says_no_to or self.says_no_to not in question

    def execute(self, arguments: Sequence[str]) -> int:
        step, code = arguments[0], self.codes.get(arguments[0], 0)
        self.ran.append(step)
        assert list(arguments[1:]) == ["--run", "/runs/owl-7b", "--case", str(self.case.path)]
        if code in (0, 1):
            self._leave(step)
        return code

    def _leave(self, step: str) -> None:
        match step:
            case "check":
                self.case.write_json("checks.json", to_payload(synthetic_case.checks(), schema="spike.checks/1"))
            case "replay":
                licence = {"licence": to_payload(synthetic_case.LICENCE), "noise": to_payload(synthetic_case.NOISE)}
                self.case.write_json("licence.json", {"schema": "spike.licence/1", **licence})
            case "bisect":
                self.case.write_json("verdict.json", to_payload(self.verdict, schema="spike.verdict/1"))
            case "gate":
                gate = replace(synthetic_case.gate(), is_open=self.codes.get("gate", 0) == 0)
                self.case.write_json("gate.json", to_payload(gate, schema="spike.gate/1"))
            case "report":
                self.case.write_text("postmortem.md", "x")
                self.case.write_text("postmortem.html", "x")
        self.case.record(step, "done", 0)

    def walk(self) -> int:
        at = Walk(
            run=self.case.facts.run,
            given=self.case.path,
            pages=shipped_pages(),
            ask=self.ask,
            talk=self.heard.append,
            execute=self.execute,
        )
        return int(walk(at))

    @property
    def said(self) -> str:
        return "\n".join(self.heard)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return build_case(tmp_path / "cases", through="freeze")


def test_every_step_that_is_due_is_taken_in_order(case: Case) -> None:
    operator = Operator(case)
    assert operator.walk() == ExitCode.PASSED
    assert operator.ran == ["check", "replay", "bisect", "gate", "report"]
    assert "Roll back with: torchrun" in operator.said
    assert f"Postmortem: {case.path / 'postmortem.html'}" in operator.said


def test_a_step_is_explained_before_it_runs_and_after(case: Case) -> None:
    operator = Operator(case, says_no_to="replay")
    operator.walk()
    assert "The cheapest experiments are the ones that need no hardware." in operator.said
    assert "undo   Nothing to undo" in operator.said
    assert "check: exit 0. Nothing found." in operator.said
    assert f"runs   spike replay --run /runs/owl-7b --case {case.path}" in operator.said
    assert "about 1 min 11 s, 1.27 GPU‑h on 64 devices" in operator.said


def test_the_estimate_counts_only_what_the_record_tells(case: Case) -> None:
    assert estimate_words(case).startswith("One trial trains about 23 steps from step 200: about 1 min 11 s")
    case.facts = replace(case.facts, last_good=None)
    assert estimate_words(case) == ""


def test_no_stops_the_walk_and_says_how_to_go_on(case: Case) -> None:
    operator = Operator(case, says_no_to="replay")
    assert operator.walk() == ExitCode.INCONCLUSIVE
    assert operator.ran == ["check"]
    assert f"Stopped before replay. To go on: spike walk --case {case.path}" in operator.said


def test_somebody_else_goes_on_where_the_first_one_stopped(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIKE_OPERATOR", "ada")
    Operator(case, says_no_to="bisect").walk()
    monkeypatch.setenv("SPIKE_OPERATOR", "grace")
    second = Operator(open_case(case.path))
    assert second.walk() == ExitCode.PASSED
    assert second.ran == ["bisect", "gate", "report"]
    assert "Last: replay by ada on" in second.said
    assert "You are grace." in second.said
    assert [(e.operator, e.command) for e in case.journal()][-5:] == [
        ("ada", "check"),
        ("ada", "replay"),
        ("grace", "bisect"),
        ("grace", "gate"),
        ("grace", "report"),
    ]


@pytest.mark.parametrize("code", [2, 3, 70, 137])
def test_a_step_that_fails_ends_the_walk_with_its_code_and_what_to_do(case: Case, code: int) -> None:
    operator = Operator(case, {"replay": code})
    assert operator.walk() == code
    assert operator.ran == ["check", "replay"]
    assert "*Licence refused.*" in operator.said
    assert f"Or write down what is known so far: spike report --case {case.path}" in operator.said


def test_an_answer_of_no_is_no_failure(case: Case) -> None:
    operator = Operator(case, {"check": 1, "gate": 1})
    assert operator.walk() == ExitCode.ANSWER_NO
    assert operator.ran == ["check", "replay", "bisect", "gate", "report"]


def test_without_a_named_cause_the_gate_is_left_out_and_the_report_is_written(case: Case) -> None:
    undetermined = Verdict(Status.UNDETERMINED, CauseClass.NONE, "", None, "the trials leave two hypotheses")
    operator = Operator(case, verdict=undetermined)
    assert operator.walk() == ExitCode.INCONCLUSIVE
    assert operator.ran == ["check", "replay", "bisect", "report"]
    assert "gate is left out: the verdict names no cause" in operator.said


def test_a_step_that_answers_without_its_artefact_is_not_repeated_for_ever(case: Case) -> None:
    operator = Operator(case, {"replay": 4, "bisect": 4})
    assert operator.walk() == ExitCode.INCONCLUSIVE
    assert operator.ran == ["check", "replay", "bisect", "report"]
    assert "gate is left out: it needs verdict.json" in operator.said


def test_a_finished_case_is_left_alone(case: Case) -> None:
    Operator(case).walk()
    again = Operator(open_case(case.path))
    assert again.walk() == ExitCode.PASSED
    assert again.ran == []


def spike(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spike.cli.app", *arguments]
    full = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=full, stdin=subprocess.DEVNULL)


def write_logs(run: Path, num_steps: int) -> None:
    found = synthetic_case.signals(260)
    (run / "logs").mkdir(parents=True)
    with (run / "logs" / "metrics.jsonl").open("w") as file:
        for row in range(num_steps):
            values = {s.name: float(s.values[row]) for s in found.series}
            file.write(json.dumps({"step": row + 1, **values}) + "\n")


@pytest.mark.process
def test_logs_alone_can_be_walked_from_detection_to_a_postmortem(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_logs(run, 260)
    assert spike("init", "--run", str(run)).returncode == 0
    walked = spike("walk", "--run", str(run), "--yes", "--json", SPIKE_OPERATOR="ada")
    assert walked.returncode == ExitCode.INCONCLUSIVE, walked.stderr
    answered = json.loads(walked.stdout)
    steps = {s["step"]: s["exit"] for s in answered["steps"]}
    assert list(steps) == ["detect", "freeze", "check", "replay", "bisect", "report"]
    assert steps["detect"] == ExitCode.ANSWER_NO
    assert steps["freeze"] == steps["report"] == ExitCode.PASSED
    assert steps["replay"] == ExitCode.INCONCLUSIVE
    assert [left["step"] for left in answered["left_out"]] == ["gate"]
    text = (Path(answered["case"]) / "postmortem.md").read_text()
    assert "Loss spike at step 222" in text
    assert "Not taken: replay, bisect, gate." in text
    assert spike("verify", "--case", answered["case"]).returncode == ExitCode.PASSED


@pytest.mark.process
def test_a_run_without_an_incident_ends_the_walk_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_logs(run, 200)
    assert spike("init", "--run", str(run)).returncode == 0
    walked = spike("walk", "--run", str(run), "--yes", "--json")
    assert walked.returncode == ExitCode.PASSED, walked.stderr
    assert json.loads(walked.stdout)["steps"] == [{"step": "detect", "exit": 0}]
    assert not (tmp_path / "run.spike").exists()


@pytest.mark.process
def test_a_walk_that_cannot_ask_says_so_instead_of_running(tmp_path: Path) -> None:
    asked = spike("walk", "--run", str(tmp_path))
    assert asked.returncode == ExitCode.USAGE
    assert "--yes" in asked.stderr
