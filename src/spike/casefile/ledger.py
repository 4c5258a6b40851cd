"""What did an interrupted freeze get done, and does it still hold?

Lines are only ever appended, one file a process, and thrown away when the manifest is written: digests of files that
are in the case, the guarantee that a pin was begun with, verdicts on whole checkpoints. A digest is believed only
for a file of the same path, size, mtime, ctime and inode, made from a source that has not moved either. A torn line,
or one that makes no sense, is as if it had never been written: the work is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spike.casefile.atomic import write_all, writing
from spike.domain.manifest import Algorithm, EntryKind, Guarantee, ManifestEntry


@dataclass(frozen=True, slots=True)
class Noted:
    """One file of the case whose digest is known."""

    path: str
    """Where it will stand below evidence/, encoded."""
    algorithm: str
    digest: str
    size: int
    mtime_ns: int
    identity: str
    """Inode and ctime_ns of the file in the case."""
    source: str = ""
    """`stamp` of what it was copied or cloned from; "" for a hard link, which is the same file."""


_COLUMNS = tuple(field.name for field in fields(Noted))


def stamp(status: os.stat_result) -> str:
    """Size, mtime, inode and ctime as text."""
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}:{status.st_ctime_ns}"


class Ledger:
    """The notes of every process that worked on one freeze; this one adds to the file `<name>.jsonl`."""

    def __init__(self, directory: Path | None = None, name: str = "freeze") -> None:
        """Everything noted in `directory` so far; without one, notes end with the process."""
        self._own = directory / f"{name}.jsonl" if directory is not None else None
        self._handle = -1
        self._lock = threading.Lock()
        self._files: dict[str, Noted] = {}
        self._guarantees: dict[str, Guarantee] = {}
        self._verdicts: dict[str, str] = {}
        for path in sorted(directory.glob("*.jsonl")) if directory is not None else ():
            for line in _lines(path):
                self._take(line)

    def digest_of(self, path: str, algorithm: Algorithm, status: os.stat_result, source: str = "") -> str:
        """The digest of the file that stands for `path` now, "" where it must be read."""
        noted = self._files.get(path)
        if noted is None or noted.algorithm != algorithm or noted.source != source:
            return ""
        now = (status.st_size, status.st_mtime_ns, f"{status.st_ino}:{status.st_ctime_ns}")
        return noted.digest if now == (noted.size, noted.mtime_ns, noted.identity) else ""

    def noted(self, path: str) -> Noted | None:
        """The newest note about a file, whether it still holds or not."""
        return self._files.get(path)

    def note(self, files: Iterable[Noted]) -> None:
        """Write down finished files, durable bytes first. Raises `SpikeError` where the case cannot be written."""
        found = list(files)
        self._files.update((noted.path, noted) for noted in found)
        self._append([{name: getattr(noted, name) for name in _COLUMNS} for noted in found])

    def num_bytes_below(self, pin: str) -> int:
        """Bytes of the files of a pin that are noted."""
        return sum(n.size for n in self._files.values() if n.path == pin or n.path.startswith(f"{pin}/"))

    def guarantee_of(self, pin: str) -> Guarantee | None:
        """What the pin at this path was begun with."""
        return self._guarantees.get(pin)

    def note_guarantee(self, pin: str, guarantee: Guarantee) -> None:
        """Write down what a pin is begun with, so that whoever goes on does not choose otherwise."""
        self._guarantees[pin] = guarantee
        self._append([{"pin": pin, "guarantee": guarantee.value}])

    def verdict_on(self, bytes_key: str) -> str | None:
        """What was found wrong with a checkpoint of these bytes: "" for nothing, None where nobody looked."""
        return self._verdicts.get(bytes_key)

    def note_verdict(self, bytes_key: str, reason: str) -> None:
        """Write down what reading a whole checkpoint led to."""
        self._verdicts[bytes_key] = reason
        self._append([{"bytes": bytes_key, "reason": reason}])

    def close(self) -> None:
        """Give the file back."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _append(self, rows: list[dict[str, Any]]) -> None:
        if self._own is None:
            return
        data = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()
        with self._lock, writing(self._own):
            if self._handle < 0:
                self._own.parent.mkdir(parents=True, exist_ok=True)
                self._handle = os.open(self._own, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                size = os.fstat(self._handle).st_size
                if size and os.pread(self._handle, 1, size - 1) != b"\n":
                    data = b"\n" + data  # the line that a kill tore stays alone
            write_all(self._handle, data)

    def _take(self, row: dict[str, Any]) -> None:
        match row:
            case {"pin": str(pin), "guarantee": str(text)} if text in tuple(Guarantee):
                self._guarantees[pin] = Guarantee(text)
            case {"bytes": str(key), "reason": str(reason)}:
                self._verdicts[key] = reason
            case {
                "path": str(path),
                "algorithm": str(algorithm),
                "digest": str(digest),
                "size": int(size),
                "mtime_ns": int(mtime_ns),
                "identity": str(identity),
                "source": str(source),
            }:
                self._files[path] = Noted(path, algorithm, digest, size, mtime_ns, identity, source)
            case _:
                pass  # torn, or of another version


def bytes_key(entries: Iterable[ManifestEntry]) -> str:
    """One digest of all files of a pin, path by path: the same again means the same bytes in the same places."""
    lines = sorted(f"{e.path}\0{e.digest}\n" for e in entries if e.kind is EntryKind.FILE)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except OSError:  # a ledger that cannot be read costs time, never truth
        return
    for line in data.split(b"\n")[:-1]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row
