"""Which code was running? Facts about a work tree and its history."""

from __future__ import annotations

from dataclasses import dataclass

from spike.domain.measured import NotMeasured


@dataclass(frozen=True, slots=True)
class UntrackedFile:
    """A file that git neither tracks nor ignores: it may be code that ran."""

    path: str
    """Relative to the work tree; a name ending in "/" is a nested repository."""
    size: int


@dataclass(frozen=True, slots=True)
class Submodule:
    """Another repository at a path of this one."""

    path: str
    recorded: str
    """Commit that this repository asks for."""
    checked_out: str | NotMeasured
    """Commit that is there."""
    is_modified: bool | NotMeasured
    """True where tracked files differ from that commit."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The code as it lay on disk: a commit and what differs from it."""

    root: str
    """Absolute path of the work tree."""
    commit: str
    branch: str
    """"" where HEAD is detached."""
    remotes: tuple[tuple[str, str], ...]
    """(name, URL), secrets taken out."""
    patch: bytes
    """`git diff --binary` from the commit to the work tree, as git wrote it; b"" where nothing differs."""
    patch_sha256: str
    """Of `patch` before anything was taken out of it."""
    changed: tuple[str, ...]
    """Tracked files that differ from the commit, relative to the work tree."""
    untracked: tuple[UntrackedFile, ...]
    num_untracked: int
    """How many there are; `untracked` lists the first thousand."""
    submodules: tuple[Submodule, ...] = ()
    notes: tuple[str, ...] = ()
    """What the patch cannot hold, one sentence each."""

    @property
    def is_modified(self) -> bool:
        """True where tracked files differ from the commit."""
        return bool(self.changed) or any(s.is_modified is True for s in self.submodules)


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """One commit, as `git log` tells it."""

    commit: str
    """Full hash."""
    time: int
    """When it was committed, by the committer's clock, in Unix seconds."""
    author_date: str
    """ISO 8601 with the author's offset."""
    subject: str
    files: tuple[str, ...]
    """Paths that it touched, against its first parent."""
