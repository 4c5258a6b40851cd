"""Does the column store gather the same facts about ranks as the pure way, whatever is in the files?"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spike.casefile.signals_store import SIGNALS_NAME, write_signals
from spike.domain.rank_sync import LOGGED, NON_FINITE, Gathered, gather, judge
from spike.readers.metrics import read_signals
from spike.readers.rank_rows import gather_case, gather_files

QUIET = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = st.sampled_from([3e-4, 2e-4, 0.1, 1.0])
RARE = st.sampled_from([0.0, 0.0, 0.0, 0.0, 1.0])
LOSSES = st.sampled_from([2.5, 2.25, 3.0, math.nan, math.inf])


def row(step: int, rank: int, **changes: Any) -> dict[str, Any]:
    own = {"loss": 2.0 + rank / 10, "grad_norm": 1.0, "lr": 3e-4, "loss_scale": 65536.0, "tokens": 4096.0 * step}
    return {"step": step, "rank": rank, "host": f"node{rank // 2}", **own, **changes}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def comparable(gathered: Gathered) -> Any:
    """What both ways must agree in."""
    return dict(gathered.extents), sorted(gathered.compared), dict(gathered.parted), gathered.num_rows


@st.composite
def jobs(draw: Any) -> list[dict[str, Any]]:
    ranks, steps = draw(st.integers(2, 4)), draw(st.integers(2, 5))
    rows = []
    for step in range(1, steps + 1):
        for rank in range(ranks):
            if draw(st.integers(0, 9)) == 0:
                continue
            changes: dict[str, Any] = {"loss": draw(LOSSES)}
            if draw(st.integers(0, 4)) == 0:
                changes |= {"lr": draw(NUMBERS), "skipped": draw(RARE), "grad_norm": draw(LOSSES)}
            rows.append(row(step, rank, **changes))
    return rows


@given(jobs())
@QUIET
def test_both_ways_agree_on_random_small_jobs(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    path = write(tmp_path / "job.jsonl", rows)
    signals = read_signals([path], base=tmp_path)
    pure, stored = gather(signals), gather_files([path])
    assert stored is not None
    assert comparable(pure) == comparable(stored)
    case = tmp_path / "case"
    write_signals(case, signals)
    from_case = gather_case(case / SIGNALS_NAME)
    assert comparable(pure)[:3] == comparable(from_case)[:3]
    assert replace(judge(pure), hosts={}, notes=()) == replace(judge(stored), hosts={}, notes=())


def job(ranks: int = 8, steps: int = 20) -> list[dict[str, Any]]:
    return [row(step, rank) for step in range(1, steps + 1) for rank in range(ranks)]


def test_a_file_a_rank_and_one_file_for_all_say_the_same(tmp_path: Path) -> None:
    rows = job()
    rows[9 * 8 + 3]["lr"] = 1e-4
    whole = gather_files([write(tmp_path / "all.jsonl", rows)])
    files = []
    for rank in range(8):
        own = [{k: v for k, v in r.items() if k != "rank"} for r in rows if r["rank"] == rank]
        files.append(write(tmp_path / "each" / f"rank_{rank}.jsonl", own))
    apart = gather_files(files)
    assert whole is not None
    assert apart is not None
    assert comparable(whole) == comparable(apart)
    assert dict(apart.hosts) == {rank: f"node{rank // 2}" for rank in range(8)}
    (parting,) = judge(apart).partings
    assert (parting.quantity, parting.step, parting.minority) == ("learning rate", 10, (3,))


@pytest.mark.parametrize("torn", ['{"step": 21, "ra', "\0\0\0\0", "not json at all"])
def test_lines_that_cannot_be_read_are_counted_and_the_others_are_compared(tmp_path: Path, torn: str) -> None:
    path = write(tmp_path / "all.jsonl", job())
    path.write_text(path.read_text() + torn)
    found = gather_files([path])
    assert found is not None
    assert found.num_skipped == 1
    assert judge(found).agree is True
    assert any("1 lines could not be read" in note for note in judge(found).notes)


def test_a_gap_a_late_rank_and_a_rank_that_never_wrote_are_told_apart(tmp_path: Path) -> None:
    rows = [r for r in job() if not (r["rank"] == 2 and r["step"] == 7) and not (r["rank"] == 5 and r["step"] > 12)]
    rows = [{**r, "world_size": 9} for r in rows if r["rank"] != 6]
    found = gather_files([write(tmp_path / "all.jsonl", rows)])
    assert found is not None
    sync = judge(found)
    assert [(p.quantity, p.step, p.minority) for p in sync.partings] == [(LOGGED, 7, (2,))]
    assert sync.late == ((12, (5,)),)
    assert sync.missing == (6, 8)


def test_rows_logged_twice_after_a_restart_hide_no_gap(tmp_path: Path) -> None:
    rows = [r for r in job() if not (r["rank"] == 2 and r["step"] == 7)]
    rows.append(row(7, 1))  # as many rows as ranks, and still one of them is missing
    found = gather_files([write(tmp_path / "all.jsonl", rows)])
    assert found is not None
    assert [(p.quantity, p.step, p.minority) for p in judge(found).partings] == [(LOGGED, 7, (2,))]
    assert any("1 rows are there twice" in note for note in found.notes)


def test_a_loss_that_is_not_finite_on_one_rank_only_is_found_in_every_spelling(tmp_path: Path) -> None:
    for number, bad in enumerate((math.nan, math.inf, "NaN", "-Infinity")):
        rows = job()
        rows[12 * 8 + 4]["loss"] = bad
        found = gather_files([write(tmp_path / f"{number}.jsonl", rows)])
        assert found is not None
        (parting,) = judge(found).partings
        assert (parting.quantity, parting.step, parting.minority) == (NON_FINITE, 13, (4,))


def trace(rank: int, *, first_step: int = 0, lr: float = 1e-3, digests: dict[str, str] | None = None) -> str:
    lines: list[dict[str, Any]] = [
        {"t": "start", "schema": "spike.trace/1", "rank": rank, "world": 4, "host": "n0", "first_step": first_step}
    ]
    for step in range(first_step + 1, first_step + 6):
        numbers = {"loss": 1.0 + rank, "grad_norm": 2.0, "nonfinite_grads": 0, "loss_scale": None}
        lines.append({"t": "step", "step": step, "micro": [{"loss": 1.0}], **numbers, "lr": [lr], "applied": True})
    tensors = [
        {"role": "parameter", "name": n, "index": 0, "dtype": "float32", "shape": [4], "digest": d, "l2": 1.0}
        for n, d in (digests or {}).items()
    ]
    lines.append({"t": "fingerprint", "step": first_step + 5, "tensors": tensors})
    return "".join(json.dumps(line) + "\n" for line in lines)


def traces(directory: Path, **by_rank: Any) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(4):
        keys = {"digests": {"w": "aa", "b": "bb"}, **by_rank.get(f"rank{rank}", {})}
        path = directory / f"rank{rank:05d}.jsonl"
        path.write_text(trace(rank, **keys))
        paths.append(path)
    return paths


def test_traces_tell_rates_generations_fingerprints_and_hosts(tmp_path: Path) -> None:
    same = gather_files(traces(tmp_path / "same"))
    assert same is not None
    assert judge(same).agree is True
    assert set(judge(same).compared) >= {LOGGED, "learning rate", "checkpoint generation", "parameter fingerprint"}
    assert set(same.hosts.values()) == {"n0"}
    other = {"rank2": {"lr": 2e-3, "digests": {"w": "aa", "b": "XX"}}}
    found = gather_files(traces(tmp_path / "other", **other))
    assert found is not None
    assert [(p.quantity, p.step, p.minority) for p in judge(found).partings] == [
        ("learning rate", 1, (2,)),
        ("parameter fingerprint", 5, (2,)),
    ]
    older = gather_files(traces(tmp_path / "older", rank3={"first_step": 2}))
    assert older is not None
    generation = next(p for p in judge(older).partings if p.quantity == "checkpoint generation")
    assert [(g.value, g.ranks) for g in generation.groups] == [("step 0", (0, 1, 2)), ("step 2", (3,))]


def test_shards_are_not_called_a_disagreement(tmp_path: Path) -> None:
    shards = {f"rank{r}": {"digests": {"w": f"w{r}", "b": f"b{r}"}} for r in range(4)}
    found = gather_files(traces(tmp_path, **shards))
    assert found is not None
    assert judge(found).agree is True
    assert any("sharded" in note for note in judge(found).notes)


def test_a_file_that_says_nothing_about_ranks_is_nothing_to_compare(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 2.0} for s in range(9)]
    assert gather_files([write(tmp_path / "a.jsonl", rows)]) is None
    assert gather_files([]) is None


def test_many_ranks_are_gathered_in_bounded_memory_by_file_or_by_column(tmp_path: Path) -> None:
    steps = np.arange(1, 6)
    rows = [{"step": int(s), "rank": r, "loss": 2.0, "lr": 1e-3} for s in steps for r in range(1024)]
    rows[3 * 1024 + 777]["lr"] = 2e-3
    found = gather_files([write(tmp_path / "all.jsonl", rows)])
    assert found is not None
    (parting,) = judge(found).partings
    assert (parting.step, parting.minority, len(parting.groups[0].ranks)) == (4, (777,), 1023)
