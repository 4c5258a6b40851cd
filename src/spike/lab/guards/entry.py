"""What does the guarded process have to know before it becomes the training command? One JSON object on stdin.

It travels through a pipe and never touches the disk, because the environment in it holds the operator's secrets.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Everything that `enter` does, in the order in which it does it."""

    guard: str
    """"overlay", "worktree+landlock" or "audit-hook"."""
    parent: int
    """Process id of spike; the trial ends when it does."""
    status_fd: int
    """Write end of the pipe that carries events back."""
    argv: list[str]
    cwd: str
    env: dict[str, str]
    grace_s: float = 10.0
    """Seconds between asking the tree to end and killing it."""
    user_namespace: bool = False
    pid_namespace: bool = False
    directory: str = ""
    """The trial directory: the only real place that stays writable."""
    scratch: str = ""
    """Real directory for the writes that the trial believes to make elsewhere."""
    roots: tuple[str, ...] = ()
    """Directories that must be copy-on-write, parents before children."""
    soft_roots: tuple[str, ...] = ()
    """Further ones, which are read-only where that is refused."""
    readonly: tuple[str, ...] = ()
    """Directories that the trial may read and never change: the pinned evidence."""
    through: tuple[str, ...] = ()
    """Directories that stay shared and writable because sockets of services live there."""
    place: tuple[tuple[str, str], ...] = ()
    """(source, destination): the destination becomes exactly the source."""
    merge: tuple[tuple[str, str], ...] = ()
    """(source tree, destination): the files of the tree replace those of the same name."""
    hide: tuple[str, ...] = ()
    """Paths that are absent in the view."""
    again: bool = False
    """True where an earlier command has already run in this view, and what it wrote on disk is to be seen."""
    keep: tuple[str, ...] = ()
    """Name patterns of files that are brought back from memory at the end."""
    keep_below: tuple[str, ...] = ()
    """Files and directories whose files are brought back whatever their name."""

    def to_json(self) -> bytes:
        """The bytes that go through the pipe."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Entry:
        """The object back; ValueError where the pipe was cut short."""
        raw = json.loads(text)
        pairs = {name: tuple((a, b) for a, b in raw[name]) for name in ("place", "merge")}
        names = ("roots", "soft_roots", "readonly", "through", "hide", "keep", "keep_below")
        return cls(**{**raw, **pairs, **{name: tuple(raw[name]) for name in names}})
