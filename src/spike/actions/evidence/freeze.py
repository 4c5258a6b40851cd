"""How is the evidence kept before anything changes? Open the case, hold the checkpoints, copy, hash, record.

Nothing is written into the run. Whatever stops this command half-way (a crash, a full disk), the case stays readable
and the same command completes it; done twice for one incident, it finds its own case and checks it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from spike.actions.evidence.frozen_again import COMMAND, check_again
from spike.actions.evidence.last_good import Find, Judge, Readers, Scan, default_readers
from spike.actions.evidence.opening import Occasion, find_or_open, onset_of
from spike.actions.evidence.pins import (
    HELD,
    LEDGER,
    Pinning,
    Pins,
    Plan,
    hold_all,
    likely_pins,
    pin_all,
    place_of,
    plan_pins,
)
from spike.actions.evidence.remote_logs import keep_logs
from spike.actions.evidence.remote_pins import pin_remote_run
from spike.actions.evidence.rotation_warnings import rotation_warnings
from spike.actions.evidence.shard_plan import read_plan, refuse_busy_shards, refuse_unfinished
from spike.actions.evidence.small_evidence import collect_small_files
from spike.actions.evidence.written_evidence import (
    write_environment,
    write_hardware,
    write_signals_entry,
    write_situation,
    write_source,
)
from spike.casefile.case import FACTS_NAME, Case
from spike.casefile.holding import discard
from spike.casefile.ledger import Ledger
from spike.casefile.manifest import (
    EVIDENCE,
    read_manifest,
    take_stock,
    write_manifest,
)
from spike.casefile.signing import sign_manifest
from spike.domain.checkpoint import Checkpoint
from spike.domain.incident import Incident
from spike.domain.manifest import Algorithm, Manifest, Reference, encode_path
from spike.domain.remote import is_url
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.domain.situation import take_situation
from spike.readers.source_tree import read_source

_REWRITTEN = ("run", "outside", "source")
"""Directories below evidence/ that are made anew when an interrupted freeze is completed."""

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""


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
    is_merge: bool = False
    """Shards did the reading; without all of them nothing is done."""


def freeze(
    run: Run,
    incident: Incident | None,
    *,
    cases: Path,
    operator: str,
    case: Case | None = None,
    signals: Signals | None = None,
    options: Options | None = None,
    find: Find | None = None,
    scan: Scan | None = None,
    on_progress: Progress | None = None,
    talk: Callable[[str], None] | None = None,
) -> Case:
    """The case that holds this run's evidence, complete and recorded.

    `case` is the very one to complete; by default the one of this run and onset, or a new one in `cases`. `find`
    and `scan` read checkpoints (`spike.readers.checkpoints` by default). Raises `SpikeError` where the case cannot be
    written or is in use, and with exit code 1 where a case of this incident differs from its manifest.
    """
    chosen = options or Options()
    say = talk or (lambda _text: None)
    occasion = Occasion(run, incident, incident.onset_step if incident is not None else chosen.step)
    if case is not None:
        occasion = Occasion(run, case.facts.incident, onset_of(case.facts, chosen.step))
    else:
        case = find_or_open(cases, occasion, operator=operator, is_new=chosen.is_new, say=say)
    with case.lock(COMMAND):
        if read_manifest(case.path) is not None:
            check_again(case, on_progress)
        else:
            chosen = _with_shards(case, chosen)
            ledger = Ledger(case.path / LEDGER)
            readers = default_readers(find, scan, onset=occasion.onset)
            _Freeze(case, run, occasion.onset, signals, chosen, readers, ledger, say, on_progress).complete()
        if chosen.key is not None:
            sign(case, chosen.key)
    return case


def _with_shards(case: Case, options: Options) -> Options:
    """The options as the shards of this case fixed them; `SpikeError` where shards are missing or at work."""
    plan = refuse_unfinished(case) if options.is_merge else read_plan(case)
    if plan is None:
        return options
    refuse_busy_shards(case, plan)
    return replace(options, algorithm=plan.algorithm)


def sign(case: Case, key: Path) -> None:
    """Sign manifest and journal with this ed25519 key, and record it. Raises `SpikeError`."""
    artefact = sign_manifest(case.path, case.facts.id, key)
    case.record(COMMAND, "manifest and journal signed", 0, (artefact,))


def warnings_of(case: Case) -> tuple[str, ...]:
    """What the operator must know about this case now, in the order of its weight."""
    facts = case.facts
    found = []
    if facts.is_released:
        found.append("the pins of this case were released: nothing can be replayed from it any more")
    elif facts.last_good is None:
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
    found += rotation_warnings(facts) if not is_url(facts.run.checkpoints) else ()
    if is_url(facts.run.checkpoints):
        found.append(
            "the run's checkpoints lie in an object store, which no trial can be kept from writing to: give trials"
            " credentials that only read (`env:` in spike.yaml), or a launch command that saves below {workdir}"
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Freeze:
    case: Case
    run: Run
    onset: int | None
    signals: Signals | None
    options: Options
    readers: Readers
    ledger: Ledger
    say: Callable[[str], None]
    on_progress: Progress | None

    @property
    def evidence(self) -> Path:
        return self.case.path / EVIDENCE

    def complete(self) -> None:
        """Every step can be repeated; the manifest is written when everything else is there."""
        _clear_rewritten(self.case)
        directory = Path(self.run.directory)
        found, pins, references = self._gather(directory)
        source = read_source(Path(self.run.code or self.run.directory))
        small = collect_small_files(self.run, self.signals, source, tuple(c.path for c in found), self.evidence)
        last_good = pins.last_good.step if pins.last_good else None
        situation = take_situation(self.signals, self.case.facts.incident, self.onset, last_good)
        code, left_out = write_source(self.case, source)
        logs, too_long = keep_logs(self.run, self.evidence)
        written = [write_environment(self.case, self.run), write_situation(self.case, situation), *code]
        written += write_hardware(self.case)
        if self.signals is not None:
            written.append(write_signals_entry(self.case, self.signals))
        self._save(pins)
        _drop_drafts(self.evidence)
        manifest = take_stock(
            self.evidence,
            (*pins.entries, *small.entries, *logs, *written),
            algorithm=self.options.algorithm,
            exclusions=(*pins.exclusions, *small.exclusions, *left_out, *too_long),
            references=references,
        )
        self._record(manifest, pins)
        self.ledger.close()
        shutil.rmtree(self.case.path / HELD, ignore_errors=True)

    def _gather(self, directory: Path) -> tuple[tuple[Checkpoint, ...], Pins, tuple[Reference, ...]]:
        """(every checkpoint of the run, what is pinned of them, what is named in its store only)."""
        if is_url(self.run.checkpoints):
            return pin_remote_run(
                self.case,
                self.run,
                self.onset,
                algorithm=self.options.algorithm,
                ledger=self.ledger,
                held=self.case.path / HELD,
                readers=self.readers,
                on_progress=self.on_progress,
            )
        found = self.readers.find(directory, self.run.checkpoints)
        plan = hold_all(self.case, plan_pins(found, self.onset), self.onset, directory)
        return found, self._pin(plan, directory), ()

    def _pin(self, plan: Plan, directory: Path) -> Pins:
        total, known = self._num_bytes(plan, directory)
        if known:
            by = "the shards" if self.options.is_merge else "an interrupted freeze"
            self.say(f"{by} hashed {known / 1e9:.2f} GB, which are not read again")
        done = 0

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            if self.on_progress is not None:
                self.on_progress(min(done, total), total)

        judge = Judge(self.readers, self.ledger, advance)
        work = Pinning(self.case, directory, self.options.algorithm, self.ledger, judge, advance)
        pins = pin_all(work, plan)
        if self.on_progress is not None:
            self.on_progress(total, total)
        return pins

    def _num_bytes(self, plan: Plan, directory: Path) -> tuple[int, int]:
        """(bytes that will probably be read, bytes that are done already)."""
        wanted = likely_pins(plan)
        known = sum(self.ledger.num_bytes_below(encode_path(f"pinned/{place_of(c, directory)}")) for c in wanted)
        # Without a tap the newest candidate is read twice: hashed, and judged.
        again = wanted[0].num_bytes if wanted and self.readers.open_tap is None else 0
        return max(0, sum(c.num_bytes for c in wanted) + again - known), known

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


def _clear_rewritten(case: Case) -> None:
    """Remove what an interrupted freeze left and what is made anew; pins stay, also those that are not complete."""
    evidence = case.path / EVIDENCE
    for name in _REWRITTEN:
        shutil.rmtree(evidence / name, ignore_errors=True)
    for draft in (*case.path.glob(".*.tmp"), *evidence.glob(".*.tmp")):
        discard(draft)


def _drop_drafts(evidence: Path) -> None:
    """Remove pins that were begun and are not wanted any more."""
    for draft in (*evidence.glob("pinned/*/.*.pinning"), *evidence.glob("pinned/*/.*.fetching")):
        discard(draft)
    for directory in evidence.glob("pinned/*"):
        with suppress(OSError):  # a pin lies in it
            directory.rmdir()
