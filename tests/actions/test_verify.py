"""Is every change to a case told for what it is, by a copy of the case alone?"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spike.actions.evidence.freeze import Options, freeze
from spike.actions.evidence.verify import verify
from spike.casefile.case import open_case
from spike.casefile.journal import append
from spike.casefile.manifest import EVIDENCE, take_stock, write_manifest
from spike.domain.errors import InputUnreadable
from spike.domain.journal import Artefact, ChainFault
from spike.domain.manifest import ChangeKind
from spike.domain.verification import Integrity
from tests.casefile.small_runs import git, incident, make_run, signals
from tests.casefile.test_signing import write_keys

CHECKPOINT = "pinned/out@200/step-200"
WEIGHTS = f"{CHECKPOINT}/model.safetensors"
OTHER = "pinned/out@150/step-150/model.safetensors"


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case whose run is gone; not to be changed."""
    place = tmp_path_factory.mktemp("frozen")
    run = make_run(place / "run")
    git(place / "run", "init", "-q")
    case = freeze(run, incident(), cases=place / "cases", operator="ada", signals=signals())
    case.write_json("checks.json", {"schema": "spike.checks/1", "facts": []})
    case.record("check", "nothing found", 0, ("checks.json",))
    case.write_text("trials/T001-replay/stdout.log", "step 201\n")
    case.write_json("trials/T001-replay/outcome.json", {"schema": "spike.outcome/1"})
    case.record("replay", "reproduced", 0, ("trials/T001-replay",))
    shutil.rmtree(place / "run")
    return case.path


@pytest.fixture
def case(frozen: Path, tmp_path: Path) -> Path:
    """A copy of that case, elsewhere, as it would be handed over."""
    return Path(shutil.copytree(frozen, tmp_path / "handed over", symlinks=True))


def _writable(path: Path) -> Path:
    path.chmod(0o644)
    return path


def _flip(e: Path) -> None:
    data = bytearray((e / WEIGHTS).read_bytes())
    data[len(data) // 2] ^= 1
    _writable(e / WEIGHTS).write_bytes(data)


def _append(e: Path) -> None:
    with _writable(e / WEIGHTS).open("ab") as file:
        file.write(b"more")


def _swap(e: Path) -> None:
    (e / WEIGHTS).rename(e / "x")
    (e / OTHER).rename(e / WEIGHTS)
    (e / "x").rename(e / OTHER)


def _file_to_symlink(e: Path) -> None:
    (e / WEIGHTS).rename(e.parent.parent / "same-bytes")
    (e / WEIGHTS).symlink_to(e.parent.parent / "same-bytes")


def _directory_to_symlink(e: Path) -> None:
    (e / CHECKPOINT).rename(e.parent.parent / "same-directory")
    (e / CHECKPOINT).symlink_to(e.parent.parent / "same-directory")


def _add(name: str) -> Callable[[Path], None]:
    def act(e: Path) -> None:
        (e / CHECKPOINT / name).parent.mkdir(exist_ok=True)
        (e / CHECKPOINT / name).write_text("evil")

    return act


CONTENT: dict[str, tuple[Callable[[Path], object], ChangeKind, str]] = {
    "flip bit": (_flip, ChangeKind.CHANGED, WEIGHTS),
    "truncate": (lambda e: os.truncate(_writable(e / WEIGHTS), 1000), ChangeKind.TRUNCATED, WEIGHTS),
    "append": (_append, ChangeKind.GROWN, WEIGHTS),
    "delete": (lambda e: (e / WEIGHTS).unlink(), ChangeKind.DELETED, WEIGHTS),
    "rename": (
        lambda e: (e / WEIGHTS).rename(e / CHECKPOINT / "renamed.safetensors"),
        ChangeKind.RENAMED,
        WEIGHTS,
    ),
    "swap two files": (_swap, ChangeKind.SWAPPED, WEIGHTS),
    "empty a file": (lambda e: _writable(e / WEIGHTS).write_bytes(b""), ChangeKind.EMPTIED, WEIGHTS),
    "add a file": (_add("extra.bin"), ChangeKind.ADDED, f"{CHECKPOINT}/extra.bin"),
    "add a hidden file": (_add(".hidden"), ChangeKind.ADDED, f"{CHECKPOINT}/.hidden"),
    "add .git/evil": (_add(".git/evil"), ChangeKind.ADDED, f"{CHECKPOINT}/.git/evil"),
    "add .gitattributes": (_add(".gitattributes"), ChangeKind.ADDED, f"{CHECKPOINT}/.gitattributes"),
    "file to symlink to the same bytes": (_file_to_symlink, ChangeKind.REPLACED, WEIGHTS),
    "directory to symlink to the same files": (_directory_to_symlink, ChangeKind.REPLACED, CHECKPOINT),
}

METADATA: dict[str, tuple[Callable[[Path], object], ChangeKind]] = {
    "add an empty directory": (lambda e: (e / CHECKPOINT / "empty").mkdir(), ChangeKind.EMPTY_DIRECTORY),
    "chmod 0777": (lambda e: (e / WEIGHTS).chmod(0o777), ChangeKind.MODE),
    "change the mtime": (lambda e: os.utime(e / WEIGHTS, ns=(1, 1)), ChangeKind.MTIME),
}


def test_an_untouched_copy_passes_without_the_run(case: Path) -> None:
    found = verify(case)
    assert found.integrity is Integrity.INTACT
    assert (found.changes, found.artefacts, found.chain, found.unfinished, found.unrecorded) == ((), (), (), (), ())
    assert found.num_files > 10
    assert len(found.tree_digest) == 64


def test_the_sixteen_changes_of_the_matrix_are_all_here() -> None:
    assert len(CONTENT) + len(METADATA) == 16


@pytest.mark.parametrize("name", CONTENT)
def test_a_change_of_content_fails_and_names_the_file(case: Path, name: str) -> None:
    act, kind, path = CONTENT[name]
    act(case / EVIDENCE)
    found = verify(case)
    assert found.integrity is Integrity.ALTERED
    assert (kind, path) in {(c.kind, c.path) for c in found.changes if c.is_content}
    assert any(path in c.statement for c in found.changes)


@pytest.mark.parametrize("name", METADATA)
def test_a_change_of_metadata_is_reported_and_passes(case: Path, name: str) -> None:
    act, kind = METADATA[name]
    act(case / EVIDENCE)
    found = verify(case)
    assert found.integrity is Integrity.INTACT
    assert {c.kind for c in found.changes} == {kind}
    assert all(not c.is_content for c in found.changes)


@pytest.mark.parametrize("name", [*CONTENT, *METADATA])
def test_the_command_answers_with_its_exit_code_and_the_name(case: Path, name: str) -> None:
    act = CONTENT[name][0] if name in CONTENT else METADATA[name][0]
    act(case / EVIDENCE)
    from typer.testing import CliRunner

    from spike.cli.app import app

    done = CliRunner().invoke(app, ["verify", "--case", str(case), "--json"])
    payload = json.loads(done.stdout)
    assert payload["schema"] == "spike.verification/1"
    assert done.exit_code == (1 if name in CONTENT else 0)
    assert payload["integrity"] == ("altered" if name in CONTENT else "intact")
    assert payload["changes"]


def test_a_copy_that_lost_its_times_still_passes(frozen: Path, tmp_path: Path) -> None:
    subprocess.run(("cp", "-r", str(frozen), str(tmp_path / "plain")), check=True)
    found = verify(tmp_path / "plain")
    assert found.integrity is Integrity.INTACT
    assert found.metadata
    assert all(not c.is_content for c in found.changes)


def test_a_read_only_copy_can_be_verified(case: Path) -> None:
    directories = [case, *(p for p in case.rglob("*") if p.is_dir())]
    for path in directories:
        path.chmod(0o555)
    before = sorted(p for p in case.rglob("*"))
    try:
        assert verify(case).integrity is Integrity.INTACT
    finally:
        for path in directories:
            path.chmod(0o755)
    assert sorted(p for p in case.rglob("*")) == before


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("checks.json", "edit"),
        ("trials/T001-replay/outcome.json", "edit"),
        ("trials/T001-replay/stdout.log", "delete"),
        ("case.yaml", "edit"),
        ("evidence/manifest.json", "edit"),
        ("evidence/SHA256SUMS", "edit"),
        ("evidence/manifest.json", "delete"),
        ("checks.json", "symlink"),
        ("trials", "symlink"),
        ("evidence", "symlink"),
    ],
)
def test_what_later_commands_recorded_is_held_against_the_journal(case: Path, path: str, form: str) -> None:
    victim = case / path
    if form == "edit":
        victim.write_text(victim.read_text().replace("2", "3") + "\n")
    elif form == "delete":
        victim.unlink()
    else:
        victim.rename(case.parent / "moved")
        victim.symlink_to(case.parent / "moved")
    found = verify(case)
    assert found.integrity is Integrity.ALTERED
    named = {c.path for c in (*found.changes, *found.artefacts)}
    assert any(p == path or p.startswith(f"{path}/") for p in named)


def test_a_file_rewritten_together_with_its_manifest_is_caught_by_the_journal(case: Path) -> None:
    _writable(case / EVIDENCE / "run/cfg.yaml").write_text("lr: 0.9\nbatch: 8\n")
    write_manifest(case, take_stock(case / EVIDENCE))
    found = verify(case)
    assert found.changes == ()
    assert found.integrity is Integrity.ALTERED
    assert {c.path for c in found.artefacts} == {"evidence/manifest.json", "evidence/SHA256SUMS"}


def test_everything_rewritten_together_is_caught_by_the_signature_alone(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    run = make_run(tmp_path / "run")
    case = freeze(
        run, incident(), cases=tmp_path / "cases", operator="ada", signals=signals(), options=Options(key=private)
    )
    assert verify(case.path, public_key=public).integrity is Integrity.INTACT
    _writable(case.path / EVIDENCE / "run/cfg.yaml").write_text("lr: 0.9\n")
    for name in ("journal.jsonl", "journal.head"):
        (case.path / name).unlink()
    write_manifest(case.path, take_stock(case.path / EVIDENCE))
    append(case.path, "case", "opened", 0)
    open_case(case.path).record(
        "freeze",
        "done",
        0,
        ("evidence/manifest.json", "evidence/SHA256SUMS", "evidence/manifest.dsse.json", "case.yaml"),
    )
    assert verify(case.path).integrity is Integrity.INTACT  # nobody can know without a key
    found = verify(case.path, public_key=public)
    assert found.integrity is Integrity.ALTERED
    assert found.signature_holds is False


def test_a_signature_that_was_removed_is_missed(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    case = freeze(
        make_run(tmp_path / "run"), incident(), cases=tmp_path / "c", operator="a", options=Options(key=private)
    )
    (case.path / EVIDENCE / "manifest.dsse.json").unlink()
    assert verify(case.path).integrity is Integrity.ALTERED
    assert verify(case.path, public_key=public).signature_holds is False


def test_evidence_that_a_later_command_added_and_recorded_is_no_finding(case: Path) -> None:
    opened = open_case(case)
    opened.write_json("evidence/hardware.json", {"schema": "spike.hardware/1"})
    assert verify(case).integrity is Integrity.ALTERED
    opened.record("check", "hardware read", 0, ("evidence/hardware.json",))
    assert verify(case).integrity is Integrity.INTACT
    opened.write_json("evidence/hardware.json", {"schema": "spike.hardware/1", "events": ["forged"]})
    assert verify(case).integrity is Integrity.ALTERED


def test_a_file_that_nobody_recorded_is_listed_and_does_not_fail(case: Path) -> None:
    (case / "notes.txt").write_text("look at rank 3")
    found = verify(case)
    assert found.unrecorded == ("notes.txt",)
    assert found.integrity is Integrity.INTACT


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        ("edit", ChainFault.CHANGED),
        ("drop the last", ChainFault.TRUNCATED),
        ("drop the middle", ChainFault.REMOVED),
        ("swap", ChainFault.REORDERED),
    ],
)
def test_a_journal_that_was_tampered_with_fails(case: Path, form: str, fault: ChainFault) -> None:
    lines = (case / "journal.jsonl").read_bytes().splitlines(keepends=True)
    if form == "edit":
        lines[-1] = lines[-1].replace(b"reproduced", b"absent")
    elif form == "drop the last":
        lines.pop()
    elif form == "drop the middle":
        del lines[2]
    else:
        lines[1], lines[2] = lines[2], lines[1]
    (case / "journal.jsonl").write_bytes(b"".join(lines))
    found = verify(case)
    assert found.integrity is Integrity.ALTERED
    assert fault in {f.fault for f in found.chain}


def test_a_torn_line_is_unfinished_business_and_no_tampering(case: Path) -> None:
    with (case / "journal.jsonl").open("ab") as file:
        file.write(b'{"artefacts":[')
    found = verify(case)
    assert found.integrity is Integrity.INCOMPLETE
    assert found.unfinished


def test_a_command_at_work_makes_the_answer_incomplete_and_is_named(case: Path) -> None:
    body = (
        "import sys, time\nfrom pathlib import Path\nfrom spike.casefile.lock import case_lock\n"
        "with case_lock(Path(sys.argv[1]), 'bisect'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen((sys.executable, "-c", body, str(case)), stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        (case / "checks.json").write_text("{}\n")
        found = verify(case)
        assert found.integrity is Integrity.INCOMPLETE
        assert any("spike bisect" in reason for reason in found.unfinished)
    finally:
        child.kill()
        child.communicate()


def test_a_planted_lock_does_not_turn_changed_evidence_into_unfinished_business(case: Path) -> None:
    (case / ".lock").write_text(json.dumps({"command": "freeze", "pid": "1", "host": "x"}))
    _flip(case / EVIDENCE)
    assert verify(case).integrity is Integrity.ALTERED


def test_a_journal_that_names_paths_outside_of_the_case_reads_nothing_there(case: Path) -> None:
    append(case, "check", "hostile", 0, (Artefact("../../../etc/passwd", "0" * 64), Artefact("/etc/passwd", "0" * 64)))
    found = verify(case)
    assert found.integrity is Integrity.ALTERED
    assert {c.path for c in found.artefacts} == {"../../../etc/passwd", "/etc/passwd"}
    assert all("leads out of the case" in c.statement for c in found.artefacts)


def test_a_manifest_that_leads_out_of_the_case_is_refused(case: Path) -> None:
    file = case / EVIDENCE / "manifest.json"
    payload = json.loads(file.read_text())
    payload["entries"][0]["path"] = "../../outside"
    file.write_text(json.dumps(payload))
    found = verify(case)
    assert found.integrity is Integrity.ALTERED
    assert any("outside" in c.statement for c in found.changes)


def test_what_is_no_case_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match="not a case"):
        verify(tmp_path)


def test_no_random_edit_of_the_evidence_goes_unnoticed(case: Path) -> None:
    """One random byte of one random file changed, cut off or added, many times over."""
    rng = random.Random(48200)
    root = case / EVIDENCE
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.stat().st_size]
    tried = noticed = 0
    for _ in range(60):
        victim = _writable(rng.choice(files))
        original = victim.read_bytes()
        data = bytearray(original)
        match rng.randrange(3):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(len(data)) :]
            case _:
                data.insert(rng.randrange(len(data) + 1), rng.randrange(256))
        victim.write_bytes(data)
        tried += 1
        noticed += verify(root.parent).integrity is Integrity.ALTERED
        victim.write_bytes(original)
    assert noticed == tried == 60
    assert verify(root.parent).integrity is Integrity.INTACT
