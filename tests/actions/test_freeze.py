"""Does freeze keep the right things, say what it could not keep, and leave the run alone?"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spike.actions.evidence.freeze import Options, freeze, warnings_of
from spike.actions.evidence.release import release_pins
from spike.actions.evidence.verify import verify
from spike.casefile.case import Case, list_cases, open_case
from spike.casefile.manifest import read_manifest
from spike.casefile.signals_store import read_signals
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.manifest import Algorithm, Guarantee, Manifest
from spike.domain.run import Run
from spike.domain.verification import Integrity
from tests.casefile.small_runs import fingerprint, git, incident, make_run, signals, write_checkpoint
from tests.casefile.test_signing import write_keys


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run")


def _freeze(run: Run, options: Options | None = None, **extra: object) -> Case:
    cases = Path(f"{run.directory}.spike")
    given = {"signals": signals(), "operator": "ada", "options": options, **extra}
    return freeze(run, given.pop("incident", incident()), cases=cases, **given)  # type: ignore[arg-type]


def _manifest(case: Case) -> Manifest:
    found = read_manifest(case.path)
    assert found is not None
    return found


def test_the_last_good_checkpoint_is_the_newest_one_before_the_onset(run: Run) -> None:
    facts = _freeze(run).facts
    assert facts.last_good is not None
    assert facts.last_good.step == 200
    assert facts.last_good.original == f"{run.directory}/out/step-200"
    assert [p.step for p in facts.earlier] == [150, 100]
    assert [p.step for p in facts.suspect] == [250]
    assert facts.not_pinned == ()


def test_no_more_than_three_earlier_and_two_suspect_checkpoints_are_pinned(tmp_path: Path) -> None:
    run = make_run(tmp_path / "many", tuple(range(20, 420, 20)))
    facts = _freeze(run).facts
    assert facts.last_good is not None
    assert facts.last_good.step == 220
    assert [p.step for p in facts.earlier] == [200, 180, 160]
    assert [p.step for p in facts.suspect] == [240, 260]


@pytest.mark.parametrize(("onset", "expected"), [(200, 150), (201, 200), (100, None), (101, 100), (1000, 250)])
def test_a_checkpoint_at_the_onset_itself_is_suspect(run: Run, onset: int, expected: int | None) -> None:
    facts = _freeze(run, incident=incident(onset)).facts
    assert (facts.last_good.step if facts.last_good else None) == expected


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_checkpoint_that_is_not_finite_is_passed_over_and_named(run: Run, poison: float) -> None:
    write_checkpoint(Path(run.directory) / "out" / "step-200" / "model.safetensors", 200, poison=poison)
    facts = _freeze(run).facts
    assert facts.last_good is not None
    assert facts.last_good.step == 150
    ((path, reason),) = facts.not_pinned
    assert path.endswith("step-200")
    assert "not finite: w in model.safetensors" in reason
    assert not (Path(f"{run.directory}.spike") / facts.id / "evidence" / "pinned" / "out@200").exists()


def test_a_mask_of_infinities_that_is_the_same_in_every_checkpoint_is_no_damage(run: Run) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    mask = np.triu(np.full((4, 4), -np.inf, dtype=np.float32), 1)
    for step in (100, 150, 200):
        path = Path(run.directory) / "out" / f"step-{step}" / "model.safetensors"
        save_file({"w": np.full(4, step, dtype=np.float32), "mask": mask}, path)
    facts = _freeze(run).facts
    assert facts.last_good is not None
    assert facts.last_good.step == 200


def test_torn_and_corrupt_checkpoints_are_passed_over_and_named(run: Run) -> None:
    torn = Path(run.directory) / "out" / "step-200" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-500])
    empty = Path(run.directory) / "out" / "step-210"
    empty.mkdir()
    facts = _freeze(run).facts
    assert facts.last_good is not None
    assert facts.last_good.step == 150
    assert [path.rsplit("/", 1)[1] for path, _ in facts.not_pinned] == ["step-210", "step-200"]
    assert all(reason for _, reason in facts.not_pinned)


def test_without_a_checkpoint_before_the_onset_freeze_still_succeeds_and_says_so_loudly(tmp_path: Path) -> None:
    run = make_run(tmp_path / "late", (300,))
    case = _freeze(run)
    assert case.facts.last_good is None
    assert [p.step for p in case.facts.suspect] == [300]
    assert "NO USABLE CHECKPOINT BEFORE THE ONSET" in warnings_of(case)[0]
    assert verify(case.path).integrity is Integrity.INTACT


def test_without_any_checkpoint_the_small_files_are_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "bare", ())
    case = _freeze(run)
    assert (case.path / "evidence" / "run" / "log.jsonl").is_file()
    assert verify(case.path).integrity is Integrity.INTACT


def test_nothing_in_the_run_changes(run: Run) -> None:
    def look() -> dict[str, tuple[object, ...]]:
        # Without access times: readers of checkpoints look at their first bytes.
        return {p: (*f[:4], *f[5:]) for p, f in fingerprint(Path(run.directory)).items()}

    before = look()
    case = _freeze(run)
    assert case.facts.last_good is not None
    assert look() == before


def test_the_case_holds_description_config_logs_signals_code_and_environment(run: Run) -> None:
    case = _freeze(run)
    evidence = case.path / "evidence"
    roles = {e.path: e.role for e in _manifest(case).entries}
    assert roles["run/spike.yaml"] == "description"
    assert roles["run/cfg.yaml"] == "config"
    assert roles["run/log.jsonl"] == "log"
    assert roles["signals.parquet"] == "signals"
    assert roles["environment.json"] == "environment"
    assert (evidence / "run" / "log.jsonl").read_bytes() == (Path(run.directory) / "log.jsonl").read_bytes()
    assert read_signals(case.path).names() == ("loss", "lr")
    state = json.loads((evidence / "source" / "state.json").read_text())
    assert "not in a git repository" in state["state"]["not_measured"]
    # Without a repository the code itself is kept.
    assert roles["run/train.py"] == "config" or roles["source/files/train.py"] == "source"
    situation = json.loads((evidence / "situation.json").read_text())
    assert situation["learning_rate_at_onset"] == 3e-4
    assert situation["last_good_step"] == 200
    assert "no log has a column" in situation["tokens_at_onset"]["not_measured"]


def test_code_in_a_repository_is_kept_as_commit_patch_and_untracked_files(run: Run) -> None:
    root = Path(run.directory)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "train.py", "cfg.yaml")
    git(root, "commit", "-qm", "training")
    (root / "train.py").write_text("print('training, changed')\n")
    (root / "helper.py").write_text("x = 1\n")
    case = _freeze(run)
    source = case.path / "evidence" / "source"
    state = json.loads((source / "state.json").read_text())
    assert state["state"]["commit"] == git(root, "rev-parse", "HEAD")
    assert state["history"][0]["subject"] == "training"
    assert (source / "untracked" / "helper.py").read_text() == "x = 1\n"
    git(root, "stash", "-q")
    subprocess.run(("git", "apply", str(source / "uncommitted.patch")), cwd=root, check=True)
    assert (root / "train.py").read_text() == "print('training, changed')\n"


def test_the_same_incident_frozen_twice_is_one_case(run: Run) -> None:
    first = _freeze(run)
    before = _manifest(first)
    second = _freeze(run)
    assert second.path == first.path
    assert _manifest(second) == before
    assert "unchanged" in second.journal()[-1].summary
    assert verify(first.path).integrity is Integrity.INTACT


def test_another_incident_and_new_open_cases_of_their_own(run: Run) -> None:
    paths = {_freeze(run).path, _freeze(run, incident=incident(180)).path, _freeze(run, Options(is_new=True)).path}
    assert len(paths) == 3
    assert len(list_cases(Path(f"{run.directory}.spike"))) == 3


def test_a_case_whose_evidence_was_changed_is_not_silently_taken_again(run: Run) -> None:
    case = _freeze(run)
    victim = case.path / "evidence" / "run" / "cfg.yaml"
    victim.chmod(0o644)
    victim.write_text("lr: 0.9\nbatch: 8\n")
    with pytest.raises(SpikeError, match=r"run/cfg\.yaml") as refused:
        _freeze(run)
    assert refused.value.exit_code is ExitCode.ANSWER_NO
    assert "spike verify" in refused.value.hint
    assert victim.read_text() == "lr: 0.9\nbatch: 8\n"


def test_a_checkpoint_that_is_overwritten_in_place_by_the_run_is_found_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spike.casefile.pinning.COPY_BELOW_BYTES", 0)
    case = _freeze(run)
    assert case.facts.last_good is not None
    if case.facts.last_good.guarantee == "reflink":
        pytest.skip("this filesystem shares blocks: overwriting cannot reach the pin")
    assert case.facts.last_good.guarantee == "hard link"
    assert "NOT from being overwritten in place" in warnings_of(case)[0]
    with (Path(run.directory) / "out" / "step-200" / "model.safetensors").open("r+b") as file:
        file.seek(200)
        file.write(b"resumed run, same step, other weights")
    found = verify(case.path)
    assert found.integrity is Integrity.ALTERED
    assert any("step-200" in c.statement and "overwritten in place" in c.statement for c in found.changes)


def test_a_checkpoint_under_a_name_without_its_step_is_never_hard_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spike.readers.checkpoints import find_checkpoints

    monkeypatch.setattr("spike.casefile.pinning.COPY_BELOW_BYTES", 0)
    run = replace(make_run(tmp_path / "nano", ()), checkpoints="out/ckpt")
    write_checkpoint(Path(run.directory) / "out" / "ckpt" / "model.safetensors", 1)
    known = tuple(replace(c, step=200) for c in find_checkpoints(Path(run.directory), run.checkpoints))
    case = _freeze(run, find=lambda _root, _pattern: known)
    assert case.facts.last_good is not None
    assert case.facts.last_good.guarantee in ("copy", "reflink")


def test_what_was_pinned_survives_the_rotation_of_the_run(run: Run) -> None:
    case = _freeze(run)
    shutil.rmtree(Path(run.directory) / "out")
    assert verify(case.path).integrity is Integrity.INTACT
    assert _freeze(run).path == case.path


def test_checkpoints_that_rotate_while_freeze_reads_are_still_pinned(run: Run) -> None:
    from spike.readers.checkpoints import scan_checkpoint

    def rotate_then_scan(checkpoint, on_bytes=None, /):  # type: ignore[no-untyped-def]
        shutil.rmtree(Path(run.directory) / "out", ignore_errors=True)
        return scan_checkpoint(checkpoint, on_bytes)

    facts = _freeze(run, scan=rotate_then_scan).facts
    assert facts.last_good is not None
    assert facts.last_good.step == 200
    assert [p.step for p in facts.earlier] == [150, 100]
    assert [p.step for p in facts.suspect] == [250]


def test_pins_can_be_let_go_and_their_digests_stay(run: Run) -> None:
    case = _freeze(run)
    digests = {e.digest for e in _manifest(case).entries if e.role == "checkpoint" and e.digest}
    assert release_pins(case) == 4
    assert not (case.path / "evidence" / "pinned").exists()
    kept = " ".join(e.reason for e in _manifest(case).exclusions)
    assert all(digest in kept for digest in digests)
    assert case.facts.last_good is None
    assert open_case(case.path).facts == case.facts
    assert verify(case.path).integrity is Integrity.INTACT


def test_a_signed_case_lets_go_of_its_pins_only_with_the_key_and_is_signed_again(run: Run, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    case = _freeze(run, Options(key=private))
    with pytest.raises(SpikeError, match="signed again"):
        release_pins(case)
    assert verify(case.path, public_key=public).integrity is Integrity.INTACT
    assert release_pins(case, private) == 4
    assert verify(case.path, public_key=public).integrity is Integrity.INTACT
    assert release_pins(case, private) == 0


def test_blake3_digests_are_checked_like_the_others(run: Run) -> None:
    case = _freeze(run, Options(Algorithm.BLAKE3))
    assert _manifest(case).algorithm is Algorithm.BLAKE3
    assert verify(case.path).integrity is Integrity.INTACT
    victim = case.path / "evidence" / "run" / "cfg.yaml"
    victim.chmod(0o644)
    victim.write_text("lr: 0.9\n")
    assert verify(case.path).integrity is Integrity.ALTERED


def test_a_signed_case_holds_with_its_key_only(run: Run, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    _, other = write_keys(tmp_path, "other")
    case = _freeze(run, Options(key=private))
    assert verify(case.path, public_key=public).signature_holds is True
    assert verify(case.path, public_key=other).integrity is Integrity.ALTERED
    assert "not checked" in verify(case.path).signature


def test_a_symlink_out_of_the_run_is_not_followed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("private")
    root = Path(run.directory)
    (root / "leak.yaml").symlink_to(tmp_path / "id_rsa")
    (root / "logs").symlink_to(tmp_path)
    (root / "out" / "step-200" / "leak").symlink_to(tmp_path / "id_rsa")
    case = _freeze(run)
    assert not any(p.read_bytes() == b"private" for p in case.path.rglob("*") if p.is_file())
    assert case.facts.last_good is not None
    assert case.facts.last_good.step == 150
    assert "outside the checkpoint" in case.facts.not_pinned[0][1]


def test_a_long_log_is_named_with_its_digest_and_not_copied(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spike.actions.evidence.small_evidence.MAX_COPY_BYTES", 100)
    case = _freeze(run)
    (only,) = [e for e in _manifest(case).exclusions if e.path.endswith("log.jsonl")]
    assert "sha256 " in only.reason


def test_a_guarantee_is_named_for_every_pinned_file(run: Run) -> None:
    entries = [e for e in _manifest(_freeze(run)).entries if e.role == "checkpoint"]
    assert entries
    assert all(e.guarantee in (Guarantee.COPY, Guarantee.REFLINK, Guarantee.HARD_LINK) for e in entries)


def test_two_freezes_at_once_cannot_harm_each_other(run: Run) -> None:
    case = _freeze(run)
    body = (
        "import sys, time\nfrom pathlib import Path\nfrom spike.casefile.lock import case_lock\n"
        "with case_lock(Path(sys.argv[1]), 'freeze'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    import sys

    child = subprocess.Popen((sys.executable, "-c", body, str(case.path)), stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(SpikeError, match=f"pid {child.pid}"):
            _freeze(run)
    finally:
        child.kill()
        child.communicate()


def test_progress_ends_at_all_bytes_and_never_runs_backwards(run: Run) -> None:
    seen: list[tuple[int, int]] = []
    _freeze(run, on_progress=lambda done, total: seen.append((done, total)))
    assert seen
    assert all(done <= total for done, total in seen)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert seen[-1][0] == seen[-1][1]
