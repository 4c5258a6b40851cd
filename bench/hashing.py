"""How much does keeping evidence cost, against the least that reading the same bytes can cost?

Prints ratios measured in one process, cases interleaved, medians of several rounds; absolute figures move with the
machine, ratios much less. Run: python bench/hashing.py [--gib 1] [--rounds 5]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from spike.casefile.hashing import hash_file, hash_tree
from spike.casefile.manifest import take_stock
from spike.casefile.tree import walk
from spike.domain.manifest import Algorithm, EntryKind

NUM_SMALL = 10_000
SMALL_BYTES = 16 << 10
CHUNK = 1 << 20


def main() -> None:
    """Make the files, time every case, print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the one large file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where to put the files (default: the temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        root = Path(place)
        big = _make_big(root / "big", int(options.gib * (1 << 30)))
        small = _make_small(root / "small")
        print(f"one file of {options.gib} GiB, page cache warm, {options.rounds} rounds")
        _report(_big_cases(big), options.rounds, "hashlib loop", big.stat().st_size / 1e9, "GB/s")
        print(f"{NUM_SMALL} files of {SMALL_BYTES >> 10} KiB")
        _report(_small_cases(small), options.rounds, "bare open-read loop", NUM_SMALL, "files/s")
    if not _model_signing(root):
        print("model-signing is not installed here (or does not import): no comparison made")


def _big_cases(big: Path) -> dict[str, Callable[[], object]]:
    cases: dict[str, Callable[[], object]] = {
        "read only": lambda: _read_all(big),
        "hashlib loop": lambda: _hashlib_loop(big),
        "hashlib.file_digest": lambda: _file_digest(big),
        "spike sha256": lambda: hash_file(big),
        "spike blake3": lambda: hash_file(big, Algorithm.BLAKE3),
    }
    return cases | _model_signing(big)


def _small_cases(small: Path) -> dict[str, Callable[[], object]]:
    files = [(e.path, e.size) for e in walk(small) if e.kind is EntryKind.FILE]
    names = [os.fspath(small / path) for path, _ in files]
    cases: dict[str, Callable[[], object]] = {
        "bare open-read loop": lambda: [_open_read(name) for name in names],
        "open-read-sha256 loop": lambda: [hashlib.sha256(_open_read(name)).hexdigest() for name in names],
        "spike sha256, 1 worker": lambda: hash_tree(small, files, workers=1),
        "spike sha256, 2 workers": lambda: hash_tree(small, files, workers=2),
        "spike blake3, 1 worker": lambda: hash_tree(small, files, Algorithm.BLAKE3, workers=1),
        "spike walk + sha256 + manifest": lambda: take_stock(small),
    }
    return cases | _model_signing(small)


def _model_signing(path: Path) -> dict[str, Callable[[], object]]:
    """Its default hashing, where it is installed and imports: 1.1.1 needs pyOpenSSL without declaring it."""
    try:
        from model_signing import hashing  # type: ignore[import-not-found]
    except ImportError:
        return {}
    return {"model-signing sha256": lambda: hashing.Config().hash(path)}


def _report(cases: dict[str, Callable[[], object]], rounds: int, reference: str, amount: float, unit: str) -> None:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        ratio = median / medians[reference]
        print(f"  {name:<32} {amount / median:>12.4g} {unit:<8} {ratio:6.2f} x {reference}")


def _make_big(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        for _ in range(max(1, size // CHUNK)):
            file.write(os.urandom(CHUNK))
    return path


def _make_small(path: Path) -> Path:
    for number in range(NUM_SMALL):
        directory = path / f"{number // 500:03d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:05d}.bin").write_bytes(os.urandom(SMALL_BYTES))
    return path


def _read_all(path: Path) -> int:
    buffer = bytearray(CHUNK)
    total = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def _hashlib_loop(path: Path) -> str:
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_read(name: str) -> bytes:
    handle = os.open(name, os.O_RDONLY)
    try:
        return os.read(handle, SMALL_BYTES + 1)
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()
