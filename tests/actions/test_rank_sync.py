"""Does an operator see where the ranks of a run part, in check as in detect?"""

from __future__ import annotations

import json
from pathlib import Path

from spike.actions.checks.check import check_run
from spike.actions.checks.rank_sync import rank_sync, rank_sync_of
from spike.domain.run import Run
from spike.readers.metrics import read_signals


def job(directory: Path, *, odd: int | None = 2) -> Path:
    """Four ranks on two hosts; from step 20 on one of them uses another rate."""
    (directory / "logs").mkdir(parents=True)
    for rank in range(4):
        rows = [
            {"step": s, "loss": 3.0 - s / 100, "lr": 2e-4 if rank == odd and s >= 20 else 3e-4, "host": f"n{rank // 2}"}
            for s in range(1, 41)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / "logs" / f"rank{rank}.jsonl").write_text(text)
    return directory


def test_the_answer_is_the_same_from_signals_and_from_the_directory(tmp_path: Path) -> None:
    job(tmp_path)
    found = rank_sync(read_signals([tmp_path], base=tmp_path), tmp_path)
    assert found is not None
    assert found == rank_sync_of(tmp_path)
    assert [(p.quantity, p.step, p.minority) for p in found.partings] == [("learning rate", 20, (2,))]


def test_check_shows_where_the_logs_of_the_ranks_part_and_nothing_where_they_do_not(tmp_path: Path) -> None:
    apart = check_run(Run(directory=str(job(tmp_path / "apart"))))
    titles = {title: rows for title, rows in apart.tables if title.startswith("ranks: ")}
    ((title, rows),) = titles.items()
    assert title == "ranks: 4 ranks on 2 hosts, 40 steps: part at step 20, in the learning rate"
    assert ("0.0002: 1 rank, rank 2 on n1",) in rows
    fact = apart.fact("ranks.agree")
    assert fact is not None
    assert (fact.value, fact.step, fact.where.rank) == ("no", 20, 2)
    same = check_run(Run(directory=str(job(tmp_path / "same", odd=None))))
    assert not any(title.startswith("ranks: ") for title, _ in same.tables)


def test_a_run_of_one_rank_has_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"step": {s}, "loss": 2.0}}\n' for s in range(30)))
    assert rank_sync(read_signals([tmp_path], base=tmp_path), tmp_path) is None
    assert rank_sync_of(tmp_path) is None
