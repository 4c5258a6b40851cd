"""How far is the scan of a checkpoint from merely reading it, and from what people write by hand?

    python bench/scan.py [--mib 512] [--repeats 5] [--dtype bfloat16] [--growth]

Ratios of the least disturbed of several interleaved runs in one process: absolute figures drift on a shared machine,
ratios much less. The scan is timed alone (`scan_checkpoint(digests=False)`), as a passenger of a SHA-256 over the file
(`open_tap`, which is what `spike freeze` does) in the hashing thread and beside it, and against its peers: reading
without work, SHA-256 alone, and the torch expressions that a hand-written finite check consists of.

float8 weights are scaled so that their largest is the largest of the type, as checkpoints with scales hold them.
What runs in one thread is compared by the processor time that it used, which others on the machine disturb little; what
runs in two, by the clock, which needs two idle cores.

Known to miss, measured on a busy machine: float32 takes 3.0 to 3.5 read floors, bfloat16 4.3 to 5.5, float8 9.7 to 13,
and in the thread of the hash 1.1 to 1.3, 1.3 to 1.4 and 1.8 to 2.1 hashes. Four reductions and a dot product, with two
masked copies for bfloat16 and four for float8, are the fewest passes that numpy needs for exact facts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
TARGETS = {"float32": (2.0, 50.0), "bfloat16": (3.0, 50.0), "float16": (0.0, 50.0), "float8_e4m3fn": (8.0, 0.0)}
"""(at most this many read floors, at least this many times as fast as naive torch); 0: no bound."""
MAX_BESIDE, MAX_IN_TURN = 1.0, 1.3
"""Hash and scan, times SHA-256 alone: with a thread for each, and in one thread."""
MAX_RSS_MIB = 150
MAX_GROWTH = 1.1
"""Seconds a byte at the largest size, times those at the smallest."""


def write(path: Path, dtype: str, num_bytes: int) -> None:
    """A safetensors file with one large tensor of ordinary weights, written a block at a time."""
    import torch

    kind = getattr(torch, dtype)
    count = num_bytes // kind.itemsize
    torch.manual_seed(0)
    block = torch.randn(min(1 << 22, count))
    block = block.mul_(torch.finfo(kind).max / block.abs().max() if kind.itemsize == 1 else 0.02).to(kind)
    raw = block.view(torch.uint8).numpy().tobytes()
    with path.open("wb") as file:
        file.write(header(dtype, count, num_bytes))
        for _ in range(num_bytes // len(raw)):
            file.write(raw)


def header(dtype: str, count: int, num_bytes: int) -> bytes:
    """The header of a safetensors file with one tensor."""
    names = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float8_e4m3fn": "F8_E4M3"}
    entry = {"w": {"dtype": names[dtype], "shape": [count], "data_offsets": [0, num_bytes]}}
    text = json.dumps(entry).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


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


def scan(path: Path) -> None:
    """Statistics of every tensor, without digests."""
    from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint

    found = scan_checkpoint(inspect_checkpoint(path), digests=False)
    assert not found.unreadable
    assert found.tensors[0].num_nonfinite == 0


def in_turn(path: Path) -> None:
    """SHA-256 of the file and the facts of its tensors in one pass and one thread."""
    from spike.readers.checkpoints import inspect_checkpoint, open_tap

    tap, digest = open_tap(inspect_checkpoint(path)), hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    handle = os.open(path, os.O_RDONLY)
    at = 0
    while count := os.preadv(handle, [buffer], at):
        digest.update(buffer[:count])
        tap.feed(path.name, at, buffer[:count])
        at += count
    os.close(handle)
    assert tap.result().tensors[0].num_nonfinite == 0


def beside(path: Path) -> None:
    """The same as `spike freeze` does it: the hash has a thread of its own."""
    from spike.casefile.hashing import hash_open_file
    from spike.domain.manifest import Algorithm
    from spike.readers.checkpoints import inspect_checkpoint, open_tap

    tap = open_tap(inspect_checkpoint(path))
    with path.open("rb") as file:
        hash_open_file(file.fileno(), Algorithm.SHA256, on_chunk=lambda at, chunk: tap.feed(path.name, at, chunk))
    assert tap.result().tensors[0].num_nonfinite == 0


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
    """Peak memory of a process that scans the file with digests, over one that only imports what scanning needs."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint, readers\n"
        "import spike.readers.checkpoints._tap\n"
        "readers()\n"
        "if len(sys.argv) > 1:\n"
        "    for digests in (True, False): scan_checkpoint(inspect_checkpoint(Path(sys.argv[1])), digests=digests)\n"
        # ru_maxrss would include the parent of before the exec
        "print(next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM')) / 1024)\n"
    )
    sizes = [
        float(subprocess.run([sys.executable, "-c", program, *args], check=True, capture_output=True, text=True).stdout)
        for args in ([], [str(path)])
    ]
    return sizes[1] - sizes[0]


def peak_rss_of_a_large_tensor(folder: Path, num_bytes: int = 2 << 30) -> float:
    """The same for one tensor of 2 GiB; the file is sparse, so that it takes no space."""
    path = folder / "sparse.safetensors"
    head = header("float32", num_bytes // 4, num_bytes)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + num_bytes)
    try:
        return peak_rss_mib(path)
    finally:
        path.unlink()


@dataclass(frozen=True)
class Took:
    """Least seconds of a case."""

    processor: float
    clock: float


def fastest(cases: dict[str, Callable[[], None]], repeats: int) -> dict[str, Took]:
    """Least seconds of each case, interleaved so that a busy moment hits all of them."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, run in cases.items():
            start = time.process_time(), time.perf_counter()
            run()
            times[name].append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return {name: Took(*map(min, zip(*values, strict=True))) for name, values in times.items()}


def show(rows: list[tuple[str, float, float, bool]]) -> bool:
    """Print (what, value, bound, whether the bound is a least one); True where all bounds hold. Bound 0: none."""
    held = True
    for what, value, bound, is_least in rows:
        holds = not bound or (value >= bound if is_least else value <= bound)
        held = held and holds
        shown = f"{'>=' if is_least else '<='} {bound}" if bound else "no bound"
        print(f"  {what:<40} {value:8.2f}   {shown:<10} {'holds' if holds else 'MISSED'}", flush=True)
    return held


def bench(dtype: str, mib: int, repeats: int, folder: Path) -> bool:
    """One element type; True where every bound holds."""
    import torch

    torch.set_num_threads(1)
    path = folder / f"{dtype}.safetensors"
    write(path, dtype, mib << 20)
    cases: dict[str, Callable[[], None]] = {
        name: lambda run=run: run(path)  # type: ignore[misc]
        for name, run in (("read", read_only), ("sha256", sha256_only), ("scan", scan), ("in turn", in_turn))
    }
    cases["beside"] = lambda: beside(path)
    read_only(path)  # warm the page cache for every case alike
    took = fastest(cases, repeats)
    naive = fastest({"naive torch": lambda: naive_torch(path)}, 1)["naive torch"].processor
    once = {name: case.processor for name, case in took.items()}
    max_floor, min_speed = TARGETS[dtype]
    print(f"{dtype}: {mib} MiB, read {mib / 1024 / once['read']:.1f} GiB/s")
    path.unlink()
    return show(
        [
            ("scan / read floor", once["scan"] / once["read"], max_floor, False),
            ("naive torch / scan", naive / once["scan"], min_speed, True),
            ("hash and scan, two threads / sha256", took["beside"].clock / took["sha256"].clock, MAX_BESIDE, False),
            ("hash and scan, one thread / sha256", once["in turn"] / once["sha256"], MAX_IN_TURN, False),
        ]
    )


def growth(folder: Path, repeats: int, gigabytes: tuple[float, ...] = (0.5, 2, 8)) -> bool:
    """Seconds a gigabyte at three sizes; the sizes take turns, so that a busy moment hits all of them."""
    paths = {size: folder / f"{size}.safetensors" for size in gigabytes}
    for size, path in paths.items():
        write(path, "bfloat16", int(size * 1e9) >> 24 << 24)
    took = fastest({str(size): lambda path=path: scan(path) for size, path in paths.items()}, repeats)  # type: ignore[misc]
    print("growth: scan of bfloat16")
    each = [took[str(size)].processor / size for size in gigabytes]
    for size, seconds in zip(gigabytes, each, strict=True):
        print(f"  {size:>4} GB: {seconds * size:7.2f} s of processor time, {seconds:6.3f} s a GB")
    return show([("a byte at the largest / at the smallest", each[-1] / each[0], MAX_GROWTH, False)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of each file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=sorted(TARGETS), action="append")
    parser.add_argument("--growth", action="store_true", help="only: 0.5, 2 and 8 GB (needs 11 GB of disk)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.growth:
            return 0 if growth(folder, args.repeats) else 1
        held = [bench(dtype, args.mib, args.repeats, folder) for dtype in args.dtype or TARGETS]
        print("memory")
        held.append(
            show([("peak over import, tensor of 2 GiB, MiB", peak_rss_of_a_large_tensor(folder), MAX_RSS_MIB, False)])
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
