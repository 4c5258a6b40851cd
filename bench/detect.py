"""How good is the detector, and the published rules beside it? Precision, recall, onset error and lead on truth.

python bench/detect.py [--per-family 25] [--seed 9001] [--real ../shared/real-runs] [--json out.json] [--no-rules]
python bench/detect.py --shifts      how many rows a small lasting shift takes to be found
python bench/detect.py --speed       points a second, beside a rolling median and MAD

Seeds below 1000 were looked at while the detector was made. What is reported comes from seeds from 9001 on, which never
were.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.curves import Record, labelled
from bench.detect_rates import print_shifts, print_speed
from bench.odd import healthy_records, records_with_incidents
from bench.rules import rules

from spike.domain.detect import detect
from spike.readers.metrics import read_signals

REPORTED_SEED = 9001

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
    """Rows from the answer to the loss's peak, where the gradient norm moved first."""
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
            "lead": float(np.median(self.leads)) if self.leads else float("nan"),
        }


def judge(record: Record, answers: list[tuple[int, int]], score: Score) -> None:
    """Compare answers (onset, last) with the truth of one record."""
    spacing = int(record.steps[1] - record.steps[0])
    slack = SLACK_ROWS * spacing
    hit = None
    for onset, last in answers:
        if record.onset is not None and onset <= record.last + slack and last >= record.onset - slack:
            if hit is None:
                hit = onset
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
        score.onset_errors.append((hit - record.onset) / spacing)
    if record.leads:
        inside = (record.steps >= record.onset) & (record.steps <= record.last)
        peak = int(record.steps[inside][np.argmax(record.loss[inside])])
        score.leads.append((peak - hit) / spacing)


def ours(record: Record) -> list[tuple[int, int]]:
    """The detector's incidents as (onset, last)."""
    found = detect(record.signals()).incidents
    return [(i.onset_step, max(s.last_step for s in i.signatures)) for i in found]


def theirs(record: Record, rule: object) -> list[tuple[int, int]]:
    """A published rule's firings, joined where they follow each other within ten rows."""
    assert callable(rule)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        steps = rule(record.steps, record.loss, record.grad_norm)
    spacing = int(record.steps[1] - record.steps[0])
    joined: list[list[int]] = []
    for step in steps:
        if joined and step - joined[-1][1] <= 10 * spacing:
            joined[-1][1] = step
        else:
            joined.append([step, step])
    return [(first, last) for first, last in joined]


def compare(records: list[Record], with_rules: bool) -> dict[str, Score]:
    """Scores of the detector and, beside it, of every rule."""
    answer: dict[str, Score] = {"spike": Score()}
    for record in records:
        judge(record, ours(record), answer["spike"])
    for name, rule in rules().items() if with_rules else ():
        answer[name] = Score()
        for record in records:
            judge(record, theirs(record, rule), answer[name])
    return answer


def show(title: str, records: list[Record], scores: dict[str, Score]) -> None:
    """One table."""
    healthy = sum(record.onset is None for record in records)
    rows = sum(len(record.steps) for record in records)
    print(f"\n{title}: {len(records)} records ({healthy} healthy), {rows} rows")
    for name, score in scores.items():
        print(f"  {name:12}", "  ".join(f"{key} {value:.3g}" for key, value in score.summary().items()))
    for what, names in (("missed", scores["spike"].names_missed), ("false", scores["spike"].names_false)):
        print(f"  {what} by family", dict(Counter({_family(n): 0 for n in names}) + _sums(names)))


def _family(name: str) -> str:
    return name.split(" in ")[0]


def _sums(names: dict[str, int]) -> Counter[str]:
    total: Counter[str] = Counter()
    for name, count in names.items():
        total[_family(name)] += count
    return total


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
    """Run the bench and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-family", type=int, default=25)
    parser.add_argument("--seed", type=int, default=REPORTED_SEED)
    parser.add_argument("--real", type=Path, default=Path(__file__).parents[2] / "shared" / "real-runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rules", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--shifts", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        print_speed()
    elif arguments.shifts:
        print_shifts()
    else:
        report(arguments)


def report(arguments: argparse.Namespace) -> None:
    """Score the labelled and the odd records and the real logs."""
    if "losslint" not in rules():
        print("losslint is not installed: it is not compared")
    n, seed = arguments.per_family, arguments.seed
    sets = {
        "labelled": labelled(n, seed),
        "odd shapes": [*healthy_records(12 * n, seed), *records_with_incidents(n, seed)],
    }
    answer: dict[str, dict[str, dict[str, float]]] = {}
    for title, records in sets.items():
        start = time.perf_counter()
        scores = compare(records, arguments.rules)
        show(f"{title}, seed {seed}, {time.perf_counter() - start:.0f} s", records, scores)
        answer[title] = {name: score.summary() for name, score in scores.items()}
    print()
    for line in real_runs(arguments.real):
        print(line)
    if arguments.json:
        arguments.json.write_text(json.dumps({"seed": seed, **answer}, indent=2))


if __name__ == "__main__":
    main()
