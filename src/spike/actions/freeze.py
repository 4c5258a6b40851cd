"""How is the evidence kept before anything changes? Open the case, hold the checkpoints, copy, hash, record.

Nothing is written into the run. Whatever stops this command half-way (a crash, a full disk), the case stays readable
and the same command completes it; done twice for one incident, it finds its own case and checks it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from spike import __version__
from spike.actions.pins import HELD, Pins, Plan, Scan, hold_all, pin_all, plan_pins
from spike.actions.small_evidence import collect_small_files
from spike.actions.written_evidence import (
    write_environment,
    write_signals_entry,
    write_situation,
    write_source,
)
from spike.casefile.case import FACTS_NAME, Case, create_case, list_cases, open_case
from spike.casefile.lock import operator_name
from spike.casefile.manifest import (
    EVIDENCE,
    MANIFEST_NAME,
    look_again,
    read_manifest,
    take_stock,
    write_manifest,
)
from spike.casefile.signing import sign_manifest
from spike.domain.case import CaseFacts
from spike.domain.checkpoint import Checkpoint
from spike.domain.errors import ExitCode, InputUnreadable, SpikeError
from spike.domain.incident import Incident
from spike.domain.manifest import Algorithm, Manifest, compare
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.domain.situation import take_situation
from spike.readers.redaction import redact_run
from spike.readers.source_tree import read_source

COMMAND = "freeze"
HISTORY_COMMITS = 200
_REWRITTEN = ("run", "outside", "source")
"""Directories below evidence/ that are made anew when an interrupted freeze is completed."""

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""
Find = Callable[[Path, str], tuple[Checkpoint, ...]]


@dataclass(frozen=True, slots=True)
class Options:
    """How to freeze."""

    algorithm: Algorithm = Algorithm.SHA256
    key: Path | None = None
    """Sign the manifest with this ed25519 key."""
    is_new: bool = False
    """Open another case even if one for this incident exists."""
    step: int | None = None
    """The operator's own onset, where no incident was found or another one is meant."""


def freeze(
    run: Run,
    incident: Incident | None,
    *,
    cases: Path,
    operator: str,
    signals: Signals | None = None,
    options: Options | None = None,
    find: Find | None = None,
    scan: Scan | None = None,
    on_progress: Progress | None = None,
    talk: Callable[[str], None] | None = None,
) -> Case:
    """The case that holds this run's evidence, complete and recorded.

    `find` and `scan` read checkpoints (`spike.readers.checkpoints` by default). Raises `SpikeError` where the case
    cannot be written or is in use, and with exit code 1 where a case of this incident differs from its manifest.
    """
    from spike.readers.checkpoints import find_checkpoints, scan_checkpoint

    chosen = options or Options()
    say = talk or (lambda _text: None)
    onset = incident.onset_step if incident is not None else chosen.step
    case = None if chosen.is_new else _case_of(cases, run, onset)
    if case is None:
        case = create_case(cases, _first_facts(cases, run, incident, onset, operator))
        say(f"case {case.path} opened")
    else:
        say(f"case {case.path} is already there for this incident")
    with case.lock(COMMAND):
        if read_manifest(case.path) is not None:
            _check_again(case, on_progress)
        else:
            work = _Freeze(
                case, run, onset, signals, chosen, find or find_checkpoints, scan or scan_checkpoint, say, on_progress
            )
            work.complete()
        if chosen.key is not None:
            sign(case, chosen.key)
    return case


def sign(case: Case, key: Path) -> None:
    """Sign manifest and journal with this ed25519 key, and record it. Raises `SpikeError`."""
    artefact = sign_manifest(case.path, case.facts.id, key)
    case.record(COMMAND, "manifest and journal signed", 0, (artefact,))


def warnings_of(case: Case) -> tuple[str, ...]:
    """What the operator must know about this case now, in the order of its weight."""
    facts = case.facts
    found = []
    if facts.last_good is None:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in facts.not_pinned) or "none was found"
        found.append(
            f"NO USABLE CHECKPOINT BEFORE THE ONSET ({reasons}). Replay, branch and bisect cannot be done now;"
            " detect, check and report can. Keep the run from deleting anything, and look for a backup."
        )
    weak = [p for p in (facts.last_good, *facts.earlier, *facts.suspect) if p and p.guarantee == "hard link"]
    if weak:
        found.append(
            f"{len(weak)} checkpoints are pinned by hard link: safe from deletion, NOT from being overwritten in place"
            " by the running job. `spike verify` finds that out."
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Freeze:
    case: Case
    run: Run
    onset: int | None
    signals: Signals | None
    options: Options
    find: Find
    scan: Scan
    say: Callable[[str], None]
    on_progress: Progress | None

    @property
    def evidence(self) -> Path:
        return self.case.path / EVIDENCE

    def complete(self) -> None:
        """Every step can be repeated; the manifest is written when everything else is there."""
        _clear_drafts(self.case)
        directory = Path(self.run.directory)
        found = self.find(directory, self.run.checkpoints)
        plan = hold_all(self.case, plan_pins(found, self.onset), self.onset, directory)
        pins = self._pin(plan, directory)
        source = read_source(Path(self.run.code or self.run.directory))
        small = collect_small_files(self.run, self.signals, source, tuple(c.path for c in found), self.evidence)
        last_good = pins.last_good.step if pins.last_good else None
        situation = take_situation(self.signals, self.case.facts.incident, self.onset, last_good)
        code, left_out = write_source(self.case, source)
        written = [write_environment(self.case, self.run), write_situation(self.case, situation), *code]
        if self.signals is not None:
            written.append(write_signals_entry(self.case, self.signals))
        self._save(pins)
        manifest = take_stock(
            self.evidence,
            (*pins.entries, *small.entries, *written),
            algorithm=self.options.algorithm,
            exclusions=(*pins.exclusions, *small.exclusions, *left_out),
        )
        self._record(manifest, pins)
        shutil.rmtree(self.case.path / HELD, ignore_errors=True)

    def _pin(self, plan: Plan, directory: Path) -> Pins:
        wanted = (*plan.before[:4], *plan.suspect[:2])
        # The newest candidate is read twice: pinned with its digest, and scanned for what is in it.
        total = sum(c.num_bytes for c in wanted) + (wanted[0].num_bytes if wanted else 0)
        done = 0

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            if self.on_progress is not None:
                self.on_progress(min(done, total), total)

        pins = pin_all(self.case, plan, self.scan, run=directory, algorithm=self.options.algorithm, on_bytes=advance)
        if self.on_progress is not None:
            self.on_progress(total, total)
        return pins

    def _save(self, pins: Pins) -> None:
        self.case.save_facts(
            replace(
                self.case.facts,
                last_good=pins.last_good,
                earlier=tuple(pins.earlier),
                suspect=tuple(pins.suspect),
                not_pinned=tuple(pins.not_pinned),
            )
        )

    def _record(self, manifest: Manifest, pins: Pins) -> None:
        artefacts = write_manifest(self.case.path, manifest)
        num_pins = sum(1 for p in (pins.last_good, *pins.earlier, *pins.suspect) if p)
        summary = f"{len(manifest.entries)} entries, {num_pins} checkpoints pinned, tree {manifest.tree_digest}"
        self.case.record(COMMAND, summary, 0, (*artefacts, FACTS_NAME))


def _case_of(cases: Path, run: Run, onset: int | None) -> Case | None:
    """The newest case of this run and onset; one that cannot be read does not stand in the way of a new one."""
    for path in reversed(list_cases(cases)):
        if not path.name.endswith(f"-{_onset_name(onset)}"):
            continue
        try:
            case = open_case(path)
        except InputUnreadable:
            continue
        if case.facts.run.directory == run.directory:
            return case
    return None


def _first_facts(cases: Path, run: Run, incident: Incident | None, onset: int | None, operator: str) -> CaseFacts:
    now = datetime.now(UTC)
    stamp = now.strftime("%Y%m%d-%H%M%S")
    case_id = f"{stamp}-{_onset_name(onset)}"
    number = 2
    while (cases / case_id).exists():
        case_id = f"{stamp}.{number}-{_onset_name(onset)}"
        number += 1
    return CaseFacts(
        id=case_id,
        created=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        operator=operator or operator_name(),
        spike_version=__version__,
        run=redact_run(run),
        incident=incident,
        last_good=None,
    )


def _onset_name(onset: int | None) -> str:
    return "no-incident" if onset is None else str(onset)


def _check_again(case: Case, on_progress: Progress | None) -> None:
    """A complete case is compared with its manifest, and nothing in it is replaced."""
    manifest = read_manifest(case.path)
    assert manifest is not None
    total, done = sum(e.size for e in manifest.entries), 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if on_progress is not None:
            on_progress(min(done, total), total)

    changes = compare(manifest, look_again(case.path / EVIDENCE, manifest.algorithm, on_bytes=advance))
    content = [c for c in changes if c.is_content]
    if content:
        case.record(COMMAND, f"evidence differs from its manifest: {content[0].statement}", int(ExitCode.ANSWER_NO))
        raise SpikeError(
            f"{case.path} differs from its manifest in {len(content)} places; first: {content[0].statement}",
            hint=f"spike verify --case {case.path} names them all; spike freeze --new opens another case",
            exit_code=ExitCode.ANSWER_NO,
        )
    shutil.rmtree(case.path / HELD, ignore_errors=True)
    name = f"{EVIDENCE}/{MANIFEST_NAME}"
    is_recorded = any(a.path == name for entry in case.journal() for a in entry.artefacts)
    artefacts = () if is_recorded else (*write_manifest(case.path, manifest), FACTS_NAME)
    case.record(COMMAND, f"found complete, {len(manifest.entries)} entries unchanged", 0, artefacts)


def _clear_drafts(case: Case) -> None:
    """Remove what an interrupted freeze left and what is made anew; pins that are complete stay."""
    evidence = case.path / EVIDENCE
    for name in _REWRITTEN:
        shutil.rmtree(evidence / name, ignore_errors=True)
    for draft in (*case.path.glob(".*.tmp"), *evidence.glob(".*.tmp"), *evidence.glob("pinned/*/.*.pinning")):
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
