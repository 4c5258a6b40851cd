"""What does the postmortem stand on? Everything that the case holds, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from spike.domain.case import CaseFacts
from spike.domain.facts import CheckReport, Fact
from spike.domain.gate import GateDecision
from spike.domain.signals import Signals
from spike.domain.timeline import Act, Impact
from spike.domain.trial import Licence, NoiseFloor, TrialResult
from spike.domain.verdict import Verdict

SIGNALS = "evidence/signals.parquet"
MANIFEST = "evidence/manifest.json"
JOURNAL = "journal.jsonl"
CASE = "case.yaml"
CHECKS = "checks.json"
FACTS = "facts.json"
LICENCE = "licence.json"
VERDICT = "verdict.json"
GATE = "gate.json"


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One piece of preserved evidence."""

    path: str
    """Relative to the case; "" where only the digest was kept."""
    origin: str
    """Where it came from, relative to the run where possible."""
    num_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class PostmortemFacts:
    """The case, parsed. None stands for a step that was not taken."""

    case: CaseFacts
    acts: tuple[Act, ...]
    """The journal without what only looked at the case."""
    chain_digest: str
    """Digest of the last journal line among `acts`."""
    signals: Signals | None
    checks: CheckReport | None
    facts: tuple[Fact, ...]
    """What the checks and the trials measured, or why they did not; one for each name."""
    licence: Licence | None
    noise: NoiseFloor | None
    trials: tuple[TrialResult, ...]
    """Judged trials, in the order of their ids."""
    unjudged: tuple[tuple[str, str], ...]
    """(trial id, why) of trials that have no readable outcome."""
    verdict: Verdict | None
    gate: GateDecision | None
    evidence: tuple[EvidenceRow, ...]
    algorithm: str
    """What the digests of the evidence are made with: "SHA-256" or "BLAKE3"."""
    gaps: tuple[tuple[str, str], ...]
    """(what, why) that freeze could not keep."""
    artefacts: tuple[EvidenceRow, ...]
    """The case's own files that this report reads, with their SHA-256 now."""
    impact: Impact
    not_run: tuple[str, ...] = ()
    """Steps of the runbook that were not taken, in order."""
    stale: tuple[tuple[str, str], ...] = ()
    """(step, earlier step that was repeated after it)."""

    def trial(self, trial_id: str) -> TrialResult | None:
        """The judged trial of this id."""
        return next((t for t in self.trials if t.spec.id == trial_id), None)
