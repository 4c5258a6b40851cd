"""Does each check find its fault in a real run, at its place, and nothing in a sound one?"""

import json
import os
from pathlib import Path

import pytest
import torch

from spike.actions.checks.check import WRONG, check_case, check_run, exit_code, wrong_facts
from spike.actions.checks.check_checkpoints import compare
from spike.actions.checks.check_scene import scene_of_run
from spike.actions.checks.compare_checkpoints import find_flips
from spike.actions.detect import detect_run, primary_incident
from spike.actions.evidence.freeze import freeze
from spike.actions.evidence.verify import verify
from spike.casefile.codec import from_payload
from spike.domain.errors import ExitCode
from spike.domain.facts import VOCABULARY, CheckReport
from spike.domain.run import Run
from spike.domain.verification import Integrity
from tests.actions.checked_run import BASE, LAST, ONSET, CheckedRun
from tests.domain.test_ranks import replicas

SENTENCE = "proves nothing about silent corruption"


@pytest.fixture
def checked(tmp_path):
    return CheckedRun(tmp_path / "run")


def described(checked, **more):
    return Run(directory=str(checked.directory), checkpoints="ckpt/step-{step}.pt", metrics=("log.jsonl",), **more)


def report(checked, **more):
    traces = more.pop("traces", ())
    return check_run(described(checked, **more), traces=traces)


def fact(checked, name, **more):
    found = report(checked, **more).fact(name)
    assert found is not None
    return found


def test_a_sound_run_with_a_spike_has_every_answer_and_nothing_wrong(checked):
    found = report(checked)
    assert wrong_facts(found) == ()
    assert exit_code(found) is ExitCode.PASSED
    values = {f.name: f.value for f in found.facts}
    assert values == {
        "signal.non-finite": "no",
        "signal.persists": "no",
        "lr.discontinuity": "no",
        "resume.at-onset": "no",
        "checkpoint.integrity": "whole",
        "checkpoint.finite": "yes",
        "checkpoint.training": "yes",
        "checkpoint.bit-flip": "no",
        "checkpoint.generation": "one",
        "checkpoint.tensors": "ordinary",
        "hardware.events": "not-measured",
        "ranks.agree": "yes",
        "code.changed": "no",
        "config.changed": "no",
        "environment.changed": "not-measured",
    }
    assert all(f.statement for f in found.facts)
    (inventory,) = [rows for title, rows in found.tables if title == "checkpoints"]
    assert [row[:2] for row in inventory[1:]] == [("120", "suspect"), ("80", "last good"), ("40", "earlier")]


def test_every_wrong_answer_is_in_the_vocabulary():
    assert all(value in VOCABULARY[name] for name, value in WRONG.items())


# -- signals --


def test_a_loss_that_becomes_nan_is_non_finite_and_persists(checked):
    rows = [
        checked.row(s, **({"loss": float("nan"), "grad_norm": float("nan")} if s >= ONSET else {}))
        for s in range(1, LAST)
    ]
    checked.log(rows=rows)
    assert fact(checked, "signal.non-finite").value == "yes"
    assert fact(checked, "signal.non-finite").step == ONSET
    assert fact(checked, "signal.persists").value == "yes"


def test_a_learning_rate_that_jumps_before_the_loss_is_found_at_its_step(checked):
    checked.log(rows=[checked.row(s, lr=2e-3 if s < ONSET - 1 else 4e-2) for s in range(1, LAST + 1)])
    found = fact(checked, "lr.discontinuity")
    assert (found.value, found.step) == ("yes", ONSET - 1)
    assert "20 times" in found.statement


def test_a_cosine_schedule_and_a_knee_are_no_jump(checked):
    checked.log(rows=[checked.row(s, lr=2e-3 * min(1, s / 84) * (1 - s / 1000)) for s in range(1, LAST + 1)])
    assert fact(checked, "lr.discontinuity").value == "no"


def test_a_log_without_a_learning_rate_is_not_measured(checked):
    checked.log(rows=[{k: v for k, v in checked.row(s).items() if k != "lr"} for s in range(1, LAST + 1)])
    assert fact(checked, "lr.discontinuity").value == "not-measured"


def move_onset(checked, onset):
    """The same spike at another step: right behind the checkpoint of step 80."""
    rows = []
    for step in range(1, LAST + 1):
        row = checked.row(step)
        off = 3.0 * ((onset <= step <= onset + 4) - (ONSET <= step <= ONSET + 4))
        rows.append({**row, "loss": row["loss"] + off, "grad_norm": row["grad_norm"] + 10 * off})
    return rows


def test_a_counter_that_goes_back_before_the_onset_is_a_resume(checked):
    rows = move_onset(checked, 82)
    checked.log(rows=[*rows[:85], *rows[80:]])
    found = fact(checked, "resume.at-onset")
    assert found.value == "yes"
    assert "goes back" in found.statement


def test_a_console_line_about_a_resume_before_the_onset_is_found(checked):
    checked.log(rows=move_onset(checked, 82))
    lines = [f"step {s} loss 3.0" for s in range(1, 81)]
    after = [f"step {s} loss 3.0" for s in range(81, LAST)]
    checked.write("console.log", "\n".join([*lines, "resumed from ckpt/step-0080.pt at step 80", *after]))
    found = fact(checked, "resume.at-onset")
    assert (found.value, found.step) == ("yes", 80)
    assert "console.log" in found.statement


def test_a_console_that_names_its_starts_and_none_at_the_onset_excludes_a_resume(checked):
    checked.log(rows=move_onset(checked, 82))
    lines = ["starting from checkpoint none", *(f"step {s} loss 3.0" for s in range(1, LAST)), "saved, can be resumed"]
    checked.write("console.log", "\n".join(lines))
    assert fact(checked, "resume.at-onset").value == "no"


def test_a_checkpoint_right_before_the_onset_without_any_trace_of_a_start_is_not_measured(checked):
    checked.log(rows=move_onset(checked, 82))
    found = fact(checked, "resume.at-onset")
    assert found.value == "not-measured"
    assert "step 80" in found.statement


# -- checkpoints --


def test_one_flipped_exponent_bit_after_the_onset_is_found_at_its_element(checked):
    state = checked.load(120)
    state["model"]["0.weight"].view(-1).view(torch.int32)[37] ^= 1 << 29
    checked.save(120, state)
    found = fact(checked, "checkpoint.bit-flip")
    assert (found.value, found.where.tensor, found.step) == ("yes", "0.weight", 120)
    assert "element 37 of 0.weight" in found.statement
    scene = scene_of_run(described(checked))
    (flip,) = find_flips(scene, scene.last_good, scene.suspect[0])
    assert (flip.tensor, flip.element) == ("0.weight", 37)


def test_a_nan_element_after_the_onset_is_a_flip_and_a_lost_tensor_is_not(checked):
    state = checked.load(120)
    state["model"]["0.weight"][3, 3] = float("nan")
    checked.save(120, state)
    assert fact(checked, "checkpoint.bit-flip").value == "yes"
    state["model"]["0.weight"][:] = float("nan")
    checked.save(120, state)
    assert fact(checked, "checkpoint.bit-flip").value == "no"


def test_damaged_bytes_of_the_last_good_checkpoint_are_found(checked):
    data = bytearray(checked.path(80).read_bytes())
    state = checked.load(80)
    place = data.index(state["model"]["0.weight"].numpy().tobytes())
    data[place + 5] ^= 4
    checked.path(80).write_bytes(data)
    os.utime(checked.path(80), (BASE + 80, BASE + 80))
    found = fact(checked, "checkpoint.integrity")
    assert (found.value, found.where.file) == ("damaged", "ckpt/step-0080.pt")
    assert "CRC" in found.statement


def test_a_torn_checkpoint_is_passed_over_and_listed(checked):
    checked.path(80).write_bytes(checked.path(80).read_bytes()[:1000])
    found = report(checked)
    assert found.fact("checkpoint.integrity").statement.startswith("ckpt/step-0040.pt")
    (inventory,) = [rows for title, rows in found.tables if title == "checkpoints"]
    assert ("80", "other", "torch-zip", "torn") in [row[:4] for row in inventory]


def test_a_non_finite_weight_of_the_last_good_checkpoint_is_found_and_a_mask_is_none(checked):
    assert fact(checked, "checkpoint.finite").value == "yes"
    state = checked.load(80)
    state["model"]["1.bias"][2] = float("inf")
    checked.save(80, state)
    found = fact(checked, "checkpoint.finite")
    assert (found.value, found.where.tensor) == ("no", "1.bias")


def test_weights_that_do_not_move_mean_that_nothing_is_trained(checked):
    state = checked.load(40)
    checked.save(80, {**checked.load(80), "model": state["model"]})
    found = fact(checked, "checkpoint.training")
    assert (found.value, found.step) == ("no", 80)


@pytest.mark.parametrize(("part", "word"), [("model", "parameters"), ("optimizer", "moments")])
def test_a_part_that_is_an_older_checkpoints_is_named_with_its_origin(checked, part, word):
    # The older one is neither pinned nor compared otherwise: its zip directory is enough.
    checked.save(120, checked.load(120))
    torch.save({**checked.load(40), "step": 20}, checked.directory / "ckpt" / "step-0020.pt")
    state = {**checked.load(40), "step": 20}
    state["model"] = {k: v * 2 for k, v in state["model"].items()}
    state["optimizer"]["state"] = {
        i: {k: v * 3 if k != "step" else v for k, v in s.items()} for i, s in state["optimizer"]["state"].items()
    }
    torch.save(state, checked.directory / "ckpt" / "step-0020.pt")
    checked.save(80, {**checked.load(80), part: state[part]})
    found = fact(checked, "checkpoint.generation")
    assert found.value == "mixed"
    assert f"the {word} of ckpt/step-0080.pt are byte by byte those of ckpt/step-0020.pt" in found.statement
    assert found.where.file == "ckpt/step-0080.pt"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v * 2.0**-14, "their own decay"),
        (lambda v: v.half().float(), "rounded"),
        (lambda v: v * 0, "zeros only"),
        (lambda v: v * 0 + 1e-42, "subnormal"),
    ],
)
def test_second_moments_that_no_training_leaves_are_suspicious(checked, change, words):
    state = checked.load(80)
    for moments in state["optimizer"]["state"].values():
        moments["exp_avg_sq"] = change(moments["exp_avg_sq"])
    checked.save(80, state)
    found = fact(checked, "checkpoint.tensors")
    assert found.value == "suspicious"
    assert words in found.statement
    assert "exp_avg_sq" in found.statement


def test_the_change_of_every_tensor_is_relative_to_its_norm(checked):
    scene = scene_of_run(described(checked))
    compared = compare(scene, scene.earlier[0], scene.last_good)
    before, after = (checked.load(s)["model"]["0.weight"].double() for s in (40, 80))
    found = next(c for c in compared.values if (c.tensor, c.key) == ("0.weight", ""))
    assert found.relative == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-6)


def test_without_any_checkpoint_everything_about_them_is_not_measured(checked):
    for step in (40, 80, 120):
        checked.path(step).unlink()
    found = report(checked)
    assert {f.value for f in found.facts if f.name.startswith("checkpoint.")} == {"not-measured"}


# -- what changed --


def test_a_commit_between_the_checkpoint_and_the_onset_is_found_with_its_file(checked):
    checked.write("model.py", "gain = 2\n")
    checked.commit("Another gain", at=82)
    found = fact(checked, "code.changed")
    assert (found.value, found.where.file) == ("yes", "model.py")
    assert len(found.where.commit) == 40
    assert "Another gain" in found.statement


def test_a_commit_to_the_documentation_changes_no_code(checked):
    checked.write("README.md", "How to run it\n")
    checked.commit("Explain", at=82)
    assert fact(checked, "code.changed").value == "no"


def test_a_commit_after_the_end_of_the_record_is_no_cause(checked):
    checked.write("model.py", "gain = 2\n")
    checked.commit("Later", at=LAST + 1000)
    assert fact(checked, "code.changed").value == "no"


@pytest.mark.parametrize(("at", "value"), [(90, "yes"), (10, "no")])
def test_an_uncommitted_change_counts_from_its_own_time(checked, at, value):
    checked.write("train.py", "print('changed')\n", at=at)
    assert fact(checked, "code.changed").value == value


def test_a_setting_stored_with_another_value_after_the_onset_is_found(checked):
    state = checked.load(120)
    checked.save(120, {**state, "config": {**state["config"], "learning_rate": 2e-2, "out_dir": "elsewhere"}})
    found = fact(checked, "config.changed")
    assert (found.value, found.where.key) == ("yes", "config.learning_rate")


def test_another_output_directory_is_listed_and_changes_nothing(checked):
    state = checked.load(120)
    checked.save(120, {**state, "config": {**state["config"], "out_dir": "elsewhere"}})
    assert fact(checked, "config.changed").value == "no"
    tables = dict(report(checked).tables)
    assert any("config.out_dir" in row for title, rows in tables.items() if "differences" in title for row in rows)


def test_a_committed_configuration_file_is_compared_key_by_key(checked):
    checked.write("config.yaml", "learning_rate: 0.02\nrun_name: second\n")
    checked.commit("Faster", at=82)
    found = fact(checked, "config.changed")
    assert (found.value, found.where.key, found.where.file) == ("yes", "learning_rate", "config.yaml")
    assert "0.002 -> 0.02" in found.statement


def test_commits_that_checkpoints_name_are_compared(checked):
    for step, commit in ((80, "a" * 40), (120, "b" * 40)):
        state = checked.load(step)
        checked.save(step, {**state, "config": {**state["config"], "commit": commit}})
    found = fact(checked, "code.changed")
    assert (found.value, found.where.commit) == ("yes", "b" * 40)


# -- machines --

XID = "[{}] NVRM: Xid (PCI:0000:65:00): {}, pid=7194, something"


def clock(step):
    from datetime import datetime

    return datetime.fromtimestamp(BASE + step).strftime("%a %b %d %H:%M:%S %Y")


def test_a_fault_of_the_hardware_in_the_window_is_found(checked):
    checked.write("dmesg.txt", XID.format(clock(85), 94))
    found = fact(checked, "hardware.events", hardware=("dmesg.txt",))
    assert found.value == "yes"
    assert found.where.key == "0000:65:00"
    assert "uncorrectable" in found.statement


@pytest.mark.parametrize("line", [XID.format(clock(-100_000), 94), XID.format(clock(85), 31), "[  1.000000] hello"])
def test_without_a_fault_in_the_window_the_answer_says_what_a_clean_log_is_worth(checked, line):
    checked.write("dmesg.txt", line)
    found = fact(checked, "hardware.events", hardware=("dmesg.txt",))
    assert found.value == "no"
    assert SENTENCE in found.statement


def test_no_hardware_record_is_not_measured_and_says_what_a_clean_one_would_be_worth(checked):
    found = fact(checked, "hardware.events")
    assert found.value == "not-measured"
    assert SENTENCE in found.statement


def test_a_hardware_record_that_cannot_be_read_is_never_clean(checked):
    checked.write("smi.xml", "<nvidia_smi_log><gpu>")
    assert fact(checked, "hardware.events", hardware=("smi.xml",)).value == "not-measured"
    assert fact(checked, "hardware.events", hardware=("missing.log",)).value == "not-measured"


def test_traces_of_ranks_that_disagree_are_found(checked):
    found = fact(checked, "ranks.agree", traces=tuple(replicas({(1, 8, "b"): "other"})))
    assert (found.value, found.where.rank, found.where.tensor, found.step) == ("no", 1, "b", 8)
    assert fact(checked, "ranks.agree", traces=tuple(replicas({}))).value == "yes"


@pytest.mark.parametrize(("drift", "value"), [(0.0, "yes"), (1e-3, "no")])
def test_per_rank_files_of_the_last_good_checkpoint_are_compared(checked, drift, value):
    for step in (40, 80, 120):
        state = checked.load(step)
        folder = checked.directory / "ranked" / f"step-{step}"
        folder.mkdir(parents=True)
        for rank in range(3):
            model = {k: v + (drift if (rank, k) == (1, "1.bias") else 0) for k, v in state["model"].items()}
            torch.save({**state, "model": model}, folder / f"rank{rank}.pt")
            os.utime(folder / f"rank{rank}.pt", (BASE + step, BASE + step))
    run = Run(directory=str(checked.directory), checkpoints="ranked/step-{step}", metrics=("log.jsonl",), devices=3)
    found = check_run(run).fact("ranks.agree")
    assert found.value == value
    if value == "no":
        assert (found.where.rank, found.where.tensor, found.step) == (1, "1.bias", 80)


@pytest.mark.parametrize(
    "more",
    [{"devices": 8}, {"launch": "torchrun --nproc-per-node 4 train.py"}, {"launch": "accelerate launch train.py"}],
)
def test_several_ranks_without_any_record_of_them_are_not_measured(checked, more):
    assert fact(checked, "ranks.agree", **more).value == "not-measured"


# -- a case --


def test_a_frozen_case_is_checked_from_its_pins_and_stays_verifiable(checked):
    state = checked.load(120)
    state["model"]["0.weight"].view(-1).view(torch.int32)[37] ^= 1 << 29
    checked.save(120, state)
    run = described(checked)
    signals, detection = detect_run(run)
    case = freeze(
        run, primary_incident(detection), cases=Path(f"{run.directory}.spike"), operator="ada", signals=signals
    )
    seen = []
    found = check_case(case, run, on_bytes=seen.append)
    assert found.fact("checkpoint.bit-flip").value == "yes"
    assert all("evidence/pinned" in e for e in found.fact("checkpoint.bit-flip").evidence)
    stored = from_payload(CheckReport, json.loads((case.path / "checks.json").read_text()), schema="spike.checks/1")
    assert stored == found
    last = case.journal()[-1]
    assert (last.command, last.exit_code) == ("check", 1)
    assert [a.path for a in last.artefacts] == ["checks.json"]
    assert sum(seen) > 0
    assert verify(case.path).integrity is Integrity.INTACT


def test_a_case_can_be_checked_when_the_run_is_gone(checked, tmp_path):
    run = described(checked)
    signals, detection = detect_run(run)
    case = freeze(
        run, primary_incident(detection), cases=Path(f"{run.directory}.spike"), operator="ada", signals=signals
    )
    checked.directory.rename(tmp_path / "moved")
    found = check_case(case, run)
    assert found.fact("checkpoint.integrity").value == "whole"
    assert found.fact("checkpoint.training").value == "yes"
    assert found.fact("code.changed").value == "no"
