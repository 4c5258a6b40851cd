from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from spike.actions.ci import fixtures_root, line, run_fixtures
from spike.domain.errors import SpikeError

BUILD = """\
import json, math, pathlib, sys
name, directory = sys.argv[1], pathlib.Path(sys.argv[2])
if name == "no-build":
    sys.exit("the corpus is missing")
(directory / "logs").mkdir(parents=True)
with (directory / "logs/log.jsonl").open("w") as log:
    for step in range(1, 301):
        wobble = 0.01 * math.sin(7.3 * step) + 0.008 * math.sin(3.1 * step * step)
        loss = 2.5 + 3 * math.exp(-step / 40) + wobble
        norm = 0.8 * (1 + 5 * wobble)
        if name != "quiet" and step == 221:
            loss, norm = loss + 3, norm * 9
        log.write(json.dumps({"step": step, "loss": loss, "grad_norm": norm, "lr": 0.001}) + "\\n")
(directory / "spike.yaml").write_text("metrics: [logs/log.jsonl]\\n")
"""
CLEAN = "schema: spike.truth/1\nincidents: none\nwhy: nothing was planted\n"
PLANTED = """\
schema: spike.truth/1
status: established
class: data
cause: data/corrupt-batch
onset: 221
step: 221
why: a spike in a log that no command can bring back
"""
UNTELLABLE = "schema: spike.truth/1\nonset: 221\nwhy: there is no command to replay\n"


@pytest.fixture
def fixtures(tmp_path: Path) -> Path:
    """Fixtures whose runs are logs only: built in a moment, and detected and judged by the real commands."""
    root = tmp_path / "fixtures"
    for name, truth in {
        "quiet": CLEAN,
        "loud": CLEAN,
        "no-build": PLANTED,
        "absent-stack": PLANTED + "needs: [a_package_that_nobody_has]\n",
    }.items():
        (root / "incidents" / name).mkdir(parents=True)
        (root / "incidents" / name / "truth.yaml").write_text(truth)
    (root / "build.py").write_text(BUILD)
    return root


def test_each_fixture_is_judged_for_itself(fixtures: Path) -> None:
    said: list[str] = []
    results = {r.truth.name: r for r in run_fixtures(fixtures, jobs=2, talk=said.append)}
    assert results["quiet"].is_passed
    assert not results["loud"].is_passed
    assert results["loud"].wrong == ("a healthy run has incidents at steps 221",)
    assert "the corpus is missing" in results["no-build"].failed
    assert not results["no-build"].is_passed
    assert "a_package_that_nobody_has" in results["absent-stack"].skipped
    assert not results["absent-stack"].is_passed
    assert {line(r) for r in results.values()} <= set(said)


def test_a_run_without_a_command_gets_no_verdict_that_passes_for_one(tmp_path: Path) -> None:
    root = tmp_path / "fixtures"
    for name, truth in {"logs-only": PLANTED, "untellable": UNTELLABLE}.items():
        (root / "incidents" / name).mkdir(parents=True)
        (root / "incidents" / name / "truth.yaml").write_text(truth)
    (root / "build.py").write_text(BUILD)
    results = run_fixtures(root)
    assert [r.is_passed for r in results if r.truth.name == "logs-only"] == [False]
    assert all(r.found is None or r.found.cause == "" for r in results)


def test_what_is_kept_holds_the_answers_and_never_the_truth(fixtures: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run_fixtures(fixtures, only=["loud"], keep=kept)
    names = {p.relative_to(kept / "loud").as_posix() for p in (kept / "loud").rglob("*") if p.is_file()}
    assert {"build.log", "detect.json", "run/spike.yaml", "run/logs/log.jsonl"} <= names
    assert not [n for n in names if "truth" in n]
    with pytest.raises(SpikeError, match="exists, from an earlier run"):
        run_fixtures(fixtures, only=["loud"], keep=kept)


def test_the_command_prints_a_table_writes_junit_and_exits_with_the_answer(fixtures: Path, tmp_path: Path) -> None:
    def spike(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "spike.cli.app", "ci", str(fixtures), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    junit = tmp_path / "junit.xml"
    mixed = spike("--only", "quiet", "--only", "loud", "--only", "absent-stack", "--junit", str(junit))
    assert mixed.returncode == 1
    assert "1 right, 1 wrong or broken, 1 skipped" in mixed.stdout
    assert "loud: a healthy run has incidents at steps 221" in mixed.stdout
    suite = ET.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")

    right = spike("--only", "quiet", "--json")
    payload = json.loads(right.stdout)
    assert right.returncode == 0
    assert (payload["schema"], payload["passed"], payload["failed"]) == ("spike.ci/1", 1, 0)
    assert payload["fixtures"][0]["truth"]["name"] == "quiet"

    unknown = spike("--only", "quite")
    assert unknown.returncode == 3
    assert "no fixture quite" in unknown.stderr


def test_the_fixtures_or_their_incidents_may_be_named() -> None:
    shipped = Path(__file__).resolve().parents[2] / "fixtures"
    assert fixtures_root(shipped) == shipped
    assert fixtures_root(shipped / "incidents") == shipped
