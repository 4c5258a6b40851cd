"""Is the code of a trial exactly the wanted commit's, with nothing of the operator's configuration run?"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.lab.guards.choice import Guard
from spike.lab.runner import TrialRequest, run_trial
from spike.lab.source import materialise, work_tree
from spike.lab.tree_state import tree_state


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str, str]:
    """(work tree, an old commit, a newer one): a file changed, one added, one gone."""
    root = tmp_path / "code"
    (root / "lib").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "train.py").write_text("print('old', open('data.txt').read())\n")
    (root / "lib" / "gone.py").write_text("gone = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "old")
    old = git(root, "rev-parse", "HEAD")
    (root / "train.py").write_text("print('new', open('data.txt').read())\n")
    (root / "lib" / "gone.py").unlink()
    (root / "lib" / "added.py").write_text("added = 1\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "new")
    (root / "data.txt").write_text("untracked data")
    return root, old, git(root, "rev-parse", "HEAD")


def test_another_commit_is_written_whole_and_later_files_are_absent(
    repository: tuple[Path, str, str], tmp_path: Path
) -> None:
    root, old, _ = repository
    before = tree_state(root)
    state = materialise(str(root / "lib"), old, "", tmp_path / "code-state")
    files = Path(state.files)
    assert sorted(str(p.relative_to(files)) for p in files.rglob("*") if p.is_file()) == [
        "lib/gone.py",
        "run.sh",
        "train.py",
    ]
    assert "old" in (files / "train.py").read_text()
    assert (files / "run.sh").stat().st_mode & 0o111
    assert state.root == str(root)
    assert state.absent == (str(root / "lib" / "added.py"),)
    assert tree_state(root) == before


def test_the_recorded_patch_is_applied_on_top(repository: tuple[Path, str, str], tmp_path: Path) -> None:
    root, old, new = repository
    (root / "train.py").write_text("print('patched')\n")
    patch = subprocess.run(["git", "diff", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout
    (root / "train.py").write_text("edited since\n")
    state = materialise(str(root), new, patch, tmp_path / "a")
    assert (Path(state.files) / "train.py").read_text() == "print('patched')\n"
    with pytest.raises(SpikeError, match="uncommitted changes of the run do not apply to commit"):
        materialise(str(root), old, patch, tmp_path / "b")


def test_stale_bytecode_of_a_replaced_file_is_hidden(repository: tuple[Path, str, str], tmp_path: Path) -> None:
    root, old, _ = repository
    cached = root / "__pycache__" / "train.cpython-311.pyc"
    cached.parent.mkdir()
    cached.write_bytes(b"stale")
    assert str(cached) in materialise(str(root), old, "", tmp_path / "state").absent


def test_nothing_that_the_repository_is_configured_to_run_is_run(
    repository: tuple[Path, str, str], tmp_path: Path
) -> None:
    root, old, _ = repository
    marker = tmp_path / "ran"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\necho $0 $@ >> {marker}\ncat\n")
    script.chmod(0o755)
    (root / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    for key in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean", "diff.evil.textconv", "core.pager"):
        git(root, "config", key, str(script))
    for name in ("post-checkout", "post-index-change", "pre-applypatch", "reference-transaction"):
        (root / ".git" / "hooks").mkdir(exist_ok=True)
        (root / ".git" / "hooks" / name).write_text(script.read_text())
        (root / ".git" / "hooks" / name).chmod(0o755)
    patch = "--- a/run.sh\n+++ b/run.sh\n@@ -1 +1 @@\n-#!/bin/sh\n+#!/bin/bash\n"
    state = materialise(str(root), old, patch, tmp_path / "state")
    assert (Path(state.files) / "run.sh").read_text() == "#!/bin/bash\n"
    assert not marker.exists()
    git(root, "status")
    assert marker.exists(), "the trap itself must work, or this proves nothing"


def test_a_linked_work_tree_is_understood(repository: tuple[Path, str, str], tmp_path: Path) -> None:
    root, old, new = repository
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "-q", "--detach", str(linked), new)
    state = materialise(str(linked), old, "", tmp_path / "state")
    assert state.root == str(linked)
    assert state.absent == (str(linked / "lib" / "added.py"),)


def test_large_files_kept_elsewhere_come_from_the_store_or_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "code"
    root.mkdir()
    git(root, "init", "-q")
    content = b"weights" * 1000
    oid = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
    (root / "weights.bin").write_text(pointer)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "pointer")
    commit = git(root, "rev-parse", "HEAD")
    with pytest.raises(SpikeError, match=r"weights\.bin is kept in Git LFS"):
        materialise(str(root), commit, "", tmp_path / "a")
    (root / "weights.bin").write_bytes(content)
    assert not (Path(materialise(str(root), commit, "", tmp_path / "b").files) / "weights.bin").exists()
    stored = root / ".git" / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
    stored.parent.mkdir(parents=True)
    stored.write_bytes(content)
    assert (Path(materialise(str(root), commit, "", tmp_path / "c").files) / "weights.bin").read_bytes() == content


@pytest.mark.parametrize("commit", ["main", "--help", "0123456789abcdef0123456789abcdef01234567", "HEAD~1"])
def test_what_is_no_commit_of_this_repository_is_refused(
    commit: str, repository: tuple[Path, str, str], tmp_path: Path
) -> None:
    with pytest.raises(SpikeError) as caught:
        materialise(str(repository[0]), commit, "", tmp_path / "state")
    assert caught.value.exit_code == 3


def test_a_directory_without_a_repository_cannot_show_another_commit(tmp_path: Path) -> None:
    if work_tree(str(tmp_path)) is not None:
        pytest.skip("temporary files lie inside a work tree")
    with pytest.raises(SpikeError, match="no git work tree"):
        materialise(str(tmp_path), "abcdef", "", tmp_path / "state")


@pytest.mark.process
@pytest.mark.parametrize("guard", [Guard.OVERLAY, Guard.LANDLOCK])
@pytest.mark.parametrize("layout", ["code is the run", "code above the run", "code below the run", "code elsewhere"])
def test_a_trial_of_another_commit_runs_that_commit(
    layout: str,
    guard: Guard,
    repository: tuple[Path, str, str],
    request_for: Callable[..., TrialRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    root, old, _ = repository
    match layout:
        case "code is the run":
            directory = root
        case "code above the run":
            directory = root / "runs" / "one"
        case "code below the run":
            directory = tmp_path
        case _:
            directory = tmp_path / "run"
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(directory=str(directory), code=str(root), cwd=str(root), launch="python3 train.py")
    request = request_for(run)
    if layout == "code below the run":
        request = replace(request, directory=str(tmp_path.parent / f"{tmp_path.name}-case" / "T001"))
    if layout == "code above the run":
        request = replace(request, directory=str(root / "runs" / "one.spike" / "T001"))
    before = tree_state(root)
    found = run_trial(replace(request, spec=replace(request.spec, commit=old)))
    assert found.stderr_tail == "old untracked data", found
    said = run_trial(request)
    assert said.stderr_tail == "new untracked data"
    after = {path: facts for path, facts in tree_state(root).items() if not path.startswith("runs")}
    assert after == {path: facts for path, facts in before.items() if not path.startswith("runs")}
