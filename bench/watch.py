"""What does `spike watch` cost, and how soon does it alarm? A real watch process follows a real writer process.

python bench/watch.py [--history 400000] [--rate 10] [--seconds 60] [--alarms 5] [--json out.json]

The writer adds rows of three signals to a log that already holds hours of them. CPU is that of the watch process (all
threads, from its own /proc entry) once its start is over; beside it stands the floor: a process that only reads what
is new once a second. Latency is from the moment the writer has flushed the bad line to the moment the watch has ended.
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

WRITER = """
import json, random, sys, time
path, first, rate, bad_after = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
rng, step, began = random.Random(1), first, time.time()
with open(path, "a") as log:
    while True:
        time.sleep(1 / rate)
        step += 1
        bad = time.time() - began > bad_after
        row = {"step": step, "loss": 2.0 * (1.8 if bad else 1.0) * rng.lognormvariate(0, 0.02),
               "grad_norm": rng.lognormvariate(0, 0.15), "lr": 3e-4}
        log.write(json.dumps(row) + "\\n")
        log.flush()
        if bad:
            print(repr(time.time()), flush=True)
            break
"""

FLOOR = """
import sys, time
at = 0
while True:
    with open(sys.argv[1], "rb") as log:
        log.seek(at)
        at += len(log.read())
    time.sleep(1.0)
"""


def write_history(path: Path, rows: int) -> None:
    """Hours of a healthy log."""
    import random

    rng = random.Random(0)
    with path.open("w") as log:
        for step in range(1, rows + 1):
            row = {
                "step": step,
                "loss": 2.0 * rng.lognormvariate(0, 0.02),
                "grad_norm": rng.lognormvariate(0, 0.15),
                "lr": 3e-4,
            }
            log.write(json.dumps(row) + "\n")


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory that a process has had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def start(*command: str, **keys: object) -> subprocess.Popen[str]:
    """A child with one thread for its libraries."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, text=True, **keys)  # type: ignore[call-overload,no-any-return]


def cost(path: Path, history: int, rate: float, seconds: float) -> dict[str, float]:
    """CPU share of the watch and of the floor, both during the same minute."""
    watch = start(sys.executable, "-m", "spike.cli.app", "watch", str(path), stderr=subprocess.DEVNULL)
    floor = start(sys.executable, "-c", FLOOR, str(path))
    writer = start(sys.executable, "-c", WRITER, str(path), str(history), str(rate), "1e9", stdout=subprocess.DEVNULL)
    try:
        before, settled = -1.0, 0
        while settled < 3:  # the first reading of the history is over
            time.sleep(1.0)
            now = cpu_s(watch.pid)
            settled = settled + 1 if now - before < 0.2 else 0
            before = now
        begun = cpu_s(watch.pid), cpu_s(floor.pid), time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - begun[2]
        return {
            "start_cpu_s": begun[0],
            "watch_share": (cpu_s(watch.pid) - begun[0]) / spent,
            "floor_share": (cpu_s(floor.pid) - begun[1]) / spent,
            "resident_mb": resident_mb(watch.pid),
        }
    finally:
        for process in (writer, watch, floor):
            process.kill()
            process.wait()


def latency(path: Path, rate: float) -> float:
    """Seconds from the bad line to the end of the watch."""
    write_history(path, 5000)
    watch = start(
        sys.executable, "-m", "spike.cli.app", "watch", str(path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert watch.stderr is not None
        watch.stderr.readline()  # it has read the history
        written = subprocess.run(
            [sys.executable, "-c", WRITER, str(path), "5000", str(rate), "3"],
            capture_output=True,
            text=True,
            check=True,
        )
        code = watch.wait(timeout=30)
        ended = time.time()
        assert code == 1, f"the watch ended with {code}"
        return ended - float(written.stdout)
    finally:
        watch.kill()


def main() -> None:
    """Run the bench and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--history", type=int, default=400_000, help="rows logged before: 11 hours at ten a second")
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--alarms", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "metrics.jsonl"
        write_history(path, arguments.history)
        found = cost(path, arguments.history, arguments.rate, arguments.seconds)
        seconds = [latency(Path(directory) / f"alarm{n}.jsonl", arguments.rate) for n in range(arguments.alarms)]
    print(f"history {arguments.history:,} rows, then {arguments.rate:g} rows/s of 3 signals, watched once a second")
    print(f"watch   {100 * found['watch_share']:6.2f} % of a core (goal: < 1 %), {found['resident_mb']:.0f} MB")
    print(f"floor   {100 * found['floor_share']:6.2f} % of a core: only reading what is new once a second")
    print(f"start   {found['start_cpu_s']:6.2f} s of CPU, once: imports and the first reading of the history")
    if seconds:
        print(
            f"alarm   {statistics.median(seconds):6.2f} s after the line (median of {len(seconds)}; worst "
            f"{max(seconds):.2f}; goal: within 2)"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({**found, "alarm_s": seconds}, indent=2))


if __name__ == "__main__":
    main()
