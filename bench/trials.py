"""How many trials does a verdict take? The median over fixture incidents, from what `spike ci --json` printed.

spike ci fixtures/incidents --json > ci.json
python bench/trials.py ci.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

GOAL = 8


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answer", type=Path, help="what `spike ci --json` printed")
    rows = json.loads(parser.parse_args().answer.read_text())["fixtures"]
    counts = {
        row["truth"]["name"]: row["found"]["num_trials"] for row in rows if row["found"] and row["found"]["num_trials"]
    }
    for name, count in sorted(counts.items(), key=lambda item: item[1]):
        print(f"{count:4}  {name}")
    middle = statistics.median(counts.values())
    print(f"median {middle:g} of {len(counts)} (goal {GOAL}: {'held' if middle <= GOAL else 'missed'})")


if __name__ == "__main__":
    main()
