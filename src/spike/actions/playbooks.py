"""Which hypotheses does this run's bisect know? The shipped playbooks, and the operator's own."""

from __future__ import annotations

from pathlib import Path

from spike.actions.experiment.experiments import names
from spike.domain.facts import VOCABULARY
from spike.domain.playbook import Playbook
from spike.domain.run import Run
from spike.knowledge.playbooks import load_playbooks
from spike.knowledge.shipped import shipped_directory


def known_playbooks(run: Run | None = None) -> tuple[Playbook, ...]:
    """Every playbook, linted against the experiments and facts that exist. Raises `SpikeError` with all mistakes."""
    directories = [shipped_directory("playbooks")]
    if run is not None and run.playbooks:
        directories.append(Path(run.playbooks))
    return load_playbooks(directories, known_trials=names(), known_facts=VOCABULARY)
