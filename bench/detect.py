"""How good is the detector, and the published rules beside it? Precision, recall, onset error and lead on truth.

python bench/detect.py [--per-family 25] [--real ../shared/real-runs] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.curves import Record, labelled
from bench.rules import RULES

from spike.domain.detect import detect
from spike.readers.metrics import read_signals

SLACK_ROWS = 5
"""An incident counts as found where the answer overlaps the truth, give or take this many rows."""

REAL = {
    "megatron-deepspeed-bloom176b/spike_iter31214.log": (31215,),
    "megatron-deepspeed-13b/spike_iter29050_gradnorm0.log": (29050,),
    "megatron-deepspeed-104b/overflow_iter17060.log": (17062,),
    "modded-nanogpt/muon_6200steps.log": (919, 947, 1760, 3092, 3194),
    "modded-nanogpt/fp4_otherdataset_3242steps.log": (201, 265, 524, 889, 1830),
    "hf-qlora-periodic/trainer_state.json": (),
    "deepspeed-fp16-overflow/zero1_gpt2_overflow.log": (),
    "wandb-offline/run-x199n1yz.wandb": (),
}


@dataclass(slots=True)
class Score:
    """Counts over many records."""

    found: int = 0
    missed: int = 0
    false: int = 0
    onset_errors: list[float] = field(default_factory=list)
    """Rows between the reported onset and the truth."""
    leads: list[float] = field(default_factory=list)
    names_missed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    names_false: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def summary(self) -> dict[str, float]:
        """Precision, recall and onset error."""
        errors = np.abs(self.onset_errors)
        return {
            "precision": self.found / max(1, self.found + self.false),
            "recall": self.found / max(1, self.found + self.missed),
            "false": self.false,
            "missed": self.missed,
            "onset_within_2": float(np.mean(errors <= 2)) if errors.size else float("nan"),
            "onset_p95": float(np.quantile(errors, 0.95)) if errors.size else float("nan"),
        }


def judge(record: Record, answers: list[tuple[int, int, int]], score: Score) -> None:
    """Compare answers (onset, last, loss peak) with the truth of one record."""
    spacing = int(record.steps[1] - record.steps[0])
    slack = SLACK_ROWS * spacing
    hit = None
    for onset, last, peak in answers:
        if record.onset is not None and onset <= record.last + slack and last >= record.onset - slack:
            if hit is None:
                hit = (onset, peak)
        else:
            score.false += 1
            score.names_false[record.name] += 1
    if record.onset is None:
        return
    if hit is None:
        score.missed += 1
        score.names_missed[record.name] += 1
        return
    score.found += 1
    if record.name != "creep":  # the truth of a creep has no sharp onset
        score.onset_errors.append((hit[0] - record.onset) / spacing)
    if record.leads:
        score.leads.append((hit[1] - hit[0]) / spacing)


def ours(record: Record) -> list[tuple[int, int, int]]:
    """The detector's incidents as (onset, last, peak)."""
    found = detect(record.signals()).incidents
    return [(i.onset_step, max(s.last_step for s in i.signatures), i.peak_step) for i in found]


def theirs(record: Record, rule: str) -> list[tuple[int, int, int]]:
    """A published rule's firings, joined where they follow each other within ten rows."""
    norm = record.grad_norm
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        steps = RULES[rule](record.steps, record.loss, norm)
    spacing = int(record.steps[1] - record.steps[0])
    joined: list[list[int]] = []
    for step in steps:
        if joined and step - joined[-1][1] <= 10 * spacing:
            joined[-1][1] = step
        else:
            joined.append([step, step])
    return [(first, last, first) for first, last in joined]


def real_runs(root: Path) -> list[str]:
    """One line a real file: what must be found and what was."""
    lines = []
    for name, truth in REAL.items():
        path = root / name
        if not path.is_file():
            lines.append(f"{name}: not there")
            continue
        signals = read_signals([path], base=root)
        onsets = [i.onset_step for i in detect(signals).incidents]
        missed = [t for t in truth if not any(abs(t - o) <= 1 for o in onsets)]
        wrong = bool(onsets) and not truth
        lines.append(f"{name}: {'FALSE ' if wrong else ''}found {onsets}" + (f", MISSED {missed}" if missed else ""))
    return lines


def main() -> None:
    """Run the bench and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-family", type=int, default=25)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--real", type=Path, default=Path(__file__).parents[2] / "shared" / "real-runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rules", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    records = labelled(arguments.per_family, arguments.seed)
    score, start = Score(), time.perf_counter()
    for record in records:
        judge(record, ours(record), score)
    seconds = time.perf_counter() - start
    rows = sum(len(record.steps) for record in records)
    answer = {"spike": score.summary()}
    if arguments.rules:
        for rule in RULES:
            other = Score()
            for record in records:
                judge(record, theirs(record, rule), other)
            answer[rule] = other.summary()
    print(f"{len(records)} records, {rows} rows, {rows / seconds:,.0f} rows/s")
    for name, numbers in answer.items():
        print(f"{name:12}", "  ".join(f"{key} {value:.3g}" for key, value in numbers.items()))
    print("missed by family", dict(score.names_missed))
    print("false by family", dict(score.names_false))
    print(f"led by the norm: median steps from onset to loss peak {np.median(score.leads or [0]):.1f}")
    for line in real_runs(arguments.real):
        print(line)
    if arguments.json:
        numbers = {"records": len(records), "rows_per_s": rows / seconds, **answer}
        arguments.json.write_text(json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()
