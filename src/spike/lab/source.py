"""Which files make up the code of a trial? Another commit's, laid over the operator's tree, which stays as it is.

git runs over a repository of our own that only borrows the operator's objects, so that nothing that the
operator's configuration names (hooks, filters, monitors) can run. Untracked files (data, checkpoints) are untouched.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from spike.domain.errors import ExitCode, SpikeError

_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
_GITLINK = "160000"


@dataclass(frozen=True, slots=True)
class CodeState:
    """What has to change in the view so that it shows the wanted code."""

    root: str
    """Work tree of the operator's repository."""
    files: str
    """Directory with every tracked file of the wanted state."""
    absent: tuple[str, ...]
    """Absolute paths that are tracked now and that the wanted state lacks, and stale bytecode of replaced files."""


def work_tree(code: str) -> Path | None:
    """The git work tree that `code` lies in, or None."""
    here = Path(code)
    return next((place for place in (here, *here.parents) if (place / ".git").exists()), None)


def materialise(code: str, commit: str, patch: str, into: Path) -> CodeState:
    """Write the tracked files of `commit`, with `patch` applied, below `into`.

    Raises SpikeError (input unreadable) where there is no repository, the commit is not in it, the patch does not
    apply, or an object that lies elsewhere (Git LFS, submodule) is needed.
    """
    root = work_tree(code)
    if root is None:
        raise _refused(f"{code} is no git work tree, so the code of commit {commit} cannot be had")
    room = CleanRoom(root, into / "git")
    files = into / "files"
    files.mkdir(parents=True, exist_ok=True)
    tree = room.resolve(commit)
    wanted = room.listing(tree)
    present = room.listing(room.resolve(room.head())) if room.head() else {}
    _refuse_moved_submodules(wanted, present, commit)
    room.check_out(tree, files)
    if patch.strip():
        room.apply(patch, files, commit)
    tracked = {path for path, (mode, _) in present.items() if mode != _GITLINK} | set(room.staged())
    now = {str(p.relative_to(files)) for p in files.rglob("*") if p.is_symlink() or p.is_file()}
    _fetch_large_files(files, now, root, room.common)
    absent = [str(root / path) for path in sorted(tracked - now)]
    stale = [str(cached) for path in sorted(now) for cached in _bytecode(root / path)]
    return CodeState(str(root), str(files), tuple(absent + stale))


def _refused(message: str) -> SpikeError:
    return SpikeError(
        message,
        hint="point `code:` in spike.yaml at the repository, and fetch the commit",
        exit_code=ExitCode.UNREADABLE,
    )


def _refuse_moved_submodules(
    wanted: dict[str, tuple[str, str]], present: dict[str, tuple[str, str]], commit: str
) -> None:
    links = {path for tree in (wanted, present) for path, (mode, _) in tree.items() if mode == _GITLINK}
    moved = sorted(path for path in links if wanted.get(path) != present.get(path))
    if moved:
        raise _refused(f"commit {commit} needs another commit of the submodule {moved[0]}, which a trial cannot switch")


def _bytecode(source: Path) -> list[Path]:
    """Cached bytecode of a file that is replaced; it must not stand in for the new one."""
    if source.suffix != ".py":
        return []
    return sorted((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"))


def _fetch_large_files(files: Path, paths: set[str], root: Path, common: Path) -> None:
    """Replace Git LFS pointers by the present file or the stored object with the same content."""
    for relative in sorted(paths):
        path = files / relative
        if path.is_symlink() or path.stat().st_size > _POINTER_BYTES:
            continue
        text = path.read_bytes()
        if not text.startswith(_POINTER):
            continue
        oid = next((line[11:] for line in text.decode().splitlines() if line.startswith("oid sha256:")), "")
        stored = common / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
        present = root / relative
        path.unlink()
        if stored.is_file():
            path.symlink_to(stored)
        elif not (present.is_file() and _sha256(present) == oid):
            raise _refused(f"{relative} is kept in Git LFS, and its object {oid[:12]} is not on this machine")


def _sha256(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class CleanRoom:
    """A bare repository without configuration that reads the operator's objects."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.root = root
        self.own = _git_directory(root)
        """The operator's git directory of this work tree."""
        self.common = _common_directory(self.own)
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["git", "init", "--quiet", "--bare", "--template=", f"--object-format={self._format()}", str(directory)],
            env=self._environment(),
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        (directory / "objects" / "info").mkdir(exist_ok=True)
        (directory / "objects" / "info" / "alternates").write_text(f"{self.common / 'objects'}\n")

    def _format(self) -> str:
        """The hash of the operator's repository, read as text: no git runs over its configuration."""
        config = self.common / "config"
        text = config.read_text(errors="replace").lower() if config.is_file() else ""
        return "sha256" if "objectformat" in text and "sha256" in text.replace(" ", "") else "sha1"

    @staticmethod
    def _environment() -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return {
            **kept,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
        }

    def run(self, *arguments: str, work_tree: Path | None = None, feed: bytes | None = None, index: str = "") -> bytes:
        """Output of one git command; SpikeError with git's own words where it fails."""
        environment = self._environment() | {"GIT_DIR": str(self._directory)}
        if work_tree is not None:
            environment["GIT_WORK_TREE"] = str(work_tree)
        if index:
            environment["GIT_INDEX_FILE"] = index
        done = subprocess.run(["git", *arguments], env=environment, input=feed or b"", capture_output=True, check=False)
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise _refused(f"git {arguments[0]} over {self.root}: {words[-1]}")
        return done.stdout

    def head(self) -> str:
        """The commit that the work tree has checked out, "" before the first one; read without running git."""
        text = (self.own / "HEAD").read_text().strip()
        if not text.startswith("ref: "):
            return text
        name = text.removeprefix("ref: ")
        for place in (self.own / name, self.common / name):
            if place.is_file():
                return place.read_text().strip()
        packed = self.common / "packed-refs"
        lines = packed.read_text().splitlines() if packed.is_file() else []
        return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")

    def resolve(self, commit: str) -> str:
        """The tree of a commit, given by (a unique beginning of) its hash."""
        if not commit or set(commit) - set("0123456789abcdefABCDEF"):
            raise _refused(f"{commit!r} is no commit hash; names of branches and tags move")
        return self.run("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}").decode().strip()

    def listing(self, tree: str) -> dict[str, tuple[str, str]]:
        """(mode, object) by path of everything in a tree."""
        found = {}
        for entry in self.run("ls-tree", "-r", "-z", tree).split(b"\0"):
            if entry:
                facts, path = entry.split(b"\t", 1)
                mode, _, name = facts.decode().split()
                found[os.fsdecode(path)] = (mode, name)
        return found

    def staged(self) -> list[str]:
        """Paths in the operator's index."""
        index = self.own / "index"
        if not index.is_file():
            return []
        lines = self.run("ls-files", "-z", "--stage", index=str(index)).split(b"\0")
        facts = [line.split(b"\t", 1) for line in lines if line]
        return [os.fsdecode(path) for mode, path in facts if not mode.startswith(_GITLINK.encode())]

    def check_out(self, tree: str, files: Path) -> None:
        """Every tracked file of `tree` below `files`, as a plain checkout would write it."""
        self.run("read-tree", tree)
        self.run("checkout-index", "--all", "--force", work_tree=files)

    def apply(self, patch: str, files: Path, commit: str) -> None:
        """The recorded uncommitted changes on top."""
        try:
            self.run("-C", str(files), "apply", "--whitespace=nowarn", "-", work_tree=files, feed=patch.encode())
        except SpikeError as error:
            raise _refused(f"the uncommitted changes of the run do not apply to commit {commit}: {error}") from error


def _git_directory(root: Path) -> Path:
    """`.git` of a work tree: a directory, or a file that names one (linked work trees, submodules)."""
    entry = root / ".git"
    if entry.is_dir():
        return entry
    text = entry.read_text().strip()
    return (root / text.removeprefix("gitdir:").strip()).resolve()


def _common_directory(own: Path) -> Path:
    shared = own / "commondir"
    return (own / shared.read_text().strip()).resolve() if shared.is_file() else own
