"""Is this case untampered? Answered from the case alone: the run and the machine it ran on may be gone.

Evidence is held against its manifest byte by byte, everything else against the digests in the journal, the journal
against its own chain and head, and all of it against a signature where a public key is given.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spike.casefile.case import FACTS_NAME, open_case
from spike.casefile.hashing import hash_file, hash_tree
from spike.casefile.journal import HEAD_NAME, JOURNAL_NAME, TORN_NAME, read_journal, verify_chain
from spike.casefile.lock import LOCK_NAME, differed_before, read_holder
from spike.casefile.manifest import EVIDENCE, MANIFEST_NAME, look_again, read_manifest
from spike.casefile.signing import check_signature, signed_key_ids
from spike.casefile.tree import walk
from spike.domain.errors import InputUnreadable
from spike.domain.journal import INTERRUPTED, ChainFault, ChainFinding, JournalEntry
from spike.domain.manifest import (
    RELEASED_FILE,
    Change,
    ChangeKind,
    EntryKind,
    Manifest,
    compare,
    encode_path,
    refuse_unsafe,
)
from spike.domain.verification import Integrity, Verification

HOLDING = ".held"
"""Hard links that an unfinished freeze keeps."""
PINNED = "pinned"
_MANIFEST = f"{EVIDENCE}/{MANIFEST_NAME}"
_OWN = (JOURNAL_NAME, HEAD_NAME, TORN_NAME, LOCK_NAME, FACTS_NAME)


def verify(
    case: Path,
    *,
    public_key: Path | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Verification:
    """Look at everything in the case directory. Nothing is written, so a read-only copy will do.

    Raises `InputUnreadable` where there is no case at all.
    """
    if not (case / FACTS_NAME).is_file() and not (case / JOURNAL_NAME).is_file():
        raise InputUnreadable(f"{case} is not a case", hint="spike verify --case CASE_DIRECTORY")
    chain = verify_chain(case)
    entries = _sound_entries(case, chain)
    unfinished = _unfinished(case, chain)
    changes, manifest = _check_evidence(case, unfinished, on_bytes)
    if manifest is not None:
        if not any(a.path == _MANIFEST for entry in entries for a in entry.artefacts):
            unfinished.append(f"{_MANIFEST} is not in the journal: freeze was interrupted before it could record it")
        changes = _without_recorded_additions(changes, entries)
        changes, more = _excuse_unfinished_evidence(case, changes)
        unfinished += more
    artefacts = _check_artefacts(case, entries)
    artefacts, more = _excuse_interrupted(case, artefacts, entries)
    unfinished += more
    signature, holds = _check_signature(case, public_key)
    altered = any(c.is_content for c in (*changes, *artefacts)) or any(f.is_tampering for f in chain) or holds is False
    files = [e for e in manifest.entries if e.kind is EntryKind.FILE] if manifest else []
    return Verification(
        case=str(case),
        integrity=Integrity.ALTERED if altered else Integrity.INCOMPLETE if unfinished else Integrity.INTACT,
        tree_digest=manifest.tree_digest if manifest else "",
        num_files=len(files),
        num_bytes=sum(e.size for e in files),
        num_released=sum(e.reason.startswith(RELEASED_FILE) for e in manifest.exclusions) if manifest else 0,
        changes=changes,
        artefacts=artefacts,
        chain=chain,
        unfinished=tuple(unfinished),
        unrecorded=_unrecorded(case, entries),
        signature=signature,
        signature_holds=holds,
    )


def _check_evidence(
    case: Path, unfinished: list[str], on_bytes: Callable[[int], None] | None
) -> tuple[tuple[Change, ...], Manifest | None]:
    try:
        manifest = read_manifest(case)
    except InputUnreadable as error:
        return (Change(ChangeKind.CHANGED, _MANIFEST, error.message),), None
    if manifest is None:
        unfinished.append(f"{_MANIFEST} is not there: freeze has not finished")
        return (), None
    if (case / EVIDENCE).is_symlink():
        return (Change(ChangeKind.REPLACED, EVIDENCE, f"{EVIDENCE} is a symlink"),), manifest
    found = look_again(case / EVIDENCE, manifest.algorithm, on_bytes=on_bytes)
    return compare(manifest, found), manifest


def _sound_entries(case: Path, chain: tuple[ChainFinding, ...]) -> tuple[JournalEntry, ...]:
    """The journal, as far as it can be read; what is wrong with it is in `chain` already."""
    if any(f.fault is ChainFault.CHANGED for f in chain):
        try:
            return read_journal(case)
        except InputUnreadable:
            return ()
    return read_journal(case)


def _check_artefacts(case: Path, entries: tuple[JournalEntry, ...]) -> tuple[Change, ...]:
    """Every path that the journal names, against the newest digest recorded for it."""
    newest = {a.path: (a.sha256, entry) for entry in _records(entries) for a in entry.artefacts}
    safe = {path for path in newest if not _leads_out(path)}
    found = hash_tree(case, [(path, 0) for path in safe])
    changes = []
    for path, (digest, entry) in sorted(newest.items()):
        by = f"recorded by `spike {entry.command}`, entry {entry.seq}"
        if path not in safe:
            changes.append(Change(ChangeKind.REPLACED, path, f"{path} leads out of the case ({by})"))
        elif found[path].digest == digest:
            continue
        elif found[path].digest:
            changes.append(Change(ChangeKind.CHANGED, path, f"{path} is not what was {by}"))
        elif (case / path).exists() or (case / path).is_symlink():
            text = f"{path} cannot be read as a file: {found[path].problem} ({by})"
            changes.append(Change(ChangeKind.REPLACED, path, text))
        else:
            changes.append(Change(ChangeKind.DELETED, path, f"{path} is gone ({by})"))
    return tuple(changes)


def _records(entries: tuple[JournalEntry, ...]) -> tuple[JournalEntry, ...]:
    """Lines that say what a file is to be; that of an interrupted command only says what it was left as."""
    return tuple(entry for entry in entries if entry.command != INTERRUPTED)


def _leads_out(path: str) -> bool:
    try:
        refuse_unsafe(encode_path(path))
    except ValueError:
        return True
    return False


def _excuse_interrupted(
    case: Path, artefacts: tuple[Change, ...], entries: tuple[JournalEntry, ...]
) -> tuple[tuple[Change, ...], list[str]]:
    """Take out differences that a killed command explains; they make the answer incomplete, never a pass.

    case.yaml is recorded before it is written: killed in between, it still is what an earlier line recorded. Other
    artefacts are written before they are recorded: killed in between, the lock still names the command, or the line
    by which the next command remembered it.
    """
    holder = read_holder(case)
    left = {a.path: (a.sha256, entry) for entry in entries if entry.command == INTERRUPTED for a in entry.artefacts}
    kept: list[Change] = []
    unfinished: list[str] = []
    for change in artefacts:
        digest, entry = left.get(change.path, ("", None))
        if entry is not None and hash_file(case / change.path).digest == digest:
            unfinished.append(f"{change.statement}; {entry.summary}")
        elif change.path == FACTS_NAME and _is_previous(case, change.path, entries):
            unfinished.append(f"{FACTS_NAME} was about to be replaced when a command was interrupted")
        elif holder and change.kind is ChangeKind.CHANGED and change.path not in (FACTS_NAME, *differed_before(holder)):
            unfinished.append(f"{change.statement}; `spike {holder.get('command')}` was at work on it")
        else:
            kept.append(change)
    return tuple(kept), unfinished


def _excuse_unfinished_evidence(case: Path, changes: tuple[Change, ...]) -> tuple[tuple[Change, ...], list[str]]:
    """Take out of the evidence's changes what a killed command explains: its own draft, and pins on their way out.

    Pins go in one step, and case.yaml, whose digest the journal holds, has said so before: one missing pin is a
    finding.
    """
    holder = read_holder(case)
    draft = f".{holder.get('pid', '?')}.tmp"
    drafts = [c for c in changes if c.kind is ChangeKind.ADDED and "/" not in c.path and c.path.endswith(draft)]
    unfinished = [f"{EVIDENCE}/{c.path} is a draft of the command that was interrupted" for c in drafts]
    gone = [c for c in changes if c.kind is ChangeKind.DELETED and c.path.split("/")[0] == PINNED]
    if gone and not (case / EVIDENCE / PINNED).exists() and _has_let_go(case):
        unfinished.append(f"{EVIDENCE}/{PINNED} is gone: letting go of the pins was interrupted")
    else:
        gone = []
    return tuple(c for c in changes if c not in drafts and c not in gone), unfinished


def _has_let_go(case: Path) -> bool:
    """True where case.yaml names no pin any more, and names those that were let go."""
    try:
        return open_case(case).facts.is_released
    except InputUnreadable:
        return False


def _is_previous(case: Path, path: str, entries: tuple[JournalEntry, ...]) -> bool:
    """The newest line of all recorded this path, and the file is what the line before that recorded."""
    recorded = [a.sha256 for entry in _records(entries) for a in entry.artefacts if a.path == path]
    is_last = bool(entries) and any(a.path == path for a in entries[-1].artefacts)
    return is_last and len(recorded) > 1 and hash_file(case / path).digest == recorded[-2]


def _unfinished(case: Path, chain: tuple[ChainFinding, ...]) -> list[str]:
    reasons = [f.statement for f in chain if not f.is_tampering]
    holder = read_holder(case)
    if holder:
        reasons.append(
            f"`spike {holder.get('command')}` of {holder.get('operator')} (pid {holder.get('pid')} on"
            f" {holder.get('host')}, since {holder.get('since')}) is at work on the case, or was interrupted"
        )
    return reasons


def _without_recorded_additions(changes: tuple[Change, ...], entries: tuple[JournalEntry, ...]) -> tuple[Change, ...]:
    """Evidence that a later command added and recorded is no finding; the journal's digest covers it."""
    recorded = {encode_path(a.path) for entry in entries for a in entry.artefacts}
    return tuple(c for c in changes if c.kind is not ChangeKind.ADDED or f"{EVIDENCE}/{c.path}" not in recorded)


def _unrecorded(case: Path, entries: tuple[JournalEntry, ...]) -> tuple[str, ...]:
    recorded = {a.path for entry in entries for a in entry.artefacts}
    found = (e for e in walk(case) if e.kind is not EntryKind.DIRECTORY)
    return tuple(
        encode_path(e.path)
        for e in found
        if e.path not in recorded and e.path not in _OWN and not e.path.startswith((f"{EVIDENCE}/", f"{HOLDING}/"))
    )


def _check_signature(case: Path, public_key: Path | None) -> tuple[str, bool | None]:
    if public_key is not None:
        try:
            found = check_signature(case, public_key)
        except InputUnreadable as error:
            return error.message, False
        return f"valid, by key {found.key_id[:16]}, over the journal up to entry {found.journal_count}", True
    claimed = signed_key_ids(case)
    if not claimed:
        return "not signed: whoever can rewrite the whole case can hide it", None
    return f"signed by key {claimed[0][:16]}, not checked: give --public-key", None
