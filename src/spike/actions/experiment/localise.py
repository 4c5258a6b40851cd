"""Where exactly? From a confirmed cause to samples, module, tensor, rank, commit, file or configuration key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from spike.actions.experiment.bench import Bench
from spike.actions.experiment.code_history import HISTORY_COMMITS, CodeHistory, code_history
from spike.actions.experiment.experiments import pair_batches
from spike.domain.eliminate import Evidence
from spike.domain.errors import InputUnreadable
from spike.domain.facts import NOT_MEASURED
from spike.domain.measured import NotMeasured, measured
from spike.domain.outcome import REPRODUCED_SHARE
from spike.domain.playbook import Locality, Playbook
from spike.domain.reduce import reduce_items
from spike.domain.samples import suspicious
from spike.domain.source import CommitFacts
from spike.domain.trace import CapturedBatch
from spike.domain.trial import Factor, Intervention, OutcomeKind, TrialSpec
from spike.domain.verdict import Finding, Place, Strength
from spike.readers.batch_file import sample_rows
from spike.readers.source_tree import file_at, history

MAX_SAMPLE_TRIALS = 10
MAX_RANK_TRIALS = 10
"""Halving finds one rank of 512."""
MAX_COMMIT_TRIALS = 8
FAINT_SHARE = 0.10
"""A part of the batch brings back a part of the incident; healthy samples scatter by some per cent of its excess."""
SCATTER = 1.5
"""... or by what control batches left of it, and as much again by half."""


@dataclass(frozen=True, slots=True)
class Located:
    """A place, with what it stands on."""

    place: Place
    findings: tuple[Finding, ...] = ()


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


def narrow_step(bench: Bench) -> None:
    """After a control batch cured: which step's batch is it? Tries the onset alone, then the step before it."""
    if bench.suspect_step is not None:
        return
    batches, donors = bench.baseline.performed.run.batches, bench.donors()
    for step in (bench.onset, bench.onset - 1):
        if step <= bench.first_step:
            continue
        base = bench.baseline.performed.run.spec
        change = Intervention(
            "control-batch", Factor.BATCH, (step,), (("donors", pair_batches((step,), batches, donors)),)
        )
        spec = replace(
            base,
            id=f"control-batch-step-{step}",
            purpose=f"a control batch at step {step} alone, to find the step that matters",
            intervention=change,
            capture_steps=(),
            module_steps=(),
            fingerprint_steps=(base.first_step,),
            role="localise",
        )
        result = bench.run(f"control-batch-step-{step}", spec)
        if result.outcome.kind is OutcomeKind.ABSENT:
            bench.suspect_step = step
            return


def _samples(bench: Bench, evidence: Evidence, located: Located) -> Located:
    step = bench.suspect_step
    batches = [b for b in bench.baseline.performed.run.batches if b.step == step]
    ranks = sorted({b.rank for b in batches})
    if step is None or not batches:
        return located
    rank = located.place.rank if located.place.rank in ranks else None
    if len(ranks) > 1 and rank is None:
        located, rank = _suspect_rank(bench, step, batches, located)
        if rank is None:
            return located
        located = replace(located, place=replace(located.place, rank=rank))
    own = sorted((b for b in batches if rank is None or b.rank == rank), key=lambda b: (b.rank, b.micro))
    sizes = [measured(b.num_samples) for b in own]
    if any(size is None for size in sizes):
        return located
    total = sum(size for size in sizes if size is not None)
    if total < 2:
        return located
    trial_ids: list[str] = []
    reduction = reduce_items(
        range(total),
        _sample_test(bench, step, tuple(own), trial_ids),
        guess=_guess(bench, own),
        max_tests=MAX_SAMPLE_TRIALS,
    )
    if not reduction.items:
        finding = Finding(
            f"the samples were not narrowed down: {reduction.reason}", Strength.OBSERVED, tuple(trial_ids)
        )
        return replace(located, findings=(*located.findings, finding))
    text = f"samples {', '.join(map(str, reduction.items))} of step {step}: {reduction.reason}"
    place = replace(located.place, samples=reduction.items)
    return Located(place, (*located.findings, Finding(text, Strength.INTERVENED, tuple(trial_ids))))


def _guess(bench: Bench, batches: list[CapturedBatch]) -> tuple[int, ...]:
    """Samples that look unlike the healthy ones in any tensor of the batch, counted over its micro-batches."""
    healthy = [sample_rows(Path(b.path)) for b in bench.donors()]
    found: set[int] = set()
    offset = 0
    for batch in batches:
        tensors = sample_rows(Path(batch.path))
        for place, rows in enumerate(tensors):
            twins = [h[place] for h in healthy if len(h) == len(tensors)]
            found |= {offset + i for i in suspicious(rows, twins)}
        offset += measured(batch.num_samples) or 0
    return tuple(sorted(found))


def _suspect_rank(
    bench: Bench, step: int, batches: list[CapturedBatch], located: Located
) -> tuple[Located, int | None]:
    """The one rank whose batch is enough to bring the incident, by trials that give the other ranks control batches."""
    ranks = sorted({b.rank for b in batches})
    odd = tuple(r for r in ranks if _guess(bench, [b for b in batches if b.rank == r]))
    trial_ids: list[str] = []

    def test(kept: tuple[int, ...]) -> bool | None:
        replaced = tuple(b for b in batches if b.rank not in kept)
        if not replaced:
            return True
        donors = pair_batches((step,), replaced, bench.donors())
        change = Intervention("control-batch", Factor.BATCH, (step,), (("donors", donors),))
        name = f"keep-rank-{'-'.join(map(str, kept[:4]))}{'-and-more' if len(kept) > 4 else ''}"
        purpose = (
            f"of the batches of step {step} only those of rank {', '.join(map(str, kept))}, controls on the others"
        )
        return _still_there(bench, name, purpose, change, trial_ids)

    found = reduce_items(ranks, test, guess=odd, max_tests=MAX_RANK_TRIALS)
    shown = ", ".join(map(str, found.items)) if found.items else ""
    text = (
        f"rank {shown} of step {step}: {found.reason}" if shown else f"the rank was not narrowed down: {found.reason}"
    )
    strength = Strength.INTERVENED if shown else Strength.OBSERVED
    located = replace(located, findings=(*located.findings, Finding(text, strength, tuple(trial_ids))))
    return located, found.items[0] if len(found.items) == 1 else None


def _sample_test(
    bench: Bench, step: int, batches: tuple[CapturedBatch, ...], trial_ids: list[str]
) -> Callable[[tuple[int, ...]], bool | None]:
    donors = pair_batches((step,), batches, bench.donors())

    def test(kept: tuple[int, ...]) -> bool | None:
        change = Intervention("mask-samples", Factor.BATCH, (step,), (("keep", kept), ("donors", donors)))
        name = f"keep-{'-'.join(map(str, kept[:6]))}{'-and-more' if len(kept) > 6 else ''}"
        purpose = f"of the batch of step {step} only {', '.join(map(str, kept))}, control samples for the rest"
        return _still_there(bench, name, purpose, change, trial_ids)

    return test


def _still_there(bench: Bench, name: str, purpose: str, change: Intervention, trial_ids: list[str]) -> bool | None:
    """Whether a noticeable part of the incident is left with this change; None where the trial shows nothing."""
    base = bench.baseline.performed.run.spec
    spec = TrialSpec(
        id=name,
        purpose=purpose,
        checkpoint=base.checkpoint,
        first_step=base.first_step,
        stop_after=base.stop_after,
        intervention=change,
        fingerprint_steps=(base.first_step,),
        role="localise",
    )
    result = bench.run(name, spec)
    trial_ids.append(result.spec.id)
    if result.outcome.kind is OutcomeKind.UNTESTABLE:
        return None
    usual = _left_by_controls(bench)
    return any(share > _faintest(usual.get(signal, 0.0)) for signal, share in result.outcome.shares)


def _left_by_controls(bench: Bench) -> dict[str, float]:
    """What is left of the incident with control batches alone, by signal: the scatter of healthy samples."""
    names = ("control-batch", f"control-batch-step-{bench.suspect_step}")
    left: dict[str, float] = {}
    for name in names:
        for signal, share in bench.results[name].outcome.shares if name in bench.results else ():
            left[signal] = max(share, left.get(signal, 0.0))
    return left


def _faintest(usual: float) -> float:
    """The share of the incident that counts as a part of it."""
    return min(REPRODUCED_SHARE, max(FAINT_SHARE, SCATTER * usual))


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
    Locality.SAMPLES: _samples,
    Locality.MODULE: _module,
    Locality.COMMIT: _commit,
    Locality.CHECKPOINT: _checkpoint,
    Locality.CONFIG_KEY: _config_key,
}
"""Tensors, ranks and files come with the facts that name them."""
