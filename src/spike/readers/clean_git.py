"""How can git look at somebody's repository without running anything that its configuration names?

core.fsmonitor, clean, smudge and textconv filters, external diffs and hooks all start programs, some of them under
`status` and `diff` whatever is switched off on the command line. So git never sees the repository's configuration:
it works in an empty repository of ours that borrows the objects (objects/info/alternates) and looks at the
operator's work tree. Only `rev-parse` and `config --file` are asked of the original; they start nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spike.domain.errors import InputUnreadable

TIMEOUT_S = 300.0
_SAFE_OPTIONS = ("-c", "core.quotePath=false", "-c", "core.hooksPath=/dev/null", "--no-pager", "--literal-pathspecs")
DIFF_OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=all")


@dataclass(frozen=True, slots=True)
class CleanGit:
    """git over a borrowed object store. Commands are argument lists; user text goes behind `--end-of-options`."""

    root: Path
    """The operator's work tree."""
    head: str
    branch: str
    git_dir: Path
    """The repository's own (the common one of all its work trees), for data files only."""
    room: Path
    """Ours."""

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """What the command printed. Raises `InputUnreadable` with git's own words where it fails."""
        environment = _environment(GIT_DIR=str(self.room), GIT_WORK_TREE=str(self.root))
        environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(self.room)}
        return _git((*_SAFE_OPTIONS, *arguments), cwd=self.root, environment=environment, stdin=stdin)


@contextmanager
def clean_git(directory: Path) -> Iterator[CleanGit]:
    """A clean room over the repository that `directory` belongs to.

    Raises `InputUnreadable` where git is missing, there is no repository or no commit, or it belongs to somebody
    else ("dubious ownership"; that check is git's own and stays on).
    """
    if shutil.which("git") is None:
        raise InputUnreadable("git is not installed")
    root = _work_tree(directory)
    common, head, branch = _ask_original(root)
    with tempfile.TemporaryDirectory(prefix="spike-git-") as place:
        room = Path(place) / "room.git"
        form = "sha256" if len(head) == 64 else "sha1"
        _git(
            ("init", "--quiet", "--bare", "--template=", f"--object-format={form}", str(room)),
            cwd=Path(place),
            environment=_environment(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull),
        )
        (room / "objects" / "info").mkdir(parents=True, exist_ok=True)
        (room / "objects" / "info" / "alternates").write_bytes(os.fsencode(common / "objects") + b"\n")
        for data_file in ("info/exclude", "shallow"):
            _copy_data(common / data_file, room / data_file)
        git = CleanGit(root, head, branch, common, room)
        git.run("read-tree", "--end-of-options", head)
        yield git


def _work_tree(directory: Path) -> Path:
    """The nearest directory with a `.git`; core.worktree of a hostile configuration has no say in it."""
    here = directory.resolve()
    for candidate in (here, *here.parents):
        if (candidate / ".git").exists():
            return candidate
    raise InputUnreadable(f"{directory} is not in a git repository")


def _ask_original(root: Path) -> tuple[Path, str, str]:
    """(common git dir, HEAD, branch) in the operator's own git environment.

    HEAD is resolved and not looked up: in a partial clone a missing commit would be fetched, by a program of the
    repository's choice.
    """
    try:
        text = _git(("rev-parse", "--git-common-dir"), cwd=root, environment=_environment())
    except InputUnreadable as error:
        if "dubious ownership" in error.message:
            owner = root.stat().st_uid
            raise InputUnreadable(
                f"{root} belongs to another user (uid {owner}), and git refuses such repositories",
                hint=f"run as that user, or: git config --global --add safe.directory {root}",
            ) from error
        raise
    try:
        head = _git(("rev-parse", "--verify", "HEAD"), cwd=root, environment=_environment())
    except InputUnreadable as error:
        raise InputUnreadable(f"the repository {root} has no commit that can be read") from error
    name = _git(("rev-parse", "--abbrev-ref", "HEAD"), cwd=root, environment=_environment())
    branch = os.fsdecode(name).strip()
    common = (root / os.fsdecode(text).strip()).resolve()
    return common, head.decode().strip(), "" if branch == "HEAD" else branch


def _copy_data(source: Path, target: Path) -> None:
    """Ignore patterns and the boundary of a shallow clone are data, and needed for a true answer."""
    try:
        content = source.read_bytes()
    except OSError:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def _environment(**extra: str) -> dict[str, str]:
    """The operator's environment without any GIT_ variable that would redirect git, and in English."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    fixed = {
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ATTR_NOSYSTEM": "1",
    }
    return inherited | fixed | extra


def _git(arguments: tuple[str, ...], *, cwd: Path, environment: dict[str, str], stdin: bytes = b"") -> bytes:
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=cwd, env=environment, input=stdin, capture_output=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise InputUnreadable(f"git took longer than {TIMEOUT_S:.0f} s in {cwd}") from error
    except OSError as error:
        raise InputUnreadable(f"git cannot be started in {cwd}: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InputUnreadable(f"git in {cwd}: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout
