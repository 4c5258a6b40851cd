"""What becomes of restarts, ranks, torn lines, repeated columns and the traps that stacks set?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spike.domain.errors import ExitCode, InputUnreadable
from spike.domain.signals import Signals
from spike.readers.metrics import find_metric_files, read_signals
from spike.readers.metrics.numbers import parse_number


def rows(path: Path, *lines: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(*paths: Path) -> Signals:
    return read_signals(paths, base=paths[0].parent)


def steps(signals: Signals, name: str = "loss") -> list[int]:
    series = signals.get(name)
    assert series is not None
    return series.steps.tolist()


def test_after_a_restart_the_later_rows_win_and_the_rewind_is_kept(tmp_path: Path) -> None:
    first = [{"step": s, "loss": 5.0} for s in range(1, 23)]
    again = [{"step": s, "loss": 4.0} for s in range(20, 31)]
    signals = read(rows(tmp_path / "a.jsonl", *first, *again))
    loss = signals.get("loss")
    assert loss is not None
    assert steps(signals) == list(range(1, 31))
    assert loss.at(21) == 4.0
    assert [(r.from_step, r.to_step, r.restarted_from_scratch) for r in signals.rewinds] == [(22, 20, False)]
    assert signals.superseded[0].values.tolist() == [5.0, 5.0, 5.0]


def test_a_second_run_in_the_same_file_is_seen_as_started_from_scratch(tmp_path: Path) -> None:
    curve = [{"step": s, "loss": 10.0 / (1 + s / 5)} for s in range(1, 41)]
    signals = read(rows(tmp_path / "a.jsonl", *curve, *curve[:20]))
    assert signals.rewinds[0].restarted_from_scratch
    assert steps(signals) == list(range(1, 21))


def test_rows_that_an_asynchronous_logger_swapped_are_put_in_order_without_a_rewind(tmp_path: Path) -> None:
    order = [1, 2, 4, 3, 5, 8, 6, 7, 9]
    signals = read(rows(tmp_path / "a.jsonl", *({"step": s, "loss": float(s)} for s in order)))
    loss = signals.get("loss")
    assert loss is not None
    assert loss.steps.tolist() == loss.values.tolist() == list(range(1, 10))
    assert signals.rewinds == ()


def test_steps_that_start_again_in_every_epoch_are_added_up(tmp_path: Path) -> None:
    epochs = [{"epoch": e, "step": s, "loss": 1.0} for e in range(3) for s in range(1, 11)]
    signals = read(rows(tmp_path / "a.jsonl", *epochs))
    assert steps(signals) == list(range(1, 31))
    assert signals.rewinds == ()
    assert signals.notes[0][0] == "steps-per-epoch"


def test_held_out_rows_never_enter_the_training_loss(tmp_path: Path) -> None:
    signals = read(
        rows(
            tmp_path / "a.jsonl",
            {"step": 1, "train/loss": 3.0},
            {"step": 1, "eval/loss": 9.0},
            {"step": 2, "split": "validation", "loss": 8.0},
            {"step": 2, "train/loss": 2.9},
        )
    )
    loss, held_out = signals.get("loss"), signals.get("eval_loss")
    assert loss is not None
    assert held_out is not None
    assert loss.values.tolist() == [3.0, 2.9]
    assert held_out.values.tolist() == [9.0]


def test_the_validation_step_of_torchtitan_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step:  1  loss:  8.1\nvalidate step:  1  loss:  7.1\nstep:  2  loss:  8.0\n")
    signals = read(tmp_path / "a.log")
    loss, held_out = signals.get("loss"), signals.get("eval_loss")
    assert loss is not None
    assert held_out is not None
    assert (loss.values.tolist(), held_out.values.tolist()) == ([8.1, 8.0], [7.1])


@pytest.mark.parametrize("name", ["rank3.jsonl", "metrics.rank03.jsonl", "attempt_0/3/stdout.log"])
def test_a_rank_in_the_name_of_a_file_becomes_the_rank_of_its_series(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".log":
        path.write_text("step 1 loss 3.0\n")
    else:
        rows(path, {"step": 1, "loss": 3.0})
    assert read_signals([path], base=tmp_path).series[0].rank == 3


def test_a_rank_column_and_a_rank_prefix_give_one_series_a_rank(tmp_path: Path) -> None:
    table = rows(tmp_path / "a.jsonl", *({"step": s, "rank": r, "loss": r + 1.0} for s in (1, 2) for r in (0, 1)))
    (tmp_path / "b.log").write_text("[rank0]: step 1 loss 1.0\n[rank1]: step 1 loss 2.0\n")
    for signals in (read(table), read(tmp_path / "b.log")):
        values = {s.rank: s.values.tolist()[0] for s in signals.series if s.name == "loss"}
        assert values == {0: 1.0, 1: 2.0}


def test_one_rank_prefix_alone_says_nothing_about_ranks(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("[default7]: iteration 5/ 10 | lm loss: 1.0E+00 |\n")
    assert {s.rank for s in read(tmp_path / "a.log").series} == {None}


def test_a_torn_last_line_is_benign_and_a_torn_middle_line_is_damage_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 3.0}\n{"step": 2, "lo\n\0\0\0\n{"step": 3, "loss": 2.0}\n{"step": 4, "l')
    signals = read(path)
    assert steps(signals) == [1, 3]
    assert [(d.line, d.byte_offset, d.benign) for d in signals.damages] == [
        (2, 25, False),
        (3, 41, False),
        (5, 70, True),
    ]
    assert path.read_bytes()[25:41].startswith(b'{"step": 2')


def test_a_csv_row_with_missing_cells_is_damage_and_an_empty_cell_is_absence(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train/loss,val_loss\n0,1,3.0,\n0,1,,2.5\n0,2\n0,3,nan,\n0,4,2")
    signals = read(path)
    loss = signals.get("loss")
    assert loss is not None
    np.testing.assert_array_equal(loss.values, [3.0, np.nan])
    assert [(d.line, d.benign) for d in signals.damages] == [(4, False), (6, True)]


def test_numbers_written_as_text_and_infinities_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": "1", "loss": "3.5"}\n{"step": 2, "loss": -Infinity}\n{"step": 3, "loss": 1e400}\n')
    loss = read(path).get("loss")
    assert loss is not None
    assert loss.values.tolist() == [3.5, float("-inf"), float("inf")]


@pytest.mark.parametrize(
    ("text", "value"), [("27,483", 27483.0), ("4.56%", 4.56), ("1.5B", 1.5e9), ("nan", None), ("N/A", ...), ("", ...)]
)
def test_a_number_is_read_as_a_console_prints_it(text: str, value: float | None) -> None:
    number = parse_number(text)
    if value is ...:
        assert number is None
    elif value is None:
        assert number != number
    else:
        assert number == value


def test_a_loss_field_that_megatron_leaves_out_is_a_nan_and_a_skipped_step_is_not(tmp_path: Path) -> None:
    line = " iteration {}/ 100 | learning rate: 1.0E-04 |{} grad norm: 1.0 | number of skipped iterations:   {} |\n"
    text = "".join(line.format(s, "" if s in (5, 6) else " lm loss: 2.0E+00 |", int(s == 5)) for s in range(1, 9))
    (tmp_path / "a.log").write_text(text)
    signals = read(tmp_path / "a.log")
    loss = signals.get("loss")
    assert loss is not None
    assert loss.steps[~np.isfinite(loss.values)].tolist() == [6]
    assert signals.notes[0] == ("vanished-field", "no 'lm loss' in the rows of steps 6: read as NaN")


def test_a_wrapped_line_of_a_chronicle_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        " iteration 10/ 100 | learning rate: 1.0E-04 | global batch\n size: 32 | lm loss: 2.5E+00 | grad norm: 1.5 |\n"
        " iteration 20/ 100 | lm loss: 2.4E+00 |\n"
    )
    signals = read(tmp_path / "a.log")
    loss, norm = signals.get("loss"), signals.get("grad_norm")
    assert loss is not None
    assert norm is not None
    assert (loss.values.tolist(), norm.values.tolist()) == ([2.5, 2.4], [1.5])


def test_the_console_of_a_trainer_without_steps_is_counted_by_its_progress_bar(tmp_path: Path) -> None:
    text = "".join(
        f" 5%|x | {step}/100 [00:01<00:20, 9.00it/s]\r{{'loss': {3 - step / 100}, 'epoch': {step / 50}}}\n"
        for step in (10, 20, 30, 40)
    )
    (tmp_path / "a.log").write_text(text + "{'train_runtime': 3.0, 'train_loss': 2.0}\n")
    signals = read(tmp_path / "a.log")
    assert steps(signals) == [10, 20, 30, 40]
    assert signals.notes[0][0] == "assumed-steps"


def test_the_operator_names_columns_that_nobody_could_guess(tmp_path: Path) -> None:
    path = rows(tmp_path / "a.jsonl", *({"step": s, "objective": 3.0 - s / 10} for s in range(1, 5)))
    with pytest.raises(InputUnreadable) as refused:
        read(path)
    assert refused.value.exit_code is ExitCode.UNREADABLE
    assert "objective" in refused.value.message
    assert "jsonl" in refused.value.message
    signals = read_signals([path], base=tmp_path, columns={"loss": "objective"})
    assert steps(signals) == [1, 2, 3, 4]


def test_the_operator_names_the_column_that_counts_steps(tmp_path: Path) -> None:
    path = rows(tmp_path / "a.jsonl", *({"tick": 50 * s, "objective": 3.0} for s in range(1, 4)))
    signals = read_signals([path], base=tmp_path, columns={"loss": "objective", "step": "tick"})
    assert steps(signals) == [50, 100, 150]
    assert signals.notes == ()


def test_a_pointer_of_git_lfs_and_an_empty_file_are_called_so(tmp_path: Path) -> None:
    good = rows(tmp_path / "a.jsonl", {"step": 1, "loss": 3.0})
    pointer = tmp_path / "b.jsonl"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    empty = tmp_path / "c.jsonl"
    empty.touch()
    reasons = {d.source: d.reason for d in read(good, pointer, empty).damages}
    assert "git lfs pull" in reasons["b.jsonl"]
    assert reasons["c.jsonl"] == "the file is empty"


def test_of_two_stacks_that_log_the_same_the_one_with_more_digits_is_kept(tmp_path: Path) -> None:
    rows(tmp_path / "a.jsonl", *({"step": s, "loss": 3.0 + s / 12345} for s in range(1, 9)))
    (tmp_path / "b.log").write_text("".join(f"step {s} loss {3.0 + s / 12345:.3f}\n" for s in range(1, 9)))
    signals = read_signals([tmp_path], base=tmp_path)
    assert [s.source for s in signals.series if s.name == "loss"] == ["a.jsonl"]
    assert {s.format for s in signals.sources} == {"jsonl", "console"}


def test_of_the_trainer_states_inside_checkpoints_the_newest_one_counts(tmp_path: Path) -> None:
    for step in (5, 10):
        directory = tmp_path / f"checkpoint-{step}"
        directory.mkdir()
        history = [{"step": s, "loss": 3.0} for s in range(1, step + 1)]
        (directory / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
        rows(directory / "metrics.jsonl", {"step": 1, "loss": 1.0})
    assert find_metric_files(tmp_path) == (tmp_path / "checkpoint-10" / "trainer_state.json",)


lines = st.lists(
    st.one_of(
        st.text(max_size=80),
        st.builds(lambda s, v: f"step {s} loss {v} lr {v}", st.integers(0, 9999), st.floats(allow_nan=True)),
        st.builds(lambda s, v: json.dumps({"step": s, "loss": v}), st.integers(-5, 9999), st.floats()),
        st.builds(lambda s: f" iteration {s}/ 10 | lm loss: 1.0E+00 | grad norm: nan", st.integers(0, 99)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=lines, tail=st.binary(max_size=40), suffix=st.sampled_from([".log", ".jsonl", ".csv"]))
def test_no_text_makes_a_reader_raise_and_steps_always_increase(
    text: list[str], tail: bytes, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes("\n".join(text).encode("utf-8", errors="replace") + tail)
    try:
        signals = read(path)
    except InputUnreadable:
        return
    for series in signals.series:
        assert np.all(np.diff(series.steps) > 0)
        assert series.steps.size == series.values.size > 0
