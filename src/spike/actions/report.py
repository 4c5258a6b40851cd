"""What happened, for whoever comes next? The postmortem, from the case and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spike.actions.answers import read_checks, read_facts, read_gate, read_licence, read_trials, read_verdict
from spike.actions.status import standing
from spike.casefile.case import Case
from spike.casefile.hashing import hash_file
from spike.casefile.manifest import read_manifest
from spike.casefile.signals_store import read_signals
from spike.domain.journal import JournalEntry
from spike.domain.manifest import Algorithm, EntryKind, decode_path
from spike.domain.runbook import Page
from spike.domain.signals import Signals
from spike.domain.timeline import (
    Act,
    StepTime,
    acts,
    count_impact,
    last_logged_step,
    logged_step_time,
    replayed_step_time,
)
from spike.domain.trial import TrialResult
from spike.report import facts as artefact
from spike.report.facts import EvidenceRow, PostmortemFacts

ALGORITHM_WORDS = {Algorithm.SHA256: "SHA-256", Algorithm.BLAKE3: "BLAKE3"}
POSTMORTEM_MD, POSTMORTEM_HTML = "postmortem.md", "postmortem.html"
_KEPT = (
    artefact.CASE,
    artefact.MANIFEST,
    artefact.CHECKS,
    artefact.LICENCE,
    artefact.FACTS,
    artefact.VERDICT,
    artefact.GATE,
)


@dataclass(frozen=True, slots=True)
class Written:
    """What a report left in the case."""

    files: tuple[str, ...]
    """Relative to the case."""
    not_run: tuple[str, ...]
    facts: PostmortemFacts


def write_report(case: Case, pages: Sequence[Page]) -> Written:
    """Write postmortem.md, postmortem.html and figures/*.svg into the case, and say so in its journal.

    Raises `InputUnreadable` naming the artefact that cannot be read. The same case gives the same bytes.
    """
    from spike.report.figures import draw_figures
    from spike.report.postmortem import render_html, render_postmortem

    with case.lock("report"):
        facts = assemble(case, pages)
        figures = draw_figures(facts)
        written = [f"figures/{name}.svg" for name in figures]
        for name, svg in figures.items():
            case.write_text(f"figures/{name}.svg", svg)
        case.write_text(POSTMORTEM_MD, render_postmortem(facts))
        case.write_text(POSTMORTEM_HTML, render_html(facts, figures))
        files = (POSTMORTEM_MD, POSTMORTEM_HTML, *written)
        missing = f"; not taken: {', '.join(facts.not_run)}" if facts.not_run else ""
        case.record("report", f"postmortem written{missing}", 0, files)
    return Written(files, facts.not_run, facts)


def assemble(case: Case, pages: Sequence[Page]) -> PostmortemFacts:
    """Everything the report says, read from the case. Raises `InputUnreadable`."""
    journal = case.journal()
    done = acts(journal)
    signals = _signals(case)
    trials, unjudged = read_trials(case)
    licence, noise = read_licence(case)
    stand = standing(case, pages)
    taken = {*stand.done, *(step for step, _ in stand.stale)}
    checks = read_checks(case)
    evidence, algorithm, gaps = _evidence(case)
    impact = count_impact(case.facts, last_logged_step(signals), _step_time(case, signals, trials), trials)
    return PostmortemFacts(
        case=case.facts,
        acts=done,
        chain_digest=_chain_digest(journal, done),
        signals=signals,
        checks=checks,
        facts=read_facts(case, checks),
        licence=licence,
        noise=noise,
        trials=trials,
        unjudged=unjudged,
        verdict=read_verdict(case),
        gate=read_gate(case),
        evidence=evidence,
        algorithm=algorithm,
        gaps=gaps,
        artefacts=_artefacts(case, trials),
        impact=impact,
        not_run=tuple(p.id for p in pages if not p.optional and p.id not in taken and p.id != "report"),
        stale=tuple((step, newer) for step, newer in stand.stale if step != "report"),
    )


def _signals(case: Case) -> Signals | None:
    return read_signals(case.path) if (case.path / artefact.SIGNALS).is_file() else None


def _step_time(case: Case, signals: Signals | None, trials: Sequence[TrialResult]) -> StepTime:
    """From the run's own log where it names the unit, else from the unchanged trial of the whole world."""
    from spike.lab.traces import read_trace, trace_files

    onset = case.facts.incident.onset_step if case.facts.incident is not None else None
    logged = logged_step_time(signals, onset)
    if logged is not None:
        return logged
    baseline = next((t for t in trials if t.spec.role == "baseline"), None)
    files = trace_files(case.path / "trials" / baseline.spec.id) if baseline is not None else ()
    trace = read_trace(files[0]) if files else None
    if trace is None:
        return replayed_step_time((), "")
    source = files[0].relative_to(case.path).as_posix()
    return replayed_step_time([s.seconds for s in trace.steps], source)


def _chain_digest(journal: Sequence[JournalEntry], done: Sequence[Act]) -> str:
    last = done[-1].line if done else 0
    return next((entry.digest for entry in journal if entry.seq == last), "")


def _evidence(case: Case) -> tuple[tuple[EvidenceRow, ...], str, tuple[tuple[str, str], ...]]:
    manifest = read_manifest(case.path)
    if manifest is None:
        return (), "", ()
    root = Path(case.facts.run.directory)
    rows = [
        EvidenceRow(f"evidence/{decode_path(e.path)}", _origin(decode_path(e.origin), root), e.size, e.digest)
        for e in manifest.entries
        if e.kind is EntryKind.FILE
    ]
    gaps = tuple((decode_path(e.path), e.reason) for e in manifest.exclusions)
    return tuple(rows), ALGORITHM_WORDS[manifest.algorithm], gaps


def _origin(path: str, root: Path) -> str:
    if not path:
        return "written by spike"
    return Path(path).relative_to(root).as_posix() if Path(path).is_relative_to(root) else path


def _artefacts(case: Case, trials: Sequence[TrialResult]) -> tuple[EvidenceRow, ...]:
    """The case's own files that the report read, as they are now."""
    names = [*_KEPT, *(f"trials/{t.spec.id}/outcome.json" for t in trials)]
    found = [name for name in names if (case.path / name).is_file()]
    return tuple(_artefact(case, name) for name in found)


def _artefact(case: Case, name: str) -> EvidenceRow:
    path = case.path / name
    return EvidenceRow(name, "", path.stat().st_size, hash_file(path).digest)
