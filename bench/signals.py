"""How fast are metric files read, beside what else could read them? Seconds and peak memory, cases interleaved.

python bench/signals.py [--rows 5000000] [--scalars 300000] [--console-mb 100] [--repeats 3] [--json out.json]

Every case runs in a process of its own, after the imports of both sides, `repeats` times in turn; ratios are of the
least times. Peers and floors:

jsonl     bare duckdb: read_json with the right types given, all columns fetched as numpy arrays (fetchnumpy). The same
          file with bare NaN tokens, "NaN" texts, nulls, torn lines, a block of NULs: duckdb alone refuses it, so that
          its peer is duckdb on the clean file.
csv       bare duckdb: read_csv with the types given, fetchnumpy.
tensorboard  EventAccumulator with size_guidance 0. Checksums are verified where the crc32c package is installed.
console   the floor: each line read, one expression finds the iteration, the rest is split at its bars and colons and
          every value goes through float().
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_READ = "signals = read_signals([path], base=path.parent)"
_DUCKDB = """
types = "{step:'BIGINT',rank:'BIGINT',loss:'DOUBLE',grad_norm:'DOUBLE',lr:'DOUBLE'}"
with duckdb.connect() as db:
    db.execute("SET enable_progress_bar = false")
    rows = db.execute(f"SELECT * FROM CALL").fetchnumpy()
"""
_DUCKDB_JSON = _DUCKDB.replace("CALL", "read_json('{path}', format='newline_delimited', columns={types})")
_DUCKDB_CSV = _DUCKDB.replace("CALL", "read_csv('{path}', header=true, columns={types})")
_EVENTS = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
began = time.perf_counter()
EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
"""
_FLOOR = r"""
HEAD = re.compile(r"iteration\s+(\d+)/")
rows = []
with path.open(encoding="utf-8", errors="replace") as stream:
    for line in stream:
        head = HEAD.search(line)
        if head is None:
            continue
        row = {}
        for part in line[head.end():].split("|"):
            name, colon, value = part.partition(":")
            if colon:
                row[name.strip()] = float(value)
        rows.append((int(head[1]), row))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One reader of one file."""

    group: str
    name: str
    file: str
    code: str
    peer: str = ""
    """The case that its time is divided by; "" for a peer or a floor."""


CASES = (
    Case("jsonl", "duckdb", "clean.jsonl", _DUCKDB_JSON),
    Case("jsonl", "newline count", "clean.jsonl", "path.read_bytes().count(b'\\n')"),
    Case("jsonl", "spike", "clean.jsonl", _READ, "duckdb"),
    Case("jsonl", "spike, damaged file", "torn.jsonl", _READ, "duckdb"),
    Case("csv", "duckdb", "clean.csv", _DUCKDB_CSV),
    Case("csv", "spike", "clean.csv", _READ, "duckdb"),
    Case("tensorboard", "EventAccumulator", "events.out.tfevents.1.host.1.0", _EVENTS),
    Case("tensorboard", "spike", "events.out.tfevents.1.host.1.0", _READ, "EventAccumulator"),
    Case("console", "floor", "train.log", _FLOOR),
    Case("console", "spike", "train.log", _READ, "floor"),
    Case("console", "spike detect", "train.log", _READ + "\ndetect(signals)", "floor"),
)

_CHILD = """
import re, resource, sys, time
from pathlib import Path
import duckdb, numpy
from spike.domain.detect import detect
from spike.readers.metrics import read_signals
from spike.readers.metrics.plugins import line_shapes, metric_readers
metric_readers(), line_shapes()
path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
began = time.perf_counter()
{code}
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)
"""


def write_rows(directory: Path, rows: int, ranks: int) -> None:
    """The same rows as JSON lines, as damaged JSON lines, and as CSV."""
    draw = random.Random(0)
    torn = {rows // 7: '{"step": 12, "lo', rows // 3: "\0" * 300, rows // 2: '{"step": 1, "rank": 0, "loss": "NaN"}'}
    files = [(directory / name).open("w") for name in ("clean.jsonl", "torn.jsonl", "clean.csv")]
    files[2].write("step,rank,loss,grad_norm,lr\n")
    for row in range(rows):
        step, rank = divmod(row, ranks)
        noise = draw.gauss(0, 1)
        loss = 2.0 + 8.0 / (1 + step / 50) ** 0.5 + 0.02 * noise
        line = f'{{"step": {step}, "rank": {rank}, "loss": {loss!r}, "grad_norm": {1 + 0.1 * noise!r}, "lr": 0.0003}}\n'
        odd = torn.get(row)
        if step % 977 == 5 and rank < 2:
            odd = line.replace(repr(loss), "NaN" if rank else "null").rstrip("\n")
        files[0].write(line)
        files[1].write(line if odd is None else odd + "\n")
        files[2].write(f"{step},{rank},{loss!r},{1 + 0.1 * noise!r},0.0003\n")
    files[1].write('{"step": 99, "lo')
    for stream in files:
        stream.close()


def write_events(path: Path, scalars: int) -> None:
    """An event file as torch's SummaryWriter writes it, five tags a step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    from spike.readers.metrics.crc32c import masked

    def record(event: Event) -> bytes:
        body = event.SerializeToString()
        head = struct.pack("<Q", len(body))
        return head + struct.pack("<I", masked(head)) + body + struct.pack("<I", masked(body))

    draw = random.Random(0)
    with path.open("wb") as stream:
        stream.write(record(Event(wall_time=1.0, file_version="brain.Event:2")))
        for number in range(scalars):
            tag = ("train/loss", "train/grad_norm", "lr", "tokens", "perf/tps")[number % 5]
            value = Summary.Value(tag=tag, simple_value=draw.random())
            stream.write(record(Event(wall_time=draw.random(), step=number // 5 + 1, summary=Summary(value=[value]))))


def write_console(path: Path, megabytes: int) -> None:
    """A log as Megatron-DeepSpeed's last rank prints it."""
    draw = random.Random(0)
    written = step = 0
    with path.open("w") as stream:
        while written < megabytes * 1_000_000:
            step += 1
            written += stream.write(
                f"[default7]: iteration {step:8d}/ 1000000 | consumed samples: {step * 512:12d} | consumed tokens:"
                f" {step * 512 * 2048:14d} | elapsed time per iteration (s): {100 + 9 * draw.random():.2f} |"
                f" learning rate: 6.000000E-05 | global batch size:   512 | lm loss: {2 + 0.1 * draw.random():.6E} |"
                f" loss scale: 65536.0 | grad norm: {0.2 + 0.05 * draw.random():.3f} | num zeros: 0.0 | number of"
                " skipped iterations:   0 | number of nan iterations:   0 | TFLOPs: 150.12 |\n"
            )
            if step % 100 == 0:
                written += stream.write(f"[default0]:saving checkpoint at iteration {step} to /out\n")


def run(case: Case, directory: Path) -> tuple[float, float]:
    """(seconds, peak MB above the imports) of one case in a fresh process."""
    command = [sys.executable, "-c", _CHILD.replace("{code}", case.code), str(directory / case.file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds, memory = told.stdout.split()[-2:]
    return float(seconds), float(memory)


def main() -> None:
    """Run the bench and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--scalars", type=int, default=300_000)
    parser.add_argument("--console-mb", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="one group: jsonl, csv, tensorboard, console")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in (None, case.group)]
    groups = {case.group for case in cases}
    best: dict[tuple[str, str], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        began = time.perf_counter()
        if groups & {"jsonl", "csv"}:
            write_rows(directory, arguments.rows, arguments.ranks)
        if "tensorboard" in groups:
            write_events(directory / "events.out.tfevents.1.host.1.0", arguments.scalars)
        if "console" in groups:
            write_console(directory / "train.log", arguments.console_mb)
        print(f"files written in {time.perf_counter() - began:.0f} s")
        for _ in range(arguments.repeats):
            for case in cases:
                seconds, memory = run(case, directory)
                old = best.get((case.group, case.name), (seconds, memory))
                best[case.group, case.name] = min(old[0], seconds), max(old[1], memory)
    answer = []
    for case in cases:
        seconds, memory = best[case.group, case.name]
        ratio = seconds / best[case.group, case.peer][0] if case.peer else 1.0
        against = f"{ratio:7.2f} x {case.peer}" if case.peer else ""
        print(f"{case.group:12} {case.name:20} {seconds:8.2f} s {memory:7.0f} MB {against}")
        answer.append({"group": case.group, "case": case.name, "seconds": seconds, "peak_mb": memory, "ratio": ratio})
    if arguments.json:
        arguments.json.write_text(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
