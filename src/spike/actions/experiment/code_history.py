"""Which code wrote the last good checkpoint, and which commits came after it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from spike.actions.experiment.bench import Unavailable
from spike.actions.experiment.investigation import Investigation
from spike.domain.case import PinnedCheckpoint
from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.domain.remote import is_url
from spike.domain.source import CommitFacts
from spike.readers.source_tree import file_at, history, read_source

HISTORY_COMMITS = 200


@dataclass(frozen=True, slots=True)
class CodeHistory:
    """Commits of the run's code around the last good checkpoint."""

    root: str
    """Of the work tree."""
    head: str
    after: tuple[CommitFacts, ...]
    """Commits made after the last good checkpoint was written, newest first."""
    before: CommitFacts | None
    """The newest commit that the last good checkpoint can have been written with."""
    patched: tuple[str, ...]
    """Tracked files with uncommitted changes on top of the newest commit."""

    @property
    def is_patched(self) -> bool:
        """There are uncommitted changes on top of the newest commit."""
        return bool(self.patched)


def code_history(investigation: Investigation) -> CodeHistory | NotMeasured:
    """The history, from commit times against the checkpoint's modification time.

    Commit times are what the committer's clock said, and a copied run has the times of the copy; a trial at the
    earlier commit is what decides. Where times cannot tell, the oldest commit that has the launched script is taken
    for the earlier code, and the bisection between them finds the one that matters. Where nothing but uncommitted
    changes came after, the newest commit without them is the earlier code.
    """
    directory = Path(investigation.run.code or investigation.run.directory)
    state = read_source(directory)
    if isinstance(state, NotMeasured):
        return state
    commits = history(directory, HISTORY_COMMITS)
    written = _written(investigation)
    # Commit times are whole seconds: one made in the second of the checkpoint may be younger.
    after = tuple(c for c in commits if written is not None and c.time >= int(written))
    before = next((c for c in commits if written is not None and c.time < int(written)), None)
    patched = state.changed if state.patch else ()
    is_older_than_all_code = before is None and bool(after)
    if written is None or is_older_than_all_code or (not after and not patched and _checked(investigation) == "yes"):
        reachable = commits[: _first_with_script(investigation, directory, commits) + 1]
        after, before = reachable[:-1], reachable[-1] if len(reachable) > 1 else None
    if before is None and patched and not after:
        before = next(iter(commits), None)
    return CodeHistory(state.root, state.commit, after, before, patched)


def _written(investigation: Investigation) -> float | None:
    """When the last good checkpoint was written, or None where the times are those of a copy."""
    facts = investigation.case.facts
    pins = [p for p in (facts.last_good, *facts.earlier, *facts.suspect) if p is not None]
    known = {p.step: _written_at(investigation, p) for p in pins}
    times = {step: when for step, when in known.items() if when is not None}
    ordered = [times[step] for step in sorted(times)]
    if any(a >= b for a, b in pairwise(ordered)):
        return None
    return times.get(investigation.last_good.step)


def _written_at(investigation: Investigation, pin: PinnedCheckpoint) -> float | None:
    """The original's modification time; the copy of an object has the time at which its store got it."""
    if is_url(pin.original):
        copy = investigation.pinned_path(pin)
        return max((p.stat().st_mtime for p in (copy, *copy.rglob("*")) if p.is_file()), default=None)
    original = Path(pin.original)
    return original.stat().st_mtime if original.exists() else None


def _checked(investigation: Investigation) -> str:
    fact = investigation.checks.fact("code.changed") if investigation.checks is not None else None
    return fact.value if fact is not None else ""


def _first_with_script(investigation: Investigation, directory: Path, commits: Sequence[CommitFacts]) -> int:
    """Position of the oldest commit (newest first) that holds every script the launch command names."""
    scripts = [word for word in investigation.run.launch.split() if word.endswith(".py") and not word.startswith("/")]
    found = 0
    for position, commit in enumerate(commits):
        try:
            for script in scripts:
                file_at(directory, commit.commit, script)
        except (InputUnreadable, ValueError):
            break
        found = position
    return found


def earlier_commit(investigation: Investigation) -> str:
    """The commit to hold the recorded code against. Raises `Unavailable` where nothing was changed."""
    found = code_history(investigation)
    if isinstance(found, NotMeasured):
        raise Unavailable(found.not_measured)
    if found.before is None:
        raise Unavailable("no commit is known that the last good checkpoint could have been written with")
    if not found.after and not found.is_patched:
        raise Unavailable("the code was not changed since the last good checkpoint was written")
    return found.before.commit
