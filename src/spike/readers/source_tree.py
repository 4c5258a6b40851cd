"""What code lies in this directory, what differs from its commit, and how did it get there?

Nothing that the repository's configuration names is started (`clean_git`), and no file of the work tree is
changed. What git ignores is not listed: it is not code by the project's own word.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.domain.redaction import redact
from spike.domain.source import CommitFacts, SourceState, Submodule, UntrackedFile
from spike.readers.clean_git import DIFF_OPTIONS, CleanGit, clean_git

MAX_UNTRACKED = 1000
MAX_PATCH_FILE_BYTES = 16 << 20
"""A tracked file larger than this is data; it is named and not put into the patch."""
_NAMES_A_CALL = 500
"""Command lines have a limit; patches can be joined."""
_LFS_POINTER = re.compile(rb"^version https://git-lfs[^\n]*\n(?:[^\n]*\n)*?oid sha256:([0-9a-f]{64})\n")
_GITLINK = "160000"


def read_source(directory: Path) -> SourceState | NotMeasured:
    """The code state of the repository that `directory` is in, or the reason why there is none."""
    try:
        with clean_git(directory) as git:
            return _read(git)
    except InputUnreadable as error:
        return NotMeasured(error.message)


def history(directory: Path, limit: int = 50, *, since: float | None = None) -> tuple[CommitFacts, ...]:
    """The newest `limit` commits reachable from HEAD, newest first; of those, the ones after `since` (Unix seconds).

    Raises `InputUnreadable` where there is no readable history.
    """
    with clean_git(directory) as git:
        options = ("-z", "--format=%H%x00%ct%x00%aI%x00%s", f"--max-count={limit}")
        text = git.run("log", *options, "--end-of-options", git.head)
        fields = os.fsdecode(text).split("\0")  # an empty subject is a field too
        rows = [tuple(fields[i : i + 4]) for i in range(0, len(fields) - 3, 4)]
        files = _files_of(git, [row[0] for row in rows])
        return tuple(
            CommitFacts(commit, int(time), date, redact(subject), files.get(commit, ()))
            for commit, time, date, subject in rows
            if since is None or int(time) > since
        )


def file_at(directory: Path, commit: str, path: str) -> bytes:
    """The bytes of `path` (relative to the work tree) in `commit`. Raises `InputUnreadable` where it is not there."""
    with clean_git(directory) as git:
        return git.run("cat-file", "blob", "--end-of-options", f"{_full_hash(git, commit)}:{path}")


def diff_between(directory: Path, a: str, b: str) -> str:
    """The textual difference from commit `a` to commit `b`, secrets taken out. Raises `InputUnreadable`."""
    with clean_git(directory) as git:
        ends = (_full_hash(git, a), _full_hash(git, b))
        text = git.run("diff", *DIFF_OPTIONS, "--end-of-options", *ends, "--")
    return redact(text.decode("utf-8", "replace"))


def _read(git: CleanGit) -> SourceState:
    changed = _names(git.run("diff", *DIFF_OPTIONS, "--name-only", "-z", git.head, "--"))
    in_patch, notes, unchanged = _patchable(git, changed)
    patch = b"".join(
        git.run("diff", *DIFF_OPTIONS, "--binary", "--full-index", git.head, "--", *in_patch[i : i + _NAMES_A_CALL])
        for i in range(0, len(in_patch), _NAMES_A_CALL)
    )
    untracked = _names(git.run("ls-files", "--others", "--exclude-standard", "-z"))
    return SourceState(
        root=str(git.root),
        commit=git.head,
        branch=git.branch,
        remotes=_remotes(git),
        patch=patch,
        patch_sha256=hashlib.sha256(patch).hexdigest(),
        changed=tuple(name for name in changed if name not in unchanged),
        untracked=tuple(UntrackedFile(n, _size(git.root / n)) for n in untracked[:MAX_UNTRACKED]),
        num_untracked=len(untracked),
        submodules=_submodules(git),
        notes=notes,
    )


def _patchable(git: CleanGit, changed: list[str]) -> tuple[list[str], tuple[str, ...], frozenset[str]]:
    """(files for the patch, notes on those left out, files that only look changed).

    A file with a filter attribute (Git LFS) is stored as something else than what lies on disk; the filter is a
    program of the repository's choice and is not run.
    """
    filters = _filters(git, changed)
    keep: list[str] = []
    notes: list[str] = []
    same: set[str] = set()
    for name in changed:
        size = _size(git.root / name)
        if name in filters:
            verdict = _lfs_verdict(git, name)
            if verdict == "same":
                same.add(name)
            else:
                notes.append(f"{name} is stored through the filter {filters[name]!r}: {verdict}")
        elif size > MAX_PATCH_FILE_BYTES:
            notes.append(f"{name} differs and has {size} bytes: named, not in the patch")
        else:
            keep.append(name)
    return keep, tuple(notes), frozenset(same)


def _filters(git: CleanGit, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    stdin = b"".join(os.fsencode(name) + b"\0" for name in names)
    fields = _names(git.run("check-attr", "-z", "--stdin", "filter", stdin=stdin))
    rows = zip(fields[0::3], fields[2::3], strict=False)
    return {name: value for name, value in rows if value not in ("unspecified", "unset", "")}


def _lfs_verdict(git: CleanGit, name: str) -> str:
    """ "same" where the file on disk is the one that its Git LFS pointer names."""
    try:
        pointer = _LFS_POINTER.match(git.run("cat-file", "blob", "--end-of-options", f"{git.head}:{name}"))
    except InputUnreadable:
        return "it is new"
    if pointer is None:
        return "its filter was not run, so whether it differs is not known"
    path = git.root / name
    if path.is_symlink() or not path.is_file():
        return "it is not there as a file"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "same" if found == pointer[1].decode() else "it differs from its Git LFS pointer"


def _submodules(git: CleanGit) -> tuple[Submodule, ...]:
    rows = _names(git.run("ls-tree", "-r", "-z", "--full-tree", "--end-of-options", git.head))
    found = []
    for row in rows:
        meta, _, path = row.partition("\t")
        mode, _kind, commit = meta.split(" ")[:3]
        if mode == _GITLINK:
            found.append(_submodule(git.root, path, commit))
    return tuple(found)


def _submodule(root: Path, path: str, recorded: str) -> Submodule:
    place = root / path
    if not (place / ".git").exists() or place.is_symlink():
        absent = NotMeasured(f"{path} is not checked out")
        return Submodule(path, recorded, absent, absent)
    state = read_source(place)
    if isinstance(state, NotMeasured):
        return Submodule(path, recorded, state, state)
    return Submodule(path, recorded, state.commit, state.is_modified)


def _remotes(git: CleanGit) -> tuple[tuple[str, str], ...]:
    try:
        pattern = r"^remote\..*\.url$"
        text = git.run("config", "--file", str(git.git_dir / "config"), "-z", "--get-regexp", pattern)
    except InputUnreadable:  # none is set
        return ()
    rows = (entry.partition("\n") for entry in _names(text))
    return tuple((key.removeprefix("remote.").removesuffix(".url"), redact(url)) for key, _, url in rows)


def _files_of(git: CleanGit, hashes: list[str]) -> dict[str, tuple[str, ...]]:
    """Files that each commit touched; `diff-tree --stdin` prints a commit's hash before its files."""
    options = ("-r", "--root", "-m", "--first-parent", "--no-renames", "--name-only", "-z", "--stdin")
    fields = _names(git.run("diff-tree", *options, stdin="".join(f"{h}\n" for h in hashes).encode()))
    files: dict[str, list[str]] = {}
    expected = set(hashes)
    current: list[str] = []
    for field in fields:
        if field in expected:
            expected.discard(field)
            current = files.setdefault(field, [])
        else:
            current.append(field)
    return {commit: tuple(names) for commit, names in files.items()}


def _full_hash(git: CleanGit, commit: str) -> str:
    """Commits are named by hash, whole or abbreviated; the clean room has no branches, and needs none."""
    if not re.fullmatch(r"[0-9a-fA-F]{4,64}", commit):
        raise InputUnreadable(f"{commit!r} is not a commit hash", hint="git log --oneline")
    return git.run("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}").decode().strip()


def _names(text: bytes) -> list[str]:
    return [os.fsdecode(name) for name in text.split(b"\0") if name]


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
