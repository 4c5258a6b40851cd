"""How fast are the ranks of a job compared, beside the same questions put to bare DuckDB? Cases interleaved.

python bench/ranks.py [--ranks 16384] [--steps 300] [--files] [--repeats 3] [--json out.json]

Rows are JSON lines in one file; with --files also in one file a rank. The peer asks DuckDB, with its types given, for
the same answer: values at the first step at which each quantity parts, and where each rank begins and ends. It does not
check for missing rows, name hosts, survive a torn line or count what it left out. The floor counts lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = """
from spike.domain.rank_sync import judge
from spike.readers.rank_rows import gather_files
sync = judge(gather_files(paths))
answer = [(p.quantity, p.step, len(p.minority)) for p in sync.partings]
"""

PEER = """
import duckdb
kinds = {"step": "BIGINT", "rank": "BIGINT", "loss": "DOUBLE", "grad_norm": "DOUBLE", "lr": "DOUBLE",
         "loss_scale": "DOUBLE", "tokens": "DOUBLE"}
listed = "[" + ", ".join(f"'{path}'" for path in paths) + "]"
rows = f"read_json({listed}, format='newline_delimited', columns={kinds})"
facts = {"tokens": "tokens", "learning rate": "lr", "loss scale": "loss_scale",
         "finiteness of the loss": "NOT isfinite(loss)",
         "finiteness of the gradient norm": "NOT isfinite(grad_norm)"}
sides = ", ".join(f"min({sql}) <> max({sql})" for sql in facts.values())
db = duckdb.connect()
db.execute("SET enable_progress_bar = false")
table = db.execute(f"SELECT step, {sides} FROM {rows} GROUP BY step ORDER BY step").fetchall()
db.execute(f"SELECT rank, min(step), max(step), count(*) FROM {rows} GROUP BY rank").fetchall()
first = {name: next((row[0] for row in table if row[1 + i]), None) for i, name in enumerate(facts)}
parted = {name: step for name, step in first.items() if step is not None}
cells = ", ".join(facts[name] for name in parted)
steps = ", ".join(str(step) for step in parted.values())
values = db.execute(f"SELECT step, rank, {cells} FROM {rows} WHERE step IN ({steps})").fetchall()
answer = []
for i, (name, step) in enumerate(parted.items()):
    counts = {}
    for row in values:
        if row[0] == step:
            counts[row[2 + i]] = counts.get(row[2 + i], 0) + 1
    answer.append((name, step, sum(counts.values()) - max(counts.values())))
answer.sort(key=lambda found: found[1])
"""

FLOOR = """
answer = sum(block.count(b"\\n") for path in paths for block in iter(lambda f=open(path, "rb"): f.read(1 << 22), b""))
"""

CASES = {"spike": OURS, "bare duckdb": PEER, "newline count": FLOOR}

_CHILD = """
import sys, time
from pathlib import Path
place = Path(sys.argv[1])
paths = sorted(place.iterdir()) if place.is_dir() else [place]
before = time.perf_counter(), time.process_time()
{code}
spent = time.perf_counter() - before[0], time.process_time() - before[1]
status = Path("/proc/self/status").read_text()  # getrusage would tell the parent's peak
print(*spent, int(status.split("VmHWM:")[1].split()[0]) / 1024, answer, sep="|")
"""


def write(place: Path, ranks: int, steps: int) -> Path:
    """One file: rank ranks // 20 at another rate from the middle on, one host at another scale later, one rank late."""
    import duckdb

    odd, host, late = ranks // 20, ranks // 4, ranks // 2
    middle, then, end = steps // 2, 2 * steps // 3, 5 * steps // 6
    duckdb.connect().execute(
        f"COPY (SELECT s AS step, r AS rank, 'host' || lpad((r // 8)::VARCHAR, 4, '0') AS host,"
        f" 2.0 + 8.0 / sqrt(1 + s / 50.0) + 0.02 * random() AS loss, 1.0 + 0.1 * random() AS grad_norm,"
        f" CASE WHEN s >= {middle} AND r = {odd} THEN 2e-4 ELSE 3e-4 END AS lr,"
        f" CASE WHEN s >= {then} AND r // 8 = {host // 8} THEN 32768 ELSE 65536 END AS loss_scale,"
        f" s * 4194304 AS tokens FROM range(1, {steps + 1}) t(s), range({ranks}) u(r)"
        f" WHERE NOT (r = {late} AND s > {end}) ORDER BY s, r) TO '{place}' (FORMAT json)"
    )
    return place


def split(one: Path, directory: Path, ranks: int) -> Path:
    """The same rows, a file a rank."""
    directory.mkdir()
    for first in range(0, ranks, 512):
        streams = [(directory / f"rank{rank:05d}.jsonl").open("w") for rank in range(first, min(first + 512, ranks))]
        with one.open() as rows:
            for row in rows:
                rank = int(row[row.index('"rank":') + 7 :].split(",", 1)[0])
                if first <= rank < first + 512:
                    streams[rank - first].write(row)
        for stream in streams:
            stream.close()
    return directory


def run(code: str, place: Path) -> tuple[float, float, float, str]:
    """(seconds, seconds of CPU, peak MB, answer) of one case in a fresh process."""
    command = [sys.executable, "-c", _CHILD.replace("{code}", code), str(place)]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    seconds, cpu, memory, answer = told.stdout.strip().split("|", 3)
    return float(seconds), float(cpu), float(memory), answer


def compare(name: str, place: Path, repeats: int) -> dict[str, dict[str, float]]:
    """All cases in turn, `repeats` times; the least time of each."""
    best: dict[str, tuple[float, float, float]] = {}
    answers: dict[str, str] = {}
    for _ in range(repeats):
        for case, code in CASES.items():
            seconds, cpu, memory, answers[case] = run(code, place)
            old = best.get(case, (seconds, cpu, memory))
            best[case] = min(seconds, old[0]), min(cpu, old[1]), max(memory, old[2])
    assert answers["spike"] == answers["bare duckdb"], answers
    base = best["bare duckdb"]
    print(f"{name}: {answers['spike']}")
    for case, (seconds, cpu, memory) in best.items():
        ratios = f"{seconds / base[0]:5.2f}x time  {cpu / base[1]:5.2f}x CPU"
        print(f"  {case:14} {seconds:7.2f} s  {cpu:7.2f} s CPU  {memory:6.0f} MB  {ratios} of bare duckdb")
    return {case: {"seconds": s, "cpu_s": c, "peak_mb": m} for case, (s, c, m) in best.items()}


def main() -> None:
    """Run the bench and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--files", action="store_true", help="also one file a rank")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        one = write(Path(directory) / "ranks.jsonl", arguments.ranks, arguments.steps)
        size = one.stat().st_size / 1e6
        print(f"{arguments.ranks:,} ranks x {arguments.steps} steps, {size:.0f} MB; goal: at most 2x bare duckdb")
        found = {"one file": compare("one file", one, arguments.repeats)}
        if arguments.files:
            each = split(one, Path(directory) / "each", arguments.ranks)
            found["a file a rank"] = compare(f"{arguments.ranks:,} files", each, arguments.repeats)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
