"""What does `spike detect` say of real public runs, of a run directory, of many runs, and of nothing readable?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spike.actions.detect import detect_paths, detect_run, incidents_payload, primary_incident, runs_payload
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.incident import Kind, Severity
from spike.domain.run import Run

REAL = Path(__file__).resolve().parents[3] / "shared" / "real-runs"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the public run logs are not beside this checkout")
KEYS = {"kind", "severity", "onset_step", "peak_step", "first_signal", "lead_steps", "ratio", "recovered", "rank"}


def write_run(directory: Path, *, spike_at: int | None = 221, seed: int = 0, rows: int = 300) -> Path:
    rng = np.random.default_rng(seed)
    loss = (2.0 + 4.0 * (1.0 + np.arange(rows) / 20.0) ** -0.5) * np.exp(0.02 * rng.standard_normal(rows))
    norm = np.exp(0.15 * rng.standard_normal(rows))
    if spike_at is not None:
        loss[spike_at - 1] *= 1.6
        norm[spike_at - 1] *= 6.0
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "metrics.jsonl"
    path.write_text(
        "".join(
            json.dumps({"step": s, "loss": a, "grad_norm": b}) + "\n"
            for s, a, b in zip(range(1, rows + 1), loss.tolist(), norm.tolist(), strict=True)
        )
    )
    return path


def spike(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spike.cli.app", "detect", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def onsets(path: Path) -> list[int]:
    return [i.onset_step for one in detect_paths([path]) for i in one.detection.incidents]


@real
def test_bloom_176b_is_led_by_its_gradient_norm_from_the_first_departure_on() -> None:
    (one,) = detect_paths([REAL / "megatron-deepspeed-bloom176b"])
    (incident,) = one.detection.incidents
    assert abs(incident.onset_step - 31215) <= 1
    assert incident.first_signal == "grad_norm"
    assert incident.peak_step == 31219
    assert incident.lead_steps >= 3
    assert incident.recovered
    assert {"loss", "grad_norm"} <= {s.signal for s in incident.signatures}


@real
def test_the_13b_spike_is_found_although_its_gradient_norm_was_never_computed() -> None:
    (one,) = detect_paths([REAL / "megatron-deepspeed-13b"])
    (incident,) = one.detection.incidents
    assert (incident.onset_step, incident.first_signal) == (29050, "loss")
    assert "stale-column" in {n.pattern for n in one.detection.notices}


@real
def test_the_104b_jump_is_dated_by_the_loss_and_not_by_its_stale_norm() -> None:
    (one,) = detect_paths([REAL / "megatron-deepspeed-104b"])
    (incident,) = one.detection.incidents
    assert incident.onset_step == 17062
    assert not incident.recovered
    assert {"loss", "skipped"} <= {s.signal for s in incident.signatures}
    assert "grad_norm" not in {s.signal for s in incident.signatures}


@real
def test_one_step_spikes_of_modded_nanogpt_are_transient_incidents_and_few() -> None:
    found = {one.source: one.detection for one in detect_paths([REAL / "modded-nanogpt"])}
    assert len(found) == 2
    for source, detection in found.items():
        expected = {919, 947, 1760, 3092, 3194} if "muon" in source else {201, 524, 889, 1830}
        assert expected <= {i.onset_step for i in detection.incidents}
        assert {i.severity for i in detection.incidents} == {Severity.TRANSIENT}
        assert len(detection.incidents) <= 15


@real
@pytest.mark.parametrize("name", ["hf-qlora-periodic", "deepspeed-fp16-overflow", "wandb-offline"])
def test_healthy_public_runs_raise_no_incident(name: str) -> None:
    (one,) = detect_paths([REAL / name])
    assert one.detection.incidents == ()


@real
def test_a_directory_of_many_runs_names_the_run_of_every_incident() -> None:
    payload = runs_payload(detect_paths([REAL]))
    assert payload["schema"] == "spike.incidents/1"
    by_source: dict[str, set[int]] = {}
    for incident in payload["incidents"]:
        assert set(incident) >= KEYS
        by_source.setdefault(incident["source"].split("/")[0], set()).add(incident["onset_step"])
    assert set(by_source) == {
        "megatron-deepspeed-bloom176b",
        "megatron-deepspeed-13b",
        "megatron-deepspeed-104b",
        "modded-nanogpt",
    }
    json.dumps(payload, allow_nan=False)


def test_a_described_run_is_read_where_its_description_says(tmp_path: Path) -> None:
    write_run(tmp_path / "logs")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    signals, detection = detect_run(Run(directory=str(tmp_path), metrics=("logs",)))
    assert [s.path for s in signals.sources] == ["logs/metrics.jsonl"]
    (incident,) = detection.incidents
    assert (incident.kind, incident.onset_step) == (Kind.SPIKE, 221)
    payload = incidents_payload(signals, detection)
    assert {k: payload["incidents"][0][k] for k in ("onset_step", "recovered", "rank")} == {
        "onset_step": 221,
        "recovered": True,
        "rank": None,
    }


def test_a_description_whose_metrics_do_not_exist_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match="none of them exists"):
        detect_run(Run(directory=str(tmp_path), metrics=("logs",)))


def test_the_worst_incident_is_the_one_to_investigate_and_a_step_chooses_another(tmp_path: Path) -> None:
    path = write_run(tmp_path, spike_at=120, rows=400)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[300:]:
        row["loss"] = float("nan")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (one,) = detect_paths([path])
    assert [i.onset_step for i in one.detection.incidents] == [120, 301]
    worst, near = primary_incident(one.detection), primary_incident(one.detection, 125)
    assert worst is not None
    assert near is not None
    assert (worst.onset_step, near.onset_step) == (301, 120)
    assert primary_incident(one.detection, 100_000) is None


def test_parts_of_one_run_are_one_and_runs_side_by_side_are_several(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", spike_at=None).read_text().splitlines(keepends=True)
    for version, lines in enumerate((whole[:200], whole[150:])):
        path = tmp_path / "one" / "lightning_logs" / f"version_{version}" / "metrics.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(lines))
    (one,) = detect_paths([tmp_path / "one"])
    assert [(r.from_step, r.to_step) for r in one.signals.rewinds] == [(200, 151)]
    write_run(tmp_path / "two" / "baseline", spike_at=None)
    write_run(tmp_path / "two" / "candidate")
    found = detect_paths([tmp_path / "two"])
    assert {one.source: len(one.detection.incidents) for one in found} == {"baseline": 0, "candidate": 1}


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(SpikeError, match="there is no"):
        detect_paths([tmp_path / "nowhere"])


def test_the_command_tells_a_person_what_when_and_what_next(tmp_path: Path) -> None:
    write_run(tmp_path)
    told = spike(cwd=tmp_path)
    assert told.returncode == 1
    assert "loss spike at step 221" in told.stdout
    assert "onset 221" in told.stdout
    assert "came back to its trend" in told.stdout
    assert "spike freeze" in told.stdout
    assert told.stderr == ""


def test_the_command_answers_one_json_object(tmp_path: Path) -> None:
    write_run(tmp_path)
    told = spike("metrics.jsonl", "--json", cwd=tmp_path)
    payload: dict[str, Any] = json.loads(told.stdout)
    assert told.returncode == 1
    assert payload["schema"] == "spike.incidents/1"
    assert [i["onset_step"] for i in payload["incidents"]] == [221]
    assert payload["sources"][0]["format"] == "jsonl"


@pytest.mark.parametrize(
    ("fail_on", "code"), [("transient", 1), ("lasting", 0), ("fatal", 0), ("never", 0), ("sometimes", 2)]
)
def test_the_mildest_severity_that_fails_is_chosen(fail_on: str, code: int, tmp_path: Path) -> None:
    write_run(tmp_path)
    assert spike("--fail-on", fail_on, cwd=tmp_path).returncode == code


def test_a_healthy_run_passes(tmp_path: Path) -> None:
    write_run(tmp_path, spike_at=None)
    told = spike(cwd=tmp_path)
    assert (told.returncode, "no incident" in told.stdout) == (0, True)


def test_nothing_readable_is_exit_three_and_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("all went well\n")
    told = spike("notes.log", cwd=tmp_path)
    assert told.returncode == 3
    assert "all went well" in told.stderr
    assert "tensorboard" in told.stderr
    assert told.stdout == ""


def test_a_record_is_drawn_as_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    write_run(tmp_path)
    spike("--plot", "signals.svg", cwd=tmp_path)
    assert (tmp_path / "signals.svg").read_text().startswith("<svg")


def test_hundreds_of_incidents_stay_a_screenful_and_all_of_them_can_be_had(tmp_path: Path) -> None:
    path = write_run(tmp_path, spike_at=None, rows=6000)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[200::50]:
        row["loss"] *= 2.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = spike("metrics.jsonl", cwd=tmp_path).stdout.splitlines()
    number = int(next(line for line in told if " incidents between steps " in line).split()[0])
    assert number >= 100
    assert len(told) <= 60
    assert f"{number - 8} more: --all lists them, --json has them" in told
    everything = spike("metrics.jsonl", "--all", cwd=tmp_path).stdout.splitlines()
    assert sum(line.split(".")[0].isdigit() and " at step " in line for line in everything) == number


def test_the_ranks_of_a_directory_are_compared_and_told_by_host(tmp_path: Path) -> None:
    lines = write_run(tmp_path / "one", spike_at=None, rows=60).read_text().splitlines()
    (tmp_path / "logs").mkdir()
    for rank in range(6):
        rows = [json.loads(line) | {"lr": 3e-4, "host": f"node{rank // 2}"} for line in lines]
        for row in rows[40:] if rank in (2, 3) else ():
            row["lr"] = 2e-4
        (tmp_path / "logs" / f"rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = spike("logs", cwd=tmp_path).stdout
    assert "ranks: 6 ranks on 3 hosts, 60 steps: part at step 41, in the learning rate" in told
    assert "0.0002: 2 ranks, ranks 2-3 on all of node1" in told
    (ranks,) = json.loads(spike("logs", "--json", cwd=tmp_path).stdout)["ranks"]
    assert (ranks["agree"], ranks["partings"][0]["minority"]) == (False, "2-3")
