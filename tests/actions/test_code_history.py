"""Which code is called the earlier one? On real repositories, with real modification times."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import git
import pytest

from spike.actions.experiment.bench import Unavailable
from spike.actions.experiment.code_history import CodeHistory, code_history, earlier_commit
from spike.domain.case import PinnedCheckpoint

AUTHOR = git.Actor("Robin Operator", "robin@example.org")


class Repository:
    """A run's repository whose commits and checkpoints carry the times that a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git = git.Repo.init(root, initial_branch="main")
        (root / ".gitignore").write_text("*.pt\n")

    def commit(self, text: str, at: int) -> str:
        (self.root / "config.yaml").write_text(text)
        self.git.git.add("--all")
        made = self.git.index.commit(
            text, author=AUTHOR, committer=AUTHOR, author_date=f"{at} +0000", commit_date=f"{at} +0000"
        )
        return str(made.hexsha)

    def investigation(self, *written: int) -> SimpleNamespace:
        pins = []
        for number, at in enumerate(written, 1):
            path = self.root / f"step-{number}.pt"
            path.write_bytes(b"x")
            os.utime(path, (at, at))
            pins.append(PinnedCheckpoint(number, str(path), path.name, "copy"))
        facts = SimpleNamespace(last_good=pins[-1], earlier=tuple(pins[:-1]), suspect=())
        return SimpleNamespace(
            run=SimpleNamespace(code="", directory=str(self.root), launch="python train.py"),
            case=SimpleNamespace(facts=facts),
            last_good=pins[-1],
            checks=SimpleNamespace(fact=lambda _name: SimpleNamespace(value="yes")),
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def _history(investigation: SimpleNamespace) -> CodeHistory:
    found = code_history(investigation)  # type: ignore[arg-type]
    assert isinstance(found, CodeHistory)
    return found


def test_a_commit_after_the_checkpoint_is_the_change_and_the_one_before_it_the_earlier_code(
    repository: Repository,
) -> None:
    first, second = repository.commit("lr: 1", 1000), repository.commit("lr: 2", 3000)
    found = _history(repository.investigation(1500, 2000))
    assert [c.commit for c in found.after] == [second]
    assert found.before is not None
    assert found.before.commit == first
    assert not found.is_patched


def test_with_uncommitted_changes_alone_the_newest_commit_is_the_earlier_code(repository: Repository) -> None:
    only = repository.commit("lr: 1", 1000)
    (repository.root / "config.yaml").write_text("lr: 50")
    investigation = repository.investigation(1500, 2000)
    found = _history(investigation)
    assert (found.after, found.patched) == ((), ("config.yaml",))
    assert earlier_commit(investigation) == only  # type: ignore[arg-type]


def test_of_a_copied_run_whose_times_say_nothing_the_only_commit_still_serves_below_a_patch(
    repository: Repository,
) -> None:
    only = repository.commit("lr: 1", 9000)
    (repository.root / "config.yaml").write_text("lr: 50")
    assert earlier_commit(repository.investigation(1500, 2000)) == only  # type: ignore[arg-type]


def test_code_that_nobody_touched_has_no_earlier_commit_to_try(repository: Repository) -> None:
    repository.commit("lr: 1", 1000)
    with pytest.raises(Unavailable, match=r"was not changed|no commit is known"):
        earlier_commit(repository.investigation(1500, 2000))  # type: ignore[arg-type]
