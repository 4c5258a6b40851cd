"""What did the trial itself log? Only its own lines: what the run's files held before is cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_TABLES = (".csv", ".tsv")


def collect_logs(written: Iterable[tuple[Path, str]], run: str, metrics: Path) -> None:
    """Copy every (file, real path) to `metrics`, relative to the run, or below `outside/` where it lies elsewhere.

    Where the file begins with all that the real one holds, only what was appended is kept (a table keeps its
    header line); a file that the trial wrote anew is kept whole; one that it left equal is not kept.
    """
    for path, real in written:
        target = metrics / _relative(real, run)
        target.parent.mkdir(parents=True, exist_ok=True)
        original = Path(real)
        known = original.stat().st_size if original.is_file() and begins_with(path, original) else 0
        if known and known == path.stat().st_size:
            continue
        with path.open("rb") as source, target.open("wb") as sink:
            if known and path.suffix in _TABLES:
                sink.write(source.readline())
            if known:
                source.seek(known)
            shutil.copyfileobj(source, sink, _CHUNK_BYTES)


def _relative(real: str, run: str) -> str:
    if real.startswith(run + "/"):
        name = real[len(run) + 1 :]
        return f"run-{name}" if name in ("stdout.log", "stderr.log") else name
    return "outside" + real


def begins_with(path: Path, beginning: Path) -> bool:
    """True where `path` starts with every byte of `beginning`."""
    if path.stat().st_size < beginning.stat().st_size:
        return False
    with path.open("rb") as whole, beginning.open("rb") as part:
        while chunk := part.read(_CHUNK_BYTES):
            if whole.read(len(chunk)) != chunk:
                return False
    return True
