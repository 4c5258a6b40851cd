"""Do `spike freeze` and `spike verify` answer with the right words, JSON and exit codes?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spike.cli.app import app
from spike.cli.boundary import run_at_boundary
from tests.casefile.small_runs import make_run
from tests.casefile.test_signing import write_keys


@pytest.fixture(autouse=True)
def _no_cases_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPIKE_CASES", raising=False)
    monkeypatch.delenv("SPIKE_CASE", raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose log has one clear spike; the gradient norm leads by a step."""
    directory = tmp_path / "run"
    make_run(directory)
    rng = np.random.default_rng(3)
    rows = [
        {
            "step": step,
            "loss": float(3 * step**-0.1 + rng.normal() * 0.01 + (3 if step in (222, 223) else 0)),
            "grad_norm": float(1 + rng.normal() * 0.05 + (20 if step in (221, 222) else 0)),
            "lr": 3e-4,
        }
        for step in range(1, 301)
    ]
    (directory / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


class Shell:
    """Types commands and reads what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = run_at_boundary(lambda: app(list(words)))
        out, err = self.capsys.readouterr()
        return code, out, err

    def json(self, *words: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self(*words, "--json")
        payload: dict[str, Any] = json.loads(out)
        return code, payload


@pytest.fixture
def spike(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_freeze_says_where_the_case_is_what_is_pinned_how_and_what_to_type_next(run: Path, spike: Shell) -> None:
    code, out, err = spike("freeze", "--run", str(run))
    assert code == 0
    case = Path(f"{run}.spike") / next(Path(f"{run}.spike").iterdir()).name
    assert f"case      {case}" in out
    assert f"last good step 200, copy of {run}/out/step-200" in out or "reflink of" in out
    assert f"spike check --case {case}" in out
    assert "tree      " in out
    assert "opened" in err


def test_freeze_in_json_is_one_object_and_verify_agrees_about_the_tree(run: Path, spike: Shell) -> None:
    code, frozen = spike.json("freeze", "--run", str(run), "--hash", "blake3")
    assert (code, frozen["schema"], frozen["algorithm"]) == (0, "spike.freeze/1", "blake3")
    assert frozen["onset_step"] == 221
    assert [frozen["last_good"]["step"], *(p["step"] for p in frozen["earlier"])] == [200, 150, 100]
    code, verified = spike.json("verify", "--run", str(run))
    assert (code, verified["integrity"]) == (0, "intact")
    assert verified["tree_digest"] == frozen["tree_digest"]
    assert verified["case"] == frozen["case"]


def test_frozen_again_it_is_the_same_case_and_new_is_another(run: Path, spike: Shell) -> None:
    first = spike.json("freeze", "--run", str(run))[1]["case"]
    assert spike.json("freeze", "--run", str(run))[1]["case"] == first
    assert spike.json("freeze", "--run", str(run), "--new")[1]["case"] != first


def test_a_quiet_log_is_nothing_to_freeze_for_until_the_operator_names_a_step(run: Path, spike: Shell) -> None:
    rng = np.random.default_rng(5)
    rows = [{"step": s, "loss": float(3 * s**-0.1 + rng.normal() * 0.01)} for s in range(1, 301)]
    (run / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = spike("freeze", "--run", str(run))
    assert code == 1
    assert "no incident stands out" in err
    assert not Path(f"{run}.spike").exists()
    code, payload = spike.json("freeze", "--run", str(run), "--step", "180")
    assert code == 0
    assert (payload["onset_step"], payload["incident"]) == (180, None)
    assert payload["last_good"]["step"] == 150


def test_without_a_usable_checkpoint_the_answer_is_still_yes_with_a_loud_warning(run: Path, spike: Shell) -> None:
    for step in (100, 150, 200):
        (run / "out" / f"step-{step}" / "model.safetensors").write_bytes(b"torn")
    code, out, _ = spike("freeze", "--run", str(run))
    assert code == 0
    assert "WARNING   NO USABLE CHECKPOINT BEFORE THE ONSET" in out
    assert out.count("not used  ") == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--hash", "md5"), 2, "--hash md5 is not known"),
        (("--key", "/no/such/key.pem"), 2, "there is no key"),
        (("--release",), 2, "has no case yet"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_next_command(
    run: Path, spike: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    found, _, err = spike("freeze", "--run", str(run), *words)
    assert found == code
    assert said in err
    assert "next: " in err


def test_a_directory_without_a_description_is_pointed_to_init(tmp_path: Path, spike: Shell) -> None:
    code, _, err = spike("freeze", "--run", str(tmp_path))
    assert code == 2
    assert "spike init" in err


def test_evidence_that_was_changed_is_no_for_verify_and_for_freeze(run: Path, spike: Shell) -> None:
    case = Path(spike.json("freeze", "--run", str(run))[1]["case"])
    victim = case / "evidence" / "run" / "cfg.yaml"
    victim.chmod(0o644)
    victim.write_text("lr: 1\n")
    code, out, _ = spike("verify", "--case", str(case))
    assert code == 1
    assert out.startswith("ALTERED")
    assert "CONTENT     run/cfg.yaml is shorter" in out
    code, _, err = spike("freeze", "--run", str(run))
    assert code == 1
    assert "spike verify" in err


def test_an_interrupted_case_is_inconclusive(run: Path, spike: Shell) -> None:
    case = Path(spike.json("freeze", "--run", str(run))[1]["case"])
    with (case / "journal.jsonl").open("ab") as file:
        file.write(b"{")
    code, out, _ = spike("verify", "--case", str(case))
    assert code == 4
    assert "type the interrupted command again" in out
    assert spike("freeze", "--run", str(run))[0] == 0
    assert spike("verify", "--case", str(case))[0] == 0


def test_what_is_no_case_is_unreadable(tmp_path: Path, spike: Shell) -> None:
    code, _, err = spike("verify", "--case", str(tmp_path))
    assert code == 3
    assert "is not a case" in err


def test_a_signature_is_made_and_checked_by_the_commands(run: Path, tmp_path: Path, spike: Shell) -> None:
    private, public = write_keys(tmp_path)
    _, other = write_keys(tmp_path, "other")
    assert spike.json("freeze", "--run", str(run), "--key", str(private))[1]["signed"] is True
    assert spike("verify", "--run", str(run), "--public-key", str(public))[0] == 0
    code, out, _ = spike("verify", "--run", str(run), "--public-key", str(other))
    assert code == 1
    assert "not made with the key" in out


def test_cases_can_be_kept_elsewhere(run: Path, tmp_path: Path, spike: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Path(spike.json("freeze", "--run", str(run), "--case", str(tmp_path / "shelf"))[1]["case"])
    assert case.parent == tmp_path / "shelf"
    assert spike.json("freeze", "--run", str(run), "--case", str(case))[1]["case"] == str(case)
    monkeypatch.setenv("SPIKE_CASES", str(tmp_path / "other"))
    assert Path(spike.json("freeze", "--run", str(run))[1]["case"]).parent == tmp_path / "other"


def test_pins_are_let_go_by_the_command(run: Path, spike: Shell) -> None:
    spike("freeze", "--run", str(run))
    code, payload = spike.json("freeze", "--run", str(run), "--release")
    assert (code, payload["files"]) == (0, 4)
    assert spike("verify", "--run", str(run))[0] == 0


def test_letting_go_names_each_checkpoint_and_says_when_there_is_none(run: Path, spike: Shell) -> None:
    spike("freeze", "--run", str(run))
    code, out, _ = spike("freeze", "--run", str(run), "--release")
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines() if line.startswith("let go")] == [
        f"let go    step {step}" for step in (200, 150, 100, 250)
    ]
    assert "4 pinned files of" in out
    assert "nothing was pinned" in spike("freeze", "--run", str(run), "--release")[1]


def test_shards_are_done_one_by_one_and_merged_by_the_commands(run: Path, spike: Shell) -> None:
    code, out, err = spike("freeze", "--run", str(run), "--shard", "2/2")
    assert (code, "missing   1 of 2 shards: 1/2" in out, "opened" in err) == (0, True, True)
    code, _, err = spike("freeze", "--run", str(run), "--merge")
    assert (code, "1 of 2 shards" in err, "missing: 1/2" in err) == (2, True, True)
    code, payload = spike.json("freeze", "--run", str(run), "--shard", "1/2")
    assert (code, payload["schema"], payload["missing"]) == (0, "spike.freeze-shard/1", [])
    assert payload["next"].endswith("--merge")
    code, merged = spike.json("freeze", "--run", str(run), "--case", payload["case"], "--merge")
    assert (code, merged["case"], merged["last_good"]["step"]) == (0, payload["case"], 200)
    assert spike("verify", "--case", payload["case"])[0] == 0
    for words in (("--shard", "3/2"), ("--shard", "1/2", "--new"), ("--shard", "1/2", "--merge")):
        assert spike("freeze", "--run", str(run), *words)[0] == 2
