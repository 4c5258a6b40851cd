"""How much does keeping evidence cost, against the least that reading the same bytes can cost?

Prints ratios measured in one process, cases interleaved, medians of several rounds; absolute figures move with the
machine, ratios much less. Run: python bench/hashing.py [--gib 1] [--rounds 5] [--growth]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from spike.casefile.hashing import hash_file, hash_tree
from spike.casefile.ledger import Ledger
from spike.casefile.manifest import take_stock, write_manifest
from spike.casefile.pinning import pin_checkpoint
from spike.casefile.tree import walk
from spike.domain.manifest import Algorithm, EntryKind

NUM_SMALL = 10_000
SMALL_BYTES = 16 << 10
CHUNK = 1 << 20
GROWTH_GB = (0.5, 2.0, 8.0)
MEMORY = """
import sys
from pathlib import Path
from spike.casefile.manifest import take_stock, write_manifest
from spike.casefile.pinning import pin_checkpoint
import blake3
def peak():  # of this program alone: getrusage also counts what the process was before exec
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
case = Path(sys.argv[2])
pin = pin_checkpoint(Path(sys.argv[1]), case / "evidence/pinned/x/c", root=case / "evidence", copy_below_bytes=0)
write_manifest(case, take_stock(case / "evidence", pin.entries))
print((peak() - before) / 1024)
"""
"""Peak memory is that of a process, so each measurement has its own."""


def main() -> None:
    """Make the files, time every case, print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the one large file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where to put the files (default: the temporary directory)")
    parser.add_argument("--growth", action="store_true", help="also freeze 0.5, 2 and 8 GB; needs 16 GB of disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        root = Path(place)
        big = _make_big(root / "big" / "file", int(options.gib * (1 << 30)))
        small = _make_small(root / "small")
        print(f"one file of {options.gib} GiB, page cache warm, {options.rounds} rounds")
        _report(_big_cases(root, big), options.rounds, "hashlib loop", big.stat().st_size / 1e9, "GB/s")
        print(f"{NUM_SMALL} files of {SMALL_BYTES >> 10} KiB")
        _report(_small_cases(root, small), options.rounds, "bare open-read loop", NUM_SMALL, "files/s")
        for name, source in (("one large file", big.parent), ("many small files", small)):
            print(f"memory over import, freeze of {name}: {_memory(root, source):.0f} MB")
        if options.growth:
            _growth(root, options.rounds)
        reason = _why_no_model_signing()
        if reason:
            print(f"no comparison with model-signing: {reason}")


def _freeze(root: Path, source: Path, algorithm: Algorithm = Algorithm.SHA256, *, copy: bool = False) -> None:
    """Pin, hash, note, write the manifest: all that freeze does with a checkpoint's bytes."""
    case = root / f"case-{next(_NUMBERS)}"
    evidence = case / "evidence"
    pin = pin_checkpoint(
        source,
        evidence / "pinned" / "x" / source.name,
        root=evidence,
        algorithm=algorithm,
        copy_below_bytes=1 << 50 if copy else 0,
        ledger=Ledger(case / ".held"),
    )
    write_manifest(case, take_stock(evidence, pin.entries, algorithm=algorithm))
    shutil.rmtree(case)


_NUMBERS = itertools.count()


def _big_cases(root: Path, big: Path) -> dict[str, Callable[[], object]]:
    cases: dict[str, Callable[[], object]] = {
        "read only": lambda: _read_all(big),
        "hashlib loop": lambda: _hashlib_loop(big),
        "hashlib.file_digest": lambda: _file_digest(big),
        "spike sha256": lambda: hash_file(big),
        "spike blake3": lambda: hash_file(big, Algorithm.BLAKE3),
        "spike freeze sha256, linked": lambda: _freeze(root, big.parent),
        "spike freeze blake3, linked": lambda: _freeze(root, big.parent, Algorithm.BLAKE3),
        "cp, then hashlib loop": lambda: _copy_then_hash(root, big),
        "spike freeze sha256, copied": lambda: _freeze(root, big.parent, copy=True),
    }
    return cases | _model_signing(big)


def _small_cases(root: Path, small: Path) -> dict[str, Callable[[], object]]:
    files = [(e.path, e.size) for e in walk(small) if e.kind is EntryKind.FILE]
    names = [os.fspath(small / path) for path, _ in files]
    cases: dict[str, Callable[[], object]] = {
        "bare open-read loop": lambda: [_open_read(name) for name in names],
        "open-read-sha256 loop": lambda: [hashlib.sha256(_open_read(name)).hexdigest() for name in names],
        "spike sha256, 1 worker": lambda: hash_tree(small, files, workers=1),
        "spike sha256, 2 workers": lambda: hash_tree(small, files, workers=2),
        "spike blake3, 1 worker": lambda: hash_tree(small, files, Algorithm.BLAKE3, workers=1),
        "spike walk + sha256 + manifest": lambda: take_stock(small),
        "spike freeze sha256, linked": lambda: _freeze(root, small),
    }
    return cases | _model_signing(small)


def _growth(root: Path, rounds: int) -> None:
    """Time and memory of a freeze against size: both rows should show the same ratio and the same memory."""
    print("growth: freeze of one file, linked, sha256")
    for size in GROWTH_GB:
        big = _make_big(root / f"grown-{size}" / "file", int(size * 1e9))
        times: dict[str, list[float]] = {"loop": [], "freeze": []}
        for _ in range(max(2, rounds // 2)):
            for name, case in (
                ("loop", lambda big=big: _hashlib_loop(big)),
                ("freeze", lambda big=big: _freeze(root, big.parent)),
            ):
                start = time.perf_counter()
                case()
                times[name].append(time.perf_counter() - start)
        loop, freeze = statistics.median(times["loop"]), statistics.median(times["freeze"])
        memory = _memory(root, big.parent)
        print(
            f"  {size:4.1f} GB  {freeze:7.2f} s  {freeze / size:6.2f} s/GB"
            f"  {freeze / loop:5.2f} x hashlib loop  {memory:4.0f} MB over import"
        )
        shutil.rmtree(big.parent)


def _memory(root: Path, source: Path) -> float:
    case = root / f"case-{next(_NUMBERS)}"
    command = (sys.executable, "-c", MEMORY, str(source), str(case))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(case)
    return float(done.stdout)


def _copy_then_hash(root: Path, big: Path) -> None:
    """What a careful person would type."""
    copy = root / "copy"
    with big.open("rb") as source, copy.open("wb") as target:
        shutil.copyfileobj(source, target, CHUNK)
        target.flush()
        os.fsync(target.fileno())
    _hashlib_loop(copy)
    copy.unlink()


def _why_no_model_signing() -> str:
    try:
        import model_signing.hashing  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        missing = "; it needs pyOpenSSL without declaring it" if "OpenSSL" in str(error) else ""
        return f"{error}{missing}"
    return ""


def _model_signing(path: Path) -> dict[str, Callable[[], object]]:
    """Its default hashing, where it is installed and imports."""
    if _why_no_model_signing():
        return {}
    from model_signing import hashing

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
    path.parent.mkdir(parents=True)
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
