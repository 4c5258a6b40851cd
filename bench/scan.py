"""How far is the scan of a checkpoint from merely reading it, and from what people write by hand?

    python bench/scan.py [--mib 1024] [--repeats 5]

Ratios of the least disturbed of several interleaved runs in one process: absolute figures drift on a shared machine,
ratios much less. The scan is timed alone (statistics), with the digest (what `spike freeze` and `spike check` do), and
against its peers: reading without work, SHA-256 alone, and the torch expressions that a hand-written finite check
consists of.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CHUNK = 1 << 20
TARGETS = {"float32": (2.5, 30.0), "bfloat16": (4.0, 30.0), "float8_e4m3fn": (12.0, 0.0)}
"""(at most this many read floors, at least this many times as fast as naive torch); 0: no bound."""
MAX_SCAN_AND_DIGEST = 1.35
"""Times SHA-256 alone."""
MAX_RSS_MIB = 150


def write(path: Path, dtype: str, num_bytes: int) -> None:
    """A safetensors file with one large tensor of ordinary weights."""
    import torch
    from safetensors.torch import save_file

    kind = getattr(torch, dtype)
    count = num_bytes // torch.empty(0, dtype=kind).element_size()
    torch.manual_seed(0)
    parts = [torch.randn(min(1 << 24, count - at)).mul_(0.02).to(kind) for at in range(0, count, 1 << 24)]
    save_file({"w": torch.cat(parts)}, path)


def read_only(path: Path) -> None:
    """The floor: every byte once, into one buffer."""
    buffer = memoryview(bytearray(CHUNK))
    handle = os.open(path, os.O_RDONLY)
    at = 0
    while count := os.preadv(handle, [buffer], at):
        at += count
    os.close(handle)


def sha256_only(path: Path) -> None:
    """The digest alone."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    handle = os.open(path, os.O_RDONLY)
    at = 0
    while count := os.preadv(handle, [buffer], at):
        digest.update(buffer[:count])
        at += count
    os.close(handle)


def statistics_only(path: Path) -> None:
    """The scan's counting, without the digest."""
    from spike.readers.checkpoints import inspect_checkpoint, lazy_tensors
    from spike.readers.checkpoints._statistics import Statistics, counter

    scratch = np.empty(CHUNK, dtype=np.uint8), np.empty(CHUNK, dtype=np.uint8)
    buffer = memoryview(bytearray(CHUNK))
    for tensor in lazy_tensors(inspect_checkpoint(path)):
        count, totals = counter(tensor.dtype, scratch), Statistics()
        for chunk in tensor.data.chunks(lambda: buffer):
            count(np.frombuffer(chunk, dtype=np.uint8), totals)


def scan(path: Path) -> None:
    """What spike does: statistics and digest in one pass."""
    from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint

    found = scan_checkpoint(inspect_checkpoint(path))
    assert not found.unreadable
    assert found.tensors[0].num_nonfinite == 0


def naive_torch(path: Path) -> None:
    """A finite check as it is usually written, on the whole tensor."""
    import torch
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - the handle is no mapping
            tensor = file.get_tensor(name)
            tensor = tensor if tensor.dtype not in (torch.float8_e4m3fn,) else tensor.float()
            tensor.isfinite().all().item()
            tensor.isnan().sum().item()
            tensor.isinf().sum().item()
            tensor.abs().max().item()
            tensor.float().norm().item()
            (tensor == 0).sum().item()


def peak_rss_mib(path: Path) -> float:
    """Peak memory of a process that scans the file, over one that only imports what scanning needs."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint, readers\n"
        "import spike.readers.checkpoints._scan\n"
        "readers()\n"
        "if len(sys.argv) > 1: scan_checkpoint(inspect_checkpoint(Path(sys.argv[1])))\n"
        # ru_maxrss would include the parent of before the exec
        "print(next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM')) / 1024)\n"
    )
    sizes = [
        float(subprocess.run([sys.executable, "-c", program, *args], check=True, capture_output=True, text=True).stdout)
        for args in ([], [str(path)])
    ]
    return sizes[1] - sizes[0]


def fastest(cases: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Least seconds of each case, interleaved so that a busy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


def bench(dtype: str, mib: int, repeats: int, folder: Path) -> bool:
    """One element type; True where every bound holds."""
    import torch

    torch.set_num_threads(1)
    path = folder / f"{dtype}.safetensors"
    write(path, dtype, mib << 20)
    cases: dict[str, Callable[[], None]] = {
        "read": lambda: read_only(path),
        "sha256": lambda: sha256_only(path),
        "statistics": lambda: statistics_only(path),
        "scan": lambda: scan(path),
    }
    read_only(path)  # warm the page cache for every case alike
    took = fastest(cases, repeats)
    naive = fastest({"naive torch": lambda: naive_torch(path)}, 1)["naive torch"]
    floor, speed = took["statistics"] / took["read"], naive / took["statistics"]
    both, rss = took["scan"] / took["sha256"], peak_rss_mib(path)
    max_floor, min_speed = TARGETS[dtype]
    print(f"{dtype}: {mib} MiB, read {mib / 1024 / took['read']:.1f} GiB/s")
    rows = [
        ("statistics / read floor", floor, f"<= {max_floor}", floor <= max_floor),
        ("naive torch / statistics", speed, f">= {min_speed}" if min_speed else "no bound", speed >= min_speed),
        ("scan with digest / sha256 alone", both, f"<= {MAX_SCAN_AND_DIGEST}", both <= MAX_SCAN_AND_DIGEST),
        ("peak memory over import, MiB", rss, f"<= {MAX_RSS_MIB}", rss <= MAX_RSS_MIB),
    ]
    for what, value, bound, holds in rows:
        print(f"  {what:<34} {value:8.2f}   {bound:<10} {'holds' if holds else 'MISSED'}")
    path.unlink()
    return all(holds for *_, holds in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of each file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=sorted(TARGETS), action="append")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        held = [bench(name, args.mib, args.repeats, Path(folder)) for name in args.dtype or TARGETS]
    print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
