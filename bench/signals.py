"""How fast are metric files read, beside what else could read them? Rows per second and peak memory, cases interleaved.

python bench/signals.py [--rows 1000000] [--repeats 3] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "spike jsonl": "from spike.readers.metrics.formats.jsonl import READER; READER.read(path)",
    "python json loop": "import json\nwith path.open() as f:\n    rows = [json.loads(line) for line in f]",
    "newline count": "path.read_bytes().count(b'\\n')",
    "spike detect": (
        "from spike.readers.metrics import read_signals\nfrom spike.domain.detect import detect\n"
        "detect(read_signals([path], base=path.parent))"
    ),
}
"""Code to run on `path` in a process of its own, imports included."""

_CHILD = """
import resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
began = time.perf_counter()
{code}
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def write(path: Path, rows: int, ranks: int) -> None:
    """A JSON-lines file as 64 ranks of a run write it."""
    import numpy as np

    rng = np.random.default_rng(0)
    with path.open("w") as stream:
        for step in range(rows // ranks):
            base = 2.0 + 8.0 / (1 + step / 50) ** 0.5
            for rank, noise in enumerate(rng.standard_normal(ranks).tolist()):
                row = {
                    "step": step,
                    "rank": rank,
                    "loss": base + 0.02 * noise,
                    "grad_norm": 1.0 + 0.1 * noise,
                    "lr": 3e-4,
                }
                stream.write(json.dumps(row) + "\n")


def run(code: str, path: Path) -> tuple[float, float]:
    """(seconds, peak MB) of one case in a fresh process."""
    command = [sys.executable, "-c", _CHILD.format(code=code), str(path)]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    seconds, memory = told.stdout.split()
    return float(seconds), float(memory)


def main() -> None:
    """Run the bench and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "metrics.jsonl"
        began = time.perf_counter()
        write(path, arguments.rows, arguments.ranks)
        size = path.stat().st_size / 1e6
        print(f"{arguments.rows} rows, {size:.0f} MB, written in {time.perf_counter() - began:.0f} s")
        times: dict[str, list[float]] = {name: [] for name in CASES}
        memory: dict[str, float] = {}
        for _ in range(arguments.repeats):
            for name, code in CASES.items():
                seconds, memory[name] = run(code, path)
                times[name].append(seconds)
    answer = {}
    for name, taken in times.items():
        middle = statistics.median(taken)
        answer[name] = {"seconds": middle, "rows_per_s": arguments.rows / middle, "peak_mb": memory[name]}
        print(f"{name:18} {middle:7.2f} s  {arguments.rows / middle / 1e6:6.2f} M rows/s  {memory[name]:6.0f} MB")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": arguments.rows, "mb": size, "cases": answer}, indent=2))


if __name__ == "__main__":
    main()
