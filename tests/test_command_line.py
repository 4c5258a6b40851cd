"""Does the surface of the command line grow only on purpose, and does every command say how it can end?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from spike.cli.app import app
from spike.cli.boundary import run_at_boundary
from spike.domain.errors import ExitCode

ROOT = Path(__file__).resolve().parents[1]
SURFACE = {
    "bisect": {"--run", "--case", "--step", "--explain", "--json"},
    "branch": {"--run", "--case", "--list", "--json"},
    "check": {"--run", "--case", "--json"},
    "demo": {"--json"},
    "detect": {"--run", "--step", "--fail-on", "--map", "--plot", "--all", "--json"},
    "watch": {"--run", "--until-healthy", "--on-incident", "--fail-on", "--every", "--stall", "--json"},
    "freeze": {"--run", "--step", "--key", "--hash", "--json"},
    "gate": {"--run", "--case", "--change", "--waive", "--json"},
    "init": {"--run", "--launch", "--force", "--json"},
    "replay": {"--run", "--case", "--step", "--json"},
    "report": {"--case", "--json"},
    "status": {"--case", "--json"},
    "verify": {"--case", "--public-key", "--json"},
    "walk": {"--yes", "--json"},
    "ci": {"--only", "--junit", "--json"},
}


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def options(command: Any) -> set[str]:
    return {name for p in command.params for name in p.opts if name.startswith("--")}


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_a_command_has_its_promised_options_and_a_help_for_each(name: str) -> None:
    command = commands()[name]
    assert options(command) >= SURFACE[name]
    assert command.help
    assert [p.name for p in command.params if p.param_type_name == "option" and not p.help] == []


def test_the_command_reference_is_what_the_commands_say() -> None:
    written = subprocess.run(
        [sys.executable, "docs/write_commands.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/COMMANDS.md").read_text() == written, "run make docs"


def test_every_command_stands_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in commands() if f"spike {name}" not in text] == []


def test_the_readme_prints_the_table_of_exit_codes() -> None:
    text = (ROOT / "README.md").read_text()
    for code in ExitCode:
        assert f"| {int(code)} |" in text


def spike(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spike.cli.app", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["replay", "bisect", "freeze", "gate", "branch"])
def test_without_a_description_each_command_says_what_is_missing_and_what_to_type(name: str, tmp_path: Path) -> None:
    words = (name, "skip-batch") if name == "branch" else (name,)
    done = spike(*words, cwd=tmp_path)
    assert done.returncode in (ExitCode.USAGE, ExitCode.UNREADABLE)
    assert "next:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_description_is_refused_with_every_line_at_once(tmp_path: Path) -> None:
    (tmp_path / "spike.yaml").write_text("launch: python train.py\nlimits:\n  repeats: many\nlauch: typo\n")
    done = spike("replay", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "spike.yaml:3:" in done.stderr
    assert "spike.yaml:4:" in done.stderr


def test_init_writes_one_file_and_proposes_what_it_accepts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('parser.add_argument("--resume")\n')
    rows = [json.dumps({"step": s, "loss": 3.0}) for s in range(1, 30)]
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    done = spike("init", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["launch"] == "python train.py --resume {checkpoint}"
    assert found["metrics"] == ["log.jsonl"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.jsonl", "spike.yaml", "train.py"]
    again = spike("init", cwd=tmp_path)
    assert again.returncode == ExitCode.USAGE
    assert "--force" in again.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--help",), 0), (("--version",), 0), (("detect", "--nonsense"), 2), (("nonsense",), 2), ((), 2)],
)
def test_help_and_mistyped_commands_end_as_the_table_says(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    done = spike(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", [KeyboardInterrupt, typer.Abort])
def test_an_interrupted_command_says_that_nothing_is_lost(
    kind: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise kind

    assert run_at_boundary(interrupted) == 130
    assert "nothing is lost" in capsys.readouterr().err


def test_a_bug_is_kept_in_a_file_and_has_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise RuntimeError("boom")

    assert run_at_boundary(broken) == ExitCode.BUG
    said = capsys.readouterr().err
    (file,) = [Path(word.rstrip(";")) for word in said.split() if "spike-bug-" in word]
    assert "boom" in file.read_text()
    file.unlink()
