"""Is the code state right, and does nothing that a hostile repository names ever run?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.casefile.small_runs import fingerprint, git

from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.domain.source import SourceState
from spike.readers.source_tree import diff_between, file_at, history, read_source


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, an ignored file, a binary file."""
    root = tmp_path / "code"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "train.py").write_text("lr = 3e-4\n")
    (root / "cfg.yaml").write_text("batch: 8\n")
    (root / ".gitignore").write_text("*.pt\nout/\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    (root / "train.py").write_text("lr = 3e-4\nclip = 1.0\n")
    (root / "vocab.bin").write_bytes(bytes(range(256)) * 8)
    git(root, "add", ".")
    git(root, "commit", "-qm", "clip gradients")
    return root


def _state(directory: Path) -> SourceState:
    found = read_source(directory)
    assert isinstance(found, SourceState), found
    return found


def test_a_clean_tree_is_a_commit_and_nothing_else(repository: Path) -> None:
    found = _state(repository)
    assert found.commit == git(repository, "rev-parse", "HEAD")
    assert (found.branch, found.patch, found.changed, found.untracked) == ("main", b"", (), ())
    assert not found.is_modified
    assert found.root == str(repository)


def test_what_differs_is_a_patch_that_git_applies_binary_files_included(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("lr = 9e-1\nclip = 1.0\n")
    (repository / "vocab.bin").write_bytes(bytes(range(255, -1, -1)) * 8)
    (repository / "cfg.yaml").unlink()
    os.symlink("train.py", repository / "new-tracked")
    git(repository, "add", "new-tracked")
    found = _state(repository)
    assert found.changed == ("cfg.yaml", "train.py", "vocab.bin")
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(repository), str(other))
    subprocess.run(("git", "apply", "-"), input=found.patch, cwd=other, check=True)
    assert (other / "train.py").read_text() == "lr = 9e-1\nclip = 1.0\n"
    assert (other / "vocab.bin").read_bytes() == (repository / "vocab.bin").read_bytes()
    assert not (other / "cfg.yaml").exists()
    assert [u.path for u in found.untracked] == ["new-tracked"]  # not in the commit: listed, not in the patch


def test_untracked_files_are_listed_with_sizes_and_ignored_ones_are_not(repository: Path) -> None:
    (repository / "notes.txt").write_text("12345")
    (repository / "big.pt").write_bytes(b"x" * 100)
    (repository / "out").mkdir()
    (repository / "out" / "log.txt").write_text("x")
    (repository / ".git" / "info" / "exclude").write_text("private*\n")
    (repository / "private-notes").write_text("x")
    found = _state(repository)
    assert [(u.path, u.size) for u in found.untracked] == [("notes.txt", 5)]
    assert found.num_untracked == 1


def test_reading_changes_no_byte_and_no_time_in_the_repository(repository: Path) -> None:
    (repository / "train.py").write_text("changed\n")
    # git itself reads files, so access times are not compared.
    before = {p: (*f[:4], *f[5:]) for p, f in fingerprint(repository).items()}
    _state(repository)
    history(repository, 5)
    assert {p: (*f[:4], *f[5:]) for p, f in fingerprint(repository).items()} == before


def test_a_directory_inside_the_work_tree_means_the_whole_of_it(repository: Path) -> None:
    (repository / "sub").mkdir()
    assert _state(repository / "sub").root == str(repository)


def test_a_detached_head_has_no_branch_and_a_worktree_has_its_own_head(repository: Path, tmp_path: Path) -> None:
    first = history(repository)[-1].commit
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "wt"), first)
    (tmp_path / "wt" / "train.py").write_text("changed\n")
    found = _state(tmp_path / "wt")
    assert (found.commit, found.branch, found.changed) == (first, "", ("train.py",))
    assert _state(repository).changed == ()


def test_history_names_commits_newest_first_with_their_files(repository: Path) -> None:
    newest, oldest = history(repository)
    assert (newest.subject, newest.files) == ("clip gradients", ("train.py", "vocab.bin"))
    assert (oldest.subject, oldest.files) == ("first", (".gitignore", "cfg.yaml", "train.py"))
    assert newest.commit == git(repository, "rev-parse", "HEAD")
    assert newest.time == int(git(repository, "log", "-1", "--format=%ct"))
    assert newest.author_date == git(repository, "log", "-1", "--format=%aI")
    assert history(repository, 1) == (newest,)
    assert history(repository, since=newest.time) == ()
    assert history(repository, since=oldest.time - 1) == (newest, oldest)


def test_history_survives_odd_subjects_merges_and_empty_commits(repository: Path) -> None:
    git(repository, "commit", "-q", "--allow-empty", "--allow-empty-message", "-m", "")
    git(repository, "checkout", "-q", "-b", "side", "HEAD~1")
    (repository / "naïve name\twith tab.py").write_text("x")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "odd \x1e subject | with; things")
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-edit", "side")
    found = {c.subject: c for c in history(repository)}
    assert len(found) == 5
    assert found[""].files == ()
    assert found["odd \x1e subject | with; things"].files == ("naïve name\twith tab.py",)
    assert found["Merge branch 'side'"].files == ("naïve name\twith tab.py",)


def test_old_bytes_and_differences_come_from_the_objects(repository: Path) -> None:
    newest, oldest = history(repository)
    assert file_at(repository, oldest.commit, "train.py") == b"lr = 3e-4\n"
    assert file_at(repository, newest.commit[:10], "train.py") == b"lr = 3e-4\nclip = 1.0\n"
    assert "+clip = 1.0" in diff_between(repository, oldest.commit, newest.commit)
    with pytest.raises(InputUnreadable):
        file_at(repository, newest.commit, "no-such-file")
    for hostile in ("--output=/tmp/x", "HEAD", "main", "$(touch x)", ""):
        with pytest.raises(InputUnreadable, match="not a commit hash"):
            file_at(repository, hostile, "train.py")


def test_a_secret_in_a_difference_or_a_remote_is_taken_out(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://ada:hunter2@example.org/x.git")
    (repository / "cfg.yaml").write_text("api_key: tiger42xx\n")
    git(repository, "commit", "-qam", "key")
    newest, older, *_ = history(repository)
    assert "tiger42xx" not in diff_between(repository, older.commit, newest.commit)
    assert _state(repository).remotes == (("origin", "https://<redacted>@example.org/x.git"),)


def test_a_submodule_is_known_by_the_commit_that_is_checked_out(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    (library / "lib.py").write_text("x = 1\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "library")
    git(repository, "submodule", "add", "-q", str(library), "lib")
    git(repository, "commit", "-qm", "with library")
    (only,) = _state(repository).submodules
    assert (only.path, only.recorded, only.checked_out) == ("lib", only.checked_out, only.recorded)
    assert only.is_modified is False
    assert not _state(repository).is_modified
    (repository / "lib" / "lib.py").write_text("x = 2\n")
    (only,) = _state(repository).submodules
    assert only.is_modified is True
    assert _state(repository).is_modified
    git(repository, "submodule", "deinit", "-q", "-f", "lib")
    (only,) = _state(repository).submodules
    assert isinstance(only.checked_out, NotMeasured)


def test_no_git_no_repository_and_no_commit_are_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "empty"
    bare.mkdir()
    found = read_source(bare)
    assert isinstance(found, NotMeasured)
    assert "not in a git repository" in found.not_measured
    git(bare, "init", "-q")
    found = read_source(bare)
    assert isinstance(found, NotMeasured)
    assert "no commit" in found.not_measured
    with pytest.raises(InputUnreadable):
        history(bare)
    (bare / ".git" / "HEAD").write_text("garbage")
    assert isinstance(read_source(bare), NotMeasured)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_source(bare)
    assert isinstance(found, NotMeasured)
    assert "git is not installed" in found.not_measured


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_repository_is_reported_and_never_trusted(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (repository, repository / ".git"):
        os.chown(path, 12345, 12345)
    found = read_source(repository)
    assert isinstance(found, NotMeasured)
    assert "another user (uid 12345)" in found.not_measured
    assert not (tmp_path / ".gitconfig").exists()


def test_the_operators_own_git_variables_do_not_redirect_the_reader(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert _state(repository).root == str(repository)


def test_git_lfs_files_are_compared_by_their_pointer_without_running_the_filter(repository: Path) -> None:
    import hashlib

    data = b"weights" * 100
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(data).hexdigest()}\nsize {len(data)}\n"
    )
    (repository / ".gitattributes").write_text("*.dat filter=lfs diff=lfs merge=lfs -text\n")
    (repository / "a.dat").write_text(pointer)
    (repository / "b.dat").write_text(pointer)
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "large files")
    (repository / "a.dat").write_bytes(data)
    (repository / "b.dat").write_bytes(b"other weights")
    found = _state(repository)
    assert found.changed == ("b.dat",)
    assert found.patch == b""
    assert found.notes == ("b.dat is stored through the filter 'lfs': it differs from its Git LFS pointer",)


def test_a_large_changed_file_is_named_and_not_put_into_the_patch(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spike.readers.source_tree.MAX_PATCH_FILE_BYTES", 1000)
    (repository / "vocab.bin").write_bytes(os.urandom(5000))
    (repository / "train.py").write_text("x\n")
    found = _state(repository)
    assert found.changed == ("train.py", "vocab.bin")
    assert b"vocab.bin" not in found.patch
    assert any("vocab.bin" in note for note in found.notes)


def _vectors(repository: Path, marker: Path) -> dict[str, list[tuple[str, str]]]:
    """Configuration of the repository that makes git run `marker-NAME`; `.gitattributes` names the drivers."""

    def tool(name: str) -> str:
        script = repository / ".git" / f"tool-{name}"
        script.write_text(f"#!/bin/sh\n: > {marker}-{name}\ncat\n")
        script.chmod(0o755)
        return str(script)

    included = repository / ".git" / "included"
    included.write_text(f"[core]\n\tfsmonitor = {tool('include')}\n")
    return {
        "fsmonitor": [("core.fsmonitor", tool("fsmonitor"))],
        "include": [("include.path", str(included))],
        "clean": [("filter.evil.clean", tool("clean")), ("filter.evil.required", "true")],
        "smudge": [("filter.evil.smudge", tool("smudge"))],
        "process": [("filter.evil.process", tool("process"))],
        "textconv": [("diff.evil.textconv", tool("textconv"))],
        "command": [("diff.evil.command", tool("command"))],
        "external": [("diff.external", tool("external"))],
        "pager": [("core.pager", tool("pager")), ("pager.diff", tool("pager")), ("pager.log", tool("pager"))],
        "sshcommand": [
            ("core.sshCommand", tool("sshcommand")),
            ("extensions.partialClone", "origin"),
            ("remote.origin.promisor", "true"),
            ("remote.origin.url", "ssh://localhost/nowhere"),
        ],
        "alias": [("alias.diff", f"!{tool('alias')}"), ("alias.log", f"!{tool('alias')}")],
    }


NAMES = [
    "fsmonitor",
    "include",
    "clean",
    "smudge",
    "process",
    "textconv",
    "command",
    "external",
    "pager",
    "sshcommand",
    "alias",
    "hooks",
    "hookspath",
    "worktree",
]


def _arm(repository: Path, marker: Path, name: str) -> None:
    if name == "hooks":
        hooks = repository / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for hook in (
            "post-index-change",
            "post-checkout",
            "pre-auto-gc",
            "reference-transaction",
            "fsmonitor-watchman",
        ):
            (hooks / hook).write_text(f"#!/bin/sh\n: > {marker}-hooks\n")
            (hooks / hook).chmod(0o755)
    elif name == "hookspath":
        elsewhere = repository / ".githooks"
        elsewhere.mkdir()
        (elsewhere / "post-index-change").write_text(f"#!/bin/sh\n: > {marker}-hookspath\n")
        (elsewhere / "post-index-change").chmod(0o755)
        git(repository, "config", "core.hooksPath", str(elsewhere))
    elif name == "worktree":
        git(repository, "config", "core.worktree", "/etc")
    else:
        for key, value in _vectors(repository, marker)[name]:
            git(repository, "config", key, value)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_a_hostile_configuration_names_is_started(repository: Path, tmp_path: Path, name: str) -> None:
    (repository / ".gitattributes").write_text("*.py filter=evil diff=evil\n*.yaml diff=evil\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "attributes")
    (repository / "train.py").write_text("changed = 1\n")
    (repository / "cfg.yaml").write_text("batch: 9\n")
    marker = tmp_path / "ran"
    _arm(repository, marker, name)
    found = _state(repository)
    newest, older, *_ = history(repository)
    file_at(repository, newest.commit, "train.py")
    diff_between(repository, older.commit, newest.commit)
    assert list(tmp_path.glob("ran-*")) == []
    assert found.root == str(repository)
    assert set(found.changed) == {"train.py", "cfg.yaml"}
    assert b"batch: 9" in found.patch


def test_the_vectors_are_real_where_git_is_used_without_care(repository: Path, tmp_path: Path) -> None:
    """The control: the same configuration does run when git reads it, so the test above can fail."""
    (repository / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "attributes")
    (repository / "train.py").write_text("changed = 1\n")
    marker = tmp_path / "ran"
    ran = []
    for name in ("fsmonitor", "include", "clean", "textconv", "command", "external", "hooks"):
        _arm(repository, marker, name)
        subprocess.run(("git", "status"), cwd=repository, capture_output=True)
        subprocess.run(("git", "diff"), cwd=repository, capture_output=True)
        if Path(f"{marker}-{name}").exists():
            ran.append(name)
        for key in git(repository, "config", "--local", "--name-only", "--list").splitlines():
            if key.startswith(("core.fsmonitor", "include.", "filter.", "diff.")):
                git(repository, "config", "--unset-all", key)
    assert set(ran) >= {"fsmonitor", "clean", "textconv", "command", "external"}


def test_a_hostile_submodule_starts_nothing(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    (library / "lib.py").write_text("x = 1\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "library")
    git(repository, "submodule", "add", "-q", str(library), "lib")
    git(repository, "commit", "-qm", "with library")
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\n: > {tmp_path}/ran-submodule\n")
    tool.chmod(0o755)
    git(repository / "lib", "config", "core.fsmonitor", str(tool))
    (repository / "lib" / "lib.py").write_text("x = 2\n")
    assert _state(repository).submodules[0].is_modified is True
    assert not (tmp_path / "ran-submodule").exists()
