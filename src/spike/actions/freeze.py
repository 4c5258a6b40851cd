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
from typing import Any

from spike import __version__
from spike.actions.pins import HELD, Pins, Plan, Scan, hold_all, pin_all, plan_pins
from spike.actions.small_evidence import SmallEvidence, collect_small_files
from spike.casefile.case import FACTS_NAME, Case, create_case, list_cases, open_case
from spike.casefile.codec import dumps, to_payload
from spike.casefile.lock import operator_name
from spike.casefile.manifest import (
    EVIDENCE,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    look_again,
    read_manifest,
    take_stock,
    write_manifest,
)
from spike.casefile.pinning import release
from spike.casefile.signals_store import SIGNALS_NAME, write_signals
from spike.casefile.signing import sign_manifest
from spike.casefile.small_files import Kept, keep_bytes
from spike.domain.case import CaseFacts
from spike.domain.checkpoint import Checkpoint
from spike.domain.errors import ExitCode, InputUnreadable, SpikeError
from spike.domain.incident import Incident
from spike.domain.manifest import Algorithm, EntryKind, Exclusion, Manifest, ManifestEntry, compare
from spike.domain.measured import NotMeasured
from spike.domain.redaction import redact_counted
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.domain.situation import take_situation
from spike.domain.source import SourceState
from spike.readers.environment import read_environment
from spike.readers.redaction import redact_run
from spike.readers.source_tree import history, read_source

COMMAND = "freeze"
HISTORY_COMMITS = 200
RELEASED = ".released"
"""Where pins go on their way out, in one step."""
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
            _sign(case, chosen.key)
    return case


def release_pins(case: Case, key: Path | None = None) -> int:
    """Let go of every pinned checkpoint of a closed case; what they were stays in the manifest. Returns files freed.

    A signed case is signed again, so `key` is needed there. Raises `SpikeError` without it, or for a case that was
    not frozen to its end.
    """
    with case.lock(COMMAND):
        manifest = read_manifest(case.path)
        if manifest is None:
            raise SpikeError(f"{case.path} was not frozen to its end", hint="spike freeze")
        if key is None and (case.path / EVIDENCE / SIGNATURE_NAME).exists():
            raise SpikeError(
                f"{case.path} is signed, and without its pins it must be signed again",
                hint="spike freeze --release --key KEY.pem",
            )
        when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        num_pins = _forget_pins(case, when)
        pinned, released = case.path / EVIDENCE / "pinned", case.path / RELEASED
        if pinned.is_dir():
            shutil.rmtree(released, ignore_errors=True)
            pinned.rename(released)
        num_files = release(released)
        rest = _without_pins(case, manifest, when)
        case.record(COMMAND, f"{num_pins} pins released ({num_files} files)", 0, write_manifest(case.path, rest))
        if key is not None:
            _sign(case, key)
    return num_files


def _forget_pins(case: Case, when: str) -> int:
    facts = case.facts
    pins = [p for p in (facts.last_good, *facts.earlier, *facts.suspect) if p is not None]
    notes = tuple((p.original, f"pin released {when}") for p in pins)
    if pins:
        case.save_facts(replace(facts, last_good=None, earlier=(), suspect=(), not_pinned=(*facts.not_pinned, *notes)))
    return len(pins)


def _without_pins(case: Case, manifest: Manifest, when: str) -> Manifest:
    """The manifest of what is left; every released file is an exclusion with its digest."""
    released = tuple(
        Exclusion(e.path, f"released {when}; {manifest.algorithm} {e.digest}; {e.size} bytes from {e.origin}")
        for e in manifest.entries
        if e.role == "checkpoint" and e.kind is EntryKind.FILE
    )
    return take_stock(
        case.path / EVIDENCE,
        tuple(e for e in manifest.entries if e.role != "checkpoint"),
        algorithm=manifest.algorithm,
        exclusions=(*manifest.exclusions, *released),
    )


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
        entries = [*pins.entries, *small.entries, *self._write_facts(source, pins, small)]
        self._save(pins)
        manifest = take_stock(
            self.evidence,
            entries,
            algorithm=self.options.algorithm,
            exclusions=(*pins.exclusions, *small.exclusions),
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

    def _write_facts(self, source: SourceState | NotMeasured, pins: Pins, small: SmallEvidence) -> list[ManifestEntry]:
        """Signals, environment, source and situation: what spike itself writes into the evidence."""
        cwd = Path(self.run.cwd or self.run.directory)
        environment = read_environment(self.run.launch, cwd, self.run.env)
        last_good = pins.last_good.step if pins.last_good else None
        situation = take_situation(self.signals, self.case.facts.incident, self.onset, last_good)
        written = [
            self._keep_json("environment.json", to_payload(environment, schema="spike.environment/1"), "environment"),
            self._keep_json("situation.json", to_payload(situation, schema="spike.situation/1"), "situation"),
            *self._write_source(source, small),
        ]
        if self.signals is not None:
            write_signals(self.case.path, self.signals)
            written.append(_written(SIGNALS_NAME.removeprefix(f"{EVIDENCE}/"), "signals"))
        return written

    def _write_source(self, source: SourceState | NotMeasured, small: SmallEvidence) -> list[ManifestEntry]:
        if isinstance(source, NotMeasured):
            reason: dict[str, Any] = {"schema": "spike.source/1", "state": to_payload(source)}
            return [self._keep_json("source/state.json", reason, "source")]
        try:
            commits = history(Path(source.root), HISTORY_COMMITS)
        except InputUnreadable:
            commits = ()
        facts = replace(source, patch=b"")
        _, secrets = redact_counted(source.patch.decode("utf-8", "surrogateescape"))
        payload: dict[str, Any] = {
            "schema": "spike.source/1",
            "state": to_payload(facts),
            "secrets_taken_out_of_patch": secrets,
            "history": [to_payload(commit) for commit in commits],
        }
        entries = [self._keep_json("source/state.json", payload, "source")]
        if source.patch:
            kept = keep_bytes(source.patch, self.evidence, "source/uncommitted.patch", "source")
            if isinstance(kept, Kept):
                entries.append(kept.entry)
            else:
                small.exclusions.append(kept)
        return entries

    def _keep_json(self, name: str, payload: dict[str, Any], role: str) -> ManifestEntry:
        kept = keep_bytes(dumps(payload).encode("utf-8", "surrogateescape"), self.evidence, name, role)
        assert isinstance(kept, Kept), "JSON is text"
        return kept.entry

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


def _sign(case: Case, key: Path) -> None:
    artefact = sign_manifest(case.path, case.facts.id, key)
    case.record(COMMAND, "manifest and journal signed", 0, (artefact,))


def _clear_drafts(case: Case) -> None:
    """Remove what an interrupted freeze left and what is made anew; pins that are complete stay."""
    evidence = case.path / EVIDENCE
    for name in _REWRITTEN:
        shutil.rmtree(evidence / name, ignore_errors=True)
    for draft in (*evidence.glob(".*.tmp"), *evidence.glob("pinned/*/.*.pinning")):
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _written(path: str, role: str) -> ManifestEntry:
    return ManifestEntry(path, role, EntryKind.FILE, 0, 0, 0)
