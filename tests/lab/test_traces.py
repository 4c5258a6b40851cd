"""Is a trace read as it was written, torn where it may be and refused where it may not?"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.lab.launch import TraceTail
from spike.lab.traces import read_batches, read_trace, read_traces, write_paths

START = {"t": "start", "schema": "spike.trace/1", "rank": 0, "world": 1, "host": "h", "first_step": 4}
STEP = {
    "t": "step",
    "step": 5,
    "micro": [{"loss": 1.5, "batch": "ab", "targets": 8, "supervised": None, "samples": 2}],
    "loss": 1.5,
    "grad_norm": "Infinity",
    "nonfinite_grads": 1,
    "clip": None,
    "lr": [0.1, 0.2],
    "applied": False,
    "update_norm": None,
    "param_norm": 3.0,
    "loss_scale": 65536.0,
    "precision": "autocast=none params=float32",
    "rng": {"torch": "cd"},
    "seconds": 0.1,
}


def _write(directory: Path, *lines: object, rank: int = 0, torn: str = "") -> Path:
    path = directory / "trace" / f"rank{rank:05d}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    return path


def test_a_step_is_read_with_its_specials_and_its_absences(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path, START, STEP, {"t": "end", "reason": "window-complete", "steps": 1}))
    assert trace is not None
    step = trace.step(5)
    assert step is not None
    assert step.grad_norm == math.inf
    assert isinstance(step.update_norm, NotMeasured)
    assert (step.param_norm, step.loss_scale, step.applied, step.clip_max_norm) == (3.0, 65536.0, False, None)
    (micro,) = step.micro_batches
    assert (micro.loss, micro.num_targets, micro.num_samples) == (1.5, 8, 2)
    assert isinstance(micro.num_supervised, NotMeasured)
    assert (trace.first_step, trace.end, trace.errors) == (4, "window-complete", ())


def test_a_gradient_norm_that_was_not_measured_is_an_error_of_the_probe_not_a_nan_of_the_run(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path, START, {**STEP, "grad_norm": None}))
    assert trace is not None
    assert math.isnan(trace.steps[0].grad_norm)
    assert trace.errors == ("grad_norm not measured at 1 steps, first 5",)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path, START, STEP, torn='{"t": "step", "st'))
    assert trace is not None
    assert [step.step for step in trace.steps] == [5]
    assert trace.end == ""


def test_damage_before_the_last_line_names_file_and_line(tmp_path: Path) -> None:
    path = _write(tmp_path, START, STEP, STEP)
    path.write_text(path.read_text().replace('"applied": false', '"applied": fal', 1))
    with pytest.raises(InputUnreadable, match=r"rank00000\.jsonl line 2 is damaged"):
        read_traces(tmp_path)


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = _write(tmp_path, {**START, "schema": "spike.trace/2"})
    with pytest.raises(InputUnreadable, match=r"spike\.trace/2"):
        read_trace(path)


def test_a_missing_key_names_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path, START, {"t": "step", "step": 1})
    with pytest.raises(InputUnreadable, match=r"rank00000\.jsonl does not fit.*applied"):
        read_trace(path)


def test_unknown_kinds_and_keys_are_ignored(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path, START, {"t": "new"}, {**STEP, "new": 1}))
    assert trace is not None
    assert len(trace.steps) == 1


def test_ranks_come_in_order_and_a_silent_one_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, {**START, "rank": 2, "world": 3}, rank=2)
    _write(tmp_path, {**START, "world": 3}, rank=0)
    _write(tmp_path, rank=1, torn='{"t": "st')
    assert [trace.process.rank for trace in read_traces(tmp_path)] == [0, 2]


def test_paths_of_a_copied_view_are_named_as_the_run_names_them(tmp_path: Path) -> None:
    _write(tmp_path, START, {"t": "opened", "path": "/trial/view/copy/0-run/out/step-4.pt"})
    write_paths(tmp_path, {"/trial/view/copy/0-run": "/data/run"})
    assert read_traces(tmp_path)[0].process.opened == ("/data/run/out/step-4.pt",)


def test_saved_batches_are_found_with_their_rank(tmp_path: Path) -> None:
    line = {"t": "batch", "step": 5, "micro": 1, "digest": "ab", "path": "batches/x.pt", "samples": 4}
    _write(tmp_path, {**START, "rank": 1}, line, rank=1)
    (batch,) = read_batches(tmp_path)
    assert (batch.step, batch.rank, batch.micro, batch.num_samples) == (5, 1, 1, 4)
    assert batch.path == str(tmp_path / "batches/x.pt")


def test_the_tail_counts_steps_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    tail = TraceTail(tmp_path)
    tail.advance()
    path = _write(tmp_path, {**START, "world": 2}, STEP, torn='{"t": "step", "step": 6')
    tail.advance()
    assert (tail.last_step, tail.world, tail.is_complete()) == (5, 2, False)
    with path.open("a") as file:
        file.write('}\n{"t": "end", "reason": "window-complete", "steps": 2}\n')
    tail.advance()
    assert (tail.last_step, tail.is_complete()) == (6, False)
    _write(tmp_path, {**START, "world": 2}, {"t": "end", "reason": "exited", "steps": 0}, rank=1)
    tail.advance()
    assert tail.is_complete()
