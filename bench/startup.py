"""How fast does `spike --help` answer, against importing typer alone? Alternating processes, medians, ratio."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CASES = {
    "python -c pass": ["-c", "pass"],
    "import typer": ["-c", "import typer"],
    "spike --help": ["-m", "spike.cli.app", "--help"],
}
GOAL = 1.25


def seconds(words: list[str]) -> float:
    """Wall time of one process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for words in CASES.values():
        seconds(words)
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, words in CASES.items():
            times[name].append(seconds(words))
    floor = statistics.median(times["import typer"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:16} {middle * 1e3:7.1f} ms  {middle / floor:5.2f} x import typer")
    pairs = [a / b for a, b in zip(times["spike --help"], times["import typer"], strict=True)]
    ratio = statistics.median(pairs)
    print(f"pair by pair     {ratio:.2f} x (goal {GOAL:.2f}: {'held' if ratio <= GOAL else 'missed'})")


if __name__ == "__main__":
    main()
