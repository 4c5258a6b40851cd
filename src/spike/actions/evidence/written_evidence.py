"""What does spike itself write into the evidence? Signals, environment, code state and the situation at the onset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from spike.casefile.case import Case
from spike.casefile.codec import dumps, to_payload
from spike.casefile.manifest import EVIDENCE
from spike.casefile.signals_store import SIGNALS_NAME, write_signals
from spike.casefile.small_files import Kept, keep_bytes
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import EntryKind, Exclusion, ManifestEntry
from spike.domain.measured import NotMeasured
from spike.domain.redaction import redact_counted
from spike.domain.run import Run
from spike.domain.signals import Signals
from spike.domain.situation import Situation
from spike.domain.source import SourceState
from spike.readers.environment import read_environment, read_nvidia_smi
from spike.readers.hardware.nvml import read_nvml
from spike.readers.source_tree import history

HISTORY_COMMITS = 200
SOURCE_SCHEMA = "spike.source/1"
CAPTURED = ("hardware.json", "nvidia-smi.xml")
"""Counters of the machine that froze the evidence, below evidence/."""


def write_signals_entry(case: Case, signals: Signals) -> ManifestEntry:
    """Keep the signals as Parquet."""
    write_signals(case.path, signals)
    return ManifestEntry(SIGNALS_NAME.removeprefix(f"{EVIDENCE}/"), "signals", EntryKind.FILE, 0, 0, 0)


def write_environment(case: Case, run: Run) -> ManifestEntry:
    """Keep what the run ran on, as this machine shows it."""
    facts = read_environment(run.launch, Path(run.cwd or run.directory), run.env)
    return _keep_json(case, "environment.json", to_payload(facts, schema="spike.environment/1"), "environment")


def write_hardware(case: Case) -> list[ManifestEntry]:
    """Keep the counters of this machine's GPUs: from NVML, else from nvidia-smi; nothing where no GPU is."""
    found = read_nvml()
    if not isinstance(found, NotMeasured):
        return [_keep_json(case, CAPTURED[0], found, "hardware")]
    text = read_nvidia_smi()
    if isinstance(text, NotMeasured):
        return []
    kept = keep_bytes(text, case.path / EVIDENCE, CAPTURED[1], "hardware")
    return [kept.entry] if isinstance(kept, Kept) else []


def write_situation(case: Case, situation: Situation) -> ManifestEntry:
    """Keep step, tokens, learning rate and the readings around the onset."""
    return _keep_json(case, "situation.json", to_payload(situation, schema="spike.situation/1"), "situation")


def write_source(case: Case, source: SourceState | NotMeasured) -> tuple[list[ManifestEntry], list[Exclusion]]:
    """Keep commit, history and the uncommitted patch; or why there is none.

    A patch with secrets taken out may not apply any more; how many were is in state.json, with the digest of the
    patch as git wrote it.
    """
    if isinstance(source, NotMeasured):
        reason: dict[str, Any] = {"schema": SOURCE_SCHEMA, "state": to_payload(source)}
        return [_keep_json(case, "source/state.json", reason, "source")], []
    try:
        commits = history(Path(source.root), HISTORY_COMMITS)
    except InputUnreadable:
        commits = ()
    _, secrets = redact_counted(source.patch.decode("utf-8", "surrogateescape"))
    payload: dict[str, Any] = {
        "schema": SOURCE_SCHEMA,
        "state": to_payload(replace(source, patch=b"")),
        "secrets_taken_out_of_patch": secrets,
        "history": [to_payload(commit) for commit in commits],
    }
    entries = [_keep_json(case, "source/state.json", payload, "source")]
    if not source.patch:
        return entries, []
    kept = keep_bytes(source.patch, case.path / EVIDENCE, "source/uncommitted.patch", "source")
    if isinstance(kept, Exclusion):
        return entries, [kept]
    return [*entries, kept.entry], []


def _keep_json(case: Case, name: str, payload: dict[str, Any], role: str) -> ManifestEntry:
    kept = keep_bytes(dumps(payload).encode("utf-8", "surrogateescape"), case.path / EVIDENCE, name, role)
    assert isinstance(kept, Kept), "JSON is text"
    return kept.entry
