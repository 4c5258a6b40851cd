"""Where exactly? From a confirmed cause to samples, module, tensor, rank, commit, file or configuration key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from spike.actions.experiment.bench import Bench
from spike.actions.experiment.code_history import HISTORY_COMMITS, CodeHistory, code_history
from spike.actions.experiment.suspect_samples import Located, samples
from spike.domain.eliminate import Evidence
from spike.domain.errors import InputUnreadable
from spike.domain.facts import NOT_MEASURED
from spike.domain.measured import NotMeasured
from spike.domain.playbook import Locality, Playbook
from spike.domain.source import CommitFacts
from spike.domain.trial import Factor, Intervention, OutcomeKind
from spike.domain.verdict import Finding, Place, Strength
from spike.readers.source_tree import file_at, history

MAX_COMMIT_TRIALS = 8


def localise(bench: Bench, playbook: Playbook, evidence: Evidence) -> Located:
    """Everything that this playbook wants to know about the place; what cannot be found stays empty."""
    located = Located(_from_facts(playbook, evidence))
    for locality in playbook.localise:
        step = _LOCALISERS.get(locality)
        if step is not None:
            located = step(bench, evidence, located)
    return located


def _from_facts(playbook: Playbook, evidence: Evidence) -> Place:
    """The places that the playbook's own measured facts name, the first one of each kind."""
    wanted = [*playbook.facts, *playbook.supported_by]
    for way in playbook.confirm:
        wanted += way.facts
    place = Place()
    for name, values in wanted:
        fact = evidence.facts.get(name)
        if fact is None or fact.value == NOT_MEASURED or fact.value not in values:
            continue
        place = _merge(place, fact.where)
    return place


def _merge(first: Place, second: Place) -> Place:
    return Place(
        samples=first.samples or second.samples,
        rank=first.rank if first.rank is not None else second.rank,
        module=first.module or second.module,
        tensor=first.tensor or second.tensor,
        commit=first.commit or second.commit,
        file=first.file or second.file,
        key=first.key or second.key,
    )


def _module(bench: Bench, _evidence: Evidence, located: Located) -> Located:
    performed = bench.baseline.performed
    for trace in performed.run.traces:
        for facts in trace.modules:
            name = facts.first_nonfinite_forward or facts.first_nonfinite_backward
            if not name:
                continue
            way = "forward" if facts.first_nonfinite_forward else "backward"
            text = (
                f"the first non-finite value of step {facts.step} appears in {name} ({way}, rank {trace.process.rank})"
            )
            finding = Finding(text, Strength.OBSERVED, (performed.id,))
            return Located(replace(located.place, module=name), (*located.findings, finding))
    return located


def _commit(bench: Bench, evidence: Evidence, located: Located) -> Located:
    """The first commit whose code shows the incident, by bisection over those after the last good checkpoint.

    Uncommitted changes lie on top of the newest commit; they are the change where that commit alone does not show it.
    """
    if evidence.decided("other-commit") is not OutcomeKind.ABSENT:
        return located
    found = code_history(bench.investigation)
    if isinstance(found, NotMeasured):
        return located
    trial = evidence.trial_ids.get("other-commit", "other-commit")
    if not found.after:
        return _uncommitted(found, found.before, (trial,), located) if found.is_patched else located
    commits = list(reversed(found.after))  # oldest first; the code before them is known to be good
    low, high = 0, len(commits) - 1
    trials: list[str] = []
    if found.is_patched and _commit_outcome(bench, commits[high], trials) is OutcomeKind.ABSENT:
        return _uncommitted(found, commits[high], (*trials, trial), located)
    while low < high and len(trials) < MAX_COMMIT_TRIALS:
        middle = (low + high) // 2
        kind = _commit_outcome(bench, commits[middle], trials)
        if kind is OutcomeKind.UNTESTABLE:
            span = f"{commits[low].commit[:10]}..{commits[high].commit[:10]}"
            finding = Finding(
                f"the commit lies in {span}: {commits[middle].commit[:10]} cannot be tested",
                Strength.OBSERVED,
                tuple(trials),
            )
            return replace(located, findings=(*located.findings, finding))
        low, high = (middle + 1, high) if kind is OutcomeKind.ABSENT else (low, middle)
    culprit = commits[low]
    text = f"commit {culprit.commit[:10]} ({culprit.subject}) is the first whose code shows the incident"
    place = replace(located.place, commit=culprit.commit, file=located.place.file or next(iter(culprit.files), ""))
    return Located(place, (*located.findings, Finding(text, Strength.INTERVENED, (*trials, trial))))


def _uncommitted(found: CodeHistory, below: CommitFacts | None, trials: tuple[str, ...], located: Located) -> Located:
    """The change that no commit holds; a file is named where only one was changed."""
    on = f" on top of commit {below.commit[:10]}" if below is not None else ""
    shown = ", ".join(found.patched[:4]) + (f" and {len(found.patched) - 4} more" if len(found.patched) > 4 else "")
    text = f"the incident comes with the uncommitted changes{on} ({shown}): without them it is absent"
    file = located.place.file or (found.patched[0] if len(found.patched) == 1 else "")
    return Located(replace(located.place, file=file), (*located.findings, Finding(text, Strength.INTERVENED, trials)))


def _commit_outcome(bench: Bench, commit: CommitFacts, trials: list[str]) -> OutcomeKind:
    base = bench.baseline.performed.run.spec
    spec = replace(
        base,
        id=f"commit-{commit.commit[:10]}",
        purpose=f"the code of commit {commit.commit[:10]} ({commit.subject})",
        intervention=Intervention("other-commit", Factor.CODE),
        commit=commit.commit,
        capture_steps=(),
        module_steps=(),
        fingerprint_steps=(base.first_step,),
        role="localise",
    )
    result = bench.run(f"commit {commit.commit}", spec)
    trials.append(result.spec.id)
    return result.outcome.kind


def _checkpoint(bench: Bench, _evidence: Evidence, located: Located) -> Located:
    return replace(located, place=replace(located.place, file=bench.investigation.last_good.original))


def _config_key(bench: Bench, _evidence: Evidence, located: Located) -> Located:
    """The setting that the culprit change set anew or dropped, where that is a single one."""
    place = located.place
    if not place.file.endswith((".yaml", ".yml", ".json")):
        return located
    try:
        before, after = (flattened(yaml.safe_load(text)) for text in _both_versions(bench, place))
    except (InputUnreadable, OSError, ValueError, yaml.YAMLError):
        return located
    changed = [key for key, value in before.items() if after.get(key) != value]
    added = [key for key in after if key not in before]
    keys = changed or added
    return replace(located, place=replace(place, key=keys[0])) if len(keys) == 1 else located


def _both_versions(bench: Bench, place: Place) -> tuple[bytes, bytes]:
    """The file before and after the culprit change. Raises where one of them is not to be had."""
    investigation = bench.investigation
    directory = Path(investigation.run.code or investigation.run.directory)
    commits = [c.commit for c in history(directory, HISTORY_COMMITS)]
    if place.commit:
        if place.commit not in commits[:-1]:
            raise InputUnreadable(f"commit {place.commit} has no parent here")
        parent = commits[commits.index(place.commit) + 1]
        return file_at(directory, parent, place.file), file_at(directory, place.commit, place.file)
    found = code_history(investigation)
    if isinstance(found, NotMeasured) or place.file not in found.patched or investigation.code.commit:
        raise InputUnreadable(f"{place.file} is not as it was when the case was frozen")
    return file_at(directory, found.head, place.file), (Path(found.root) / place.file).read_bytes()


def flattened(value: object, prefix: str = "") -> dict[str, object]:
    """Nested settings by dotted key."""
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, object] = {}
    for key, item in value.items():
        found |= flattened(item, f"{prefix}.{key}" if prefix else str(key))
    return found


_LOCALISERS: dict[Locality, Callable[[Bench, Evidence, Located], Located]] = {
    Locality.SAMPLES: samples,
    Locality.MODULE: _module,
    Locality.COMMIT: _commit,
    Locality.CHECKPOINT: _checkpoint,
    Locality.CONFIG_KEY: _config_key,
}
"""Tensors, ranks and files come with the facts that name them."""
