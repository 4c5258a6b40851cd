"""Where does one investigation live, and how is anything written to it?

A case is a directory beside the run, never in it. Every write is atomic, every command leaves a journal line, and
a crash at any point leaves a case that opens and a command that can be typed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spike.casefile import journal
from spike.casefile.atomic import fsync_directory, inside, write_atomic, writing
from spike.casefile.codec import dumps, from_payload, to_payload
from spike.casefile.lock import case_lock, differed_before
from spike.domain.case import CaseFacts
from spike.domain.errors import ExitCode, InputUnreadable, SpikeError
from spike.domain.journal import INTERRUPTED, Artefact, JournalEntry
from spike.domain.redaction import redact
from spike.domain.run import Run

FACTS_NAME = "case.yaml"
FACTS_SCHEMA = "spike.case/1"
_CHUNK_BYTES = 1 << 20
_REWRITTEN_BYTES = 16 << 20
"""Tables and reports are smaller; traces and batches are larger, and no command writes those a second time."""
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
_WRITTEN_TO = ("", "evidence", "figures", "trials/*")
"""Directories whose files are this case's own; below the others lies what was copied, under any name at all."""


class _Plain(yaml.SafeLoader):
    """Without aliases: case.yaml has none, and a few lines of them stand for more than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, and a case is written without")
        return super().compose_node(parent, index)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


@dataclass(slots=True)
class Case:
    """An open case directory. `facts` is what case.yaml held when it was opened or last saved."""

    path: Path
    facts: CaseFacts

    def save_facts(self, facts: CaseFacts) -> None:
        """Replace case.yaml. The journal line comes first: a crash in between leaves the file that it had before."""
        data = _facts_bytes(facts)
        artefact = Artefact(FACTS_NAME, hashlib.sha256(data).hexdigest())
        journal.append(self.path, "case", f"{FACTS_NAME} replaced", 0, (artefact,))
        write_atomic(self.path / FACTS_NAME, data)
        self.facts = facts

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Write one artefact, whole or not at all."""
        write_atomic(inside(self.path, relative), data)

    def write_text(self, relative: str, text: str) -> None:
        """Write one UTF-8 artefact; lone surrogates (undecodable file names) survive as they came."""
        self.write_bytes(relative, text.encode("utf-8", "surrogateescape"))

    def write_json(self, relative: str, payload: dict[str, Any]) -> None:
        """Write one JSON artefact."""
        self.write_text(relative, dumps(payload))

    def read_json(self, relative: str) -> dict[str, Any] | None:
        """The artefact's payload, or None where it was not written yet. Raises `InputUnreadable`."""
        path = inside(self.path, relative)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise InputUnreadable(f"cannot read {path}: {error}", hint=f"spike verify --case {self.path}") from error
        if not isinstance(found, dict):
            raise InputUnreadable(f"{path} is not a JSON object", hint=f"spike verify --case {self.path}")
        return found

    def trial_dir(self, trial_id: str) -> Path:
        """Directory of this trial, created where it does not exist."""
        path = inside(self.path, f"trials/{trial_id}")
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def trial_ids(self) -> tuple[str, ...]:
        """Directories under trials/, in order of their names."""
        trials = self.path / "trials"
        return tuple(sorted(p.name for p in trials.iterdir() if p.is_dir())) if trials.is_dir() else ()

    def record(self, command: str, summary: str, exit_code: int, artefacts: Sequence[str] = ()) -> None:
        """Append a journal line with the digests of `artefacts` as they are now; a directory means its files.

        Raises `ValueError` for an artefact that is not there, `SpikeError` where the case cannot be written.
        """
        found = tuple(a for name in artefacts for a in self._artefacts(name))
        journal.append(self.path, redact(command), redact(summary), exit_code, found)

    def journal(self) -> tuple[JournalEntry, ...]:
        """Every entry, oldest first."""
        return journal.read_journal(self.path)

    @contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Keep other commands out for as long as this one runs; `SpikeError` names the holder."""
        with case_lock(self.path, command, remember=self._remember_interrupted, differing=self._differing):
            _clear_temporary(self.path)
            yield

    def _remember_interrupted(self, holder: dict[str, str]) -> None:
        """Record what a killed command wrote and did not record, before its note in the lock is gone.

        That is no record of what the files should be: they stay unfinished until a command records them. What differed
        before that command came is not its work, and stays a finding.
        """
        not_its_own = differed_before(holder)
        left = tuple(a for a in self._not_recorded() if a.path not in not_its_own)
        if left:
            command, operator = holder.get("command", "?"), holder.get("operator", "?")
            text = f"`spike {command}` of {operator} was interrupted before it recorded what it had written"
            journal.append(self.path, INTERRUPTED, redact(text), int(ExitCode.INCONCLUSIVE), left)

    def _differing(self) -> frozenset[str]:
        return frozenset(artefact.path for artefact in self._not_recorded())

    def _not_recorded(self) -> tuple[Artefact, ...]:
        """Files of the size that commands rewrite, as they are now, that no line of the journal explains."""
        try:
            entries = journal.read_journal(self.path)
        except SpikeError:  # damaged: verify says so
            return ()
        known: dict[str, dict[bool, str]] = {}
        for entry in entries:
            for artefact in entry.artefacts:
                known.setdefault(artefact.path, {})[entry.command == INTERRUPTED] = artefact.sha256
        found = [a for path in known for a in self._as_it_is(path)]
        return tuple(a for a in found if a.sha256 not in known[a.path].values())

    def _as_it_is(self, relative: str) -> list[Artefact]:
        try:
            path = inside(self.path, relative)
            is_small = path.is_file() and not path.is_symlink() and path.stat().st_size <= _REWRITTEN_BYTES
            return [Artefact(relative, _sha256(path))] if is_small else []
        except (ValueError, OSError):  # gone, or not a path of this case: verify says so
            return []

    def _artefacts(self, relative: str) -> list[Artefact]:
        path = inside(self.path, relative)
        if path.is_dir() and not path.is_symlink():
            files = sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())
        elif path.is_file():
            files = [path]
        else:
            raise ValueError(f"artefact {relative!r} is not in {self.path}")
        return [Artefact(p.relative_to(self.path).as_posix(), _sha256(p)) for p in files]


def cases_dir(run: Run, override: Path | None = None) -> Path:
    """Where cases of this run are kept: `override`, SPIKE_CASES, `cases:` of spike.yaml, `<run>.spike`.

    Raises `SpikeError` for a place inside the run: spike writes nothing there.
    """
    directory = Path(run.directory)
    chosen = override or os.environ.get("SPIKE_CASES") or run.cases or f"{run.directory}.spike"
    cases = (directory / chosen).resolve()
    if cases.is_relative_to(directory.resolve()):
        raise SpikeError(
            f"cases would be kept in {cases}, which is inside the run {directory}",
            hint=f"keep them beside it: SPIKE_CASES={directory}.spike",
        )
    return cases


def create_case(cases: Path, facts: CaseFacts) -> Case:
    """A new case directory `cases/<facts.id>`. It appears complete with its facts, or not at all."""
    path = inside(cases, facts.id)
    if path.exists():
        raise SpikeError(f"case {path} exists already", hint=f"spike status --case {path}")
    draft = cases / f".{facts.id}.{os.getpid()}.new"
    with writing(path):
        cases.mkdir(parents=True, exist_ok=True)
        _clear_drafts(cases)
        draft.mkdir()
    write_atomic(draft / FACTS_NAME, _facts_bytes(facts))
    Case(draft, facts).record("case", f"case {facts.id} opened", 0, (FACTS_NAME,))
    with writing(path):
        try:
            draft.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(draft, ignore_errors=True)
            raise SpikeError(f"case {path} exists already", hint=f"spike status --case {path}") from error
        fsync_directory(cases)
    return Case(path, facts)


def open_case(path: Path) -> Case:
    """The case in this directory. Raises `InputUnreadable` where there is none or its facts do not parse."""
    source = path / FACTS_NAME
    try:
        found = yaml.load(source.read_text(encoding="utf-8"), _Plain)
    except FileNotFoundError:
        raise InputUnreadable(f"{path} is not a case: it has no {FACTS_NAME}", hint="spike freeze") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputUnreadable(f"cannot read {source}: {error}", hint=f"spike verify --case {path}") from error
    if not isinstance(found, dict):
        raise InputUnreadable(f"{source} is not a mapping", hint=f"spike verify --case {path}")
    return Case(path.absolute(), from_payload(CaseFacts, found, schema=FACTS_SCHEMA, source=str(source)))


def list_cases(cases: Path) -> tuple[Path, ...]:
    """Case directories, oldest first: their names begin with the time at which they were opened."""
    if not cases.is_dir():
        return ()
    return tuple(sorted(p for p in cases.iterdir() if not p.name.startswith(".") and (p / FACTS_NAME).is_file()))


def latest_case(cases: Path) -> Case | None:
    """The newest case kept in `cases`, or None."""
    found = list_cases(cases)
    return open_case(found[-1]) if found else None


def _clear_drafts(cases: Path) -> None:
    """Remove what a command left that was killed before its case had a name."""
    for draft in cases.glob(".*.new"):
        pid = draft.name.split(".")[-2]
        if not pid.isdigit() or int(pid) == os.getpid() or not Path(f"/proc/{pid}").exists():
            shutil.rmtree(draft, ignore_errors=True)


def _clear_temporary(case: Path) -> None:
    """Remove files that a killed command was about to rename; whoever holds the lock is the only one that writes."""
    for place in _WRITTEN_TO:
        for path in case.glob(f"{place}/.*.tmp" if place else ".*.tmp"):
            if _TEMPORARY.fullmatch(path.name) and not path.is_dir():
                with suppress(OSError):
                    path.unlink()


def _facts_bytes(facts: CaseFacts) -> bytes:
    payload = to_payload(facts, schema=FACTS_SCHEMA)
    return yaml.dump(payload, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=110).encode()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()
