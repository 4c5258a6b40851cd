"""How does a closed case let go of its checkpoints, and what is left to prove what they were?"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from spike.actions.evidence.freeze import sign
from spike.actions.evidence.frozen_again import COMMAND
from spike.casefile.case import Case
from spike.casefile.manifest import EVIDENCE, SIGNATURE_NAME, read_manifest, take_stock, write_manifest
from spike.casefile.pinning import release
from spike.domain.case import PIN_RELEASED
from spike.domain.errors import SpikeError
from spike.domain.manifest import RELEASED_FILE, EntryKind, Exclusion, Manifest

RELEASED = ".released"
"""Where pins go on their way out, in one step."""


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
            sign(case, key)
    return num_files


def _forget_pins(case: Case, when: str) -> int:
    facts = case.facts
    pins = [p for p in (facts.last_good, *facts.earlier, *facts.suspect) if p is not None]
    notes = tuple((p.original, f"{PIN_RELEASED} {when}") for p in pins)
    if pins:
        case.save_facts(replace(facts, last_good=None, earlier=(), suspect=(), not_pinned=(*facts.not_pinned, *notes)))
    return len(pins)


def _without_pins(case: Case, manifest: Manifest, when: str) -> Manifest:
    """The manifest of what is left; every released file is an exclusion with its digest."""
    released = tuple(
        Exclusion(e.path, f"{RELEASED_FILE} {when}; {manifest.algorithm} {e.digest}; {e.size} bytes from {e.origin}")
        for e in manifest.entries
        if e.role == "checkpoint" and e.kind is EntryKind.FILE
    )
    return take_stock(
        case.path / EVIDENCE,
        tuple(e for e in manifest.entries if e.role != "checkpoint"),
        algorithm=manifest.algorithm,
        exclusions=(*manifest.exclusions, *released),
        references=manifest.references,
    )
