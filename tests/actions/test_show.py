"""Does show tell what is really in a batch, a trial, a checkpoint?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spike.actions.show import as_text, show_batch, show_formats, show_signals, show_tensor, trial_named
from spike.casefile.case import Case
from spike.cli.app import app
from spike.domain.errors import ExitCode, InputUnreadable, SpikeError
from tests.report.synthetic_case import build_case

torch = pytest.importorskip("torch")
SAMPLES = Path(__file__).parents[3] / "shared" / "sample-checkpoints"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    found = build_case(tmp_path / "cases", through="bisect")
    text = b"the quick brown fox jumps over the lazy dog. ".ljust(64, b"!")
    rows = torch.tensor([list(text), [7] * 64, list(range(1, 60)) + [-100] * 5])
    sites = [
        {"site": "model", "tensors": [rows, torch.tensor([[0.5, float("nan")], [1.5, -2.0]])]},
        {"site": "cross_entropy", "tensors": [torch.tensor(3)]},
    ]
    trial = found.path / "trials" / "T001-replay"
    (trial / "batches").mkdir()
    torch.save({"schema": "spike.batch/1", "sites": sites}, trial / "batches" / "step222.pt")
    line = {"t": "batch", "step": 222, "micro": 0, "digest": "9c1f0a", "path": "batches/step222.pt", "samples": 3}
    with (trial / "trace" / "rank00000.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return found


def invoke(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["show", *arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_batch_is_shown_as_ids_repeats_ignored_labels_and_text(case: Case) -> None:
    (view,) = show_batch(case, "replay")
    ids, floats, scalar = view.tensors
    text, repeated, labels = ids.samples
    assert text.text.startswith("the quick brown fox")
    assert (repeated.num_distinct, repeated.most_common, repeated.text) == (1, (7, 1.0), "")
    assert (labels.num_ignored, labels.num_distinct, labels.num_ids) == (5, 59, 64)
    assert floats.summary == "-2 to 1.5, 1 non-finite of 4"
    assert scalar.summary == "value 3"


def test_the_text_of_a_batch_cannot_command_the_terminal(case: Case) -> None:
    path = case.path / "trials" / "T001-replay" / "batches" / "step222.pt"
    attack = torch.tensor([list(b"plain text before \x1b]0;owned\x07 and plain text after it, long enough to count")])
    torch.save({"schema": "spike.batch/1", "sites": [{"site": "m\x1b[2J", "tensors": [attack]}]}, path)
    shown = invoke("batch", "replay", "--case", str(case.path))
    assert "plain text before" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_a_step_without_a_captured_batch_names_those_that_have_one(case: Case) -> None:
    with pytest.raises(SpikeError, match="the steps with one are: 222"):
        show_batch(case, "T001", step=9)


def test_a_batch_file_with_code_in_it_is_refused(case: Case) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("executed",)

    torch.save({"schema": "spike.batch/1", "sites": [Evil()]}, case.path / "trials/T001-replay/batches/step222.pt")
    with pytest.raises(InputUnreadable, match="cannot read"):
        show_batch(case, "replay")


def test_a_trial_shows_declared_against_observed(case: Case) -> None:
    shown = invoke("trial", "control-batch", "--case", str(case.path))
    assert "declared  control-batch (step 222) [batch content]" in shown
    assert "observed  batch content at step 222 rank 0: 9c1f0a -> e77d21" in shown
    assert "outcome   absent, 1% left" in shown
    answered = json.loads(invoke("trial", "T003", "--case", str(case.path), "--json"))
    assert answered["declared"]["intervention"]["factor"] == "batch content"
    assert answered["observed"]["outcome"]["kind"] == "absent"


@pytest.mark.parametrize("wanted", ["T001-replay", "T001", "1", "replay"])
def test_a_trial_is_found_by_any_of_its_names(case: Case, wanted: str) -> None:
    assert trial_named(case, wanted) == "T001-replay"


def test_a_trial_that_is_not_there_names_those_that_are(case: Case) -> None:
    with pytest.raises(SpikeError, match=r"no trial 'T099'.*T001-replay"):
        trial_named(case, "T099")


def test_bytes_are_text_and_token_ids_are_not() -> None:
    assert as_text(list("grüße\n".encode())) == "grüße\n"
    assert as_text([7] * 20) == ""
    assert as_text([50_256, 11]) == ""
    assert as_text([200, 201, 202, 203]) == ""
    assert as_text([]) == ""


def test_the_tensors_of_a_real_checkpoint_are_shown_and_chosen_by_name() -> None:
    checkpoint = SAMPLES / "hf_trainer" / "checkpoint-3"
    if not checkpoint.is_dir():
        pytest.skip(f"no sample checkpoint at {checkpoint}")
    everything = show_tensor(checkpoint)
    assert everything.unreadable == ()
    assert len(everything.tensors) == everything.checkpoint.num_tensors
    (one,) = [t for t in show_tensor(checkpoint, "lm_head.weight").tensors if not t.key]
    assert one.shape == (64, 32)
    with pytest.raises(SpikeError, match="holds no tensor with 'no-such'"):
        show_tensor(checkpoint, "no-such")


def test_a_flipped_bit_is_shown_as_unreadable_and_exits_so(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    torch.save({"model": {"w": torch.ones(4_096)}, "iter_num": 3}, path)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    path.write_bytes(raw)
    found = CliRunner().invoke(app, ["show", "tensor", str(path)])
    assert found.exit_code == ExitCode.UNREADABLE
    assert "unreadable: ckpt.pt!data/0: does not match its CRC-32" in found.stdout
    assert "w       parameter  float32  4096" in found.stdout


def test_every_format_is_listed_with_the_question_that_its_reader_answers() -> None:
    found = show_formats()
    assert {f.kind for f in found} == {"checkpoint", "metrics", "hardware"}
    assert {"jsonl", "hf-trainer", "dmesg"} <= {f.name for f in found}
    assert [f for f in found if "?" not in f.about] == []
    assert "hf-trainer" in invoke("formats")


def test_the_signals_of_a_case_are_listed_and_answer_sql(case: Case) -> None:
    where = ("--case", str(case.path))
    listed = invoke("signals", *where)
    assert listed.splitlines()[0].split() == [
        *("name", "ranks", "rows", "first_step", "last_step", "non_finite", "superseded")
    ]
    assert {line.split()[0] for line in listed.splitlines()[1:]} >= {"loss", "grad_norm"}
    sql = "SELECT step, value FROM signals WHERE name = 'loss' ORDER BY value DESC LIMIT 1"
    step, value = invoke("signals", "--sql", sql, *where).splitlines()[1].split()
    payload = json.loads(invoke("signals", "--sql", sql, "--json", *where))
    assert payload["schema"] == "spike.show-signals/1"
    assert (payload["columns"], payload["is_cut"]) == (["step", "value"], False)
    assert [payload["rows"][0][0], f"{payload['rows'][0][1]:.9g}"] == [int(step), value]


def test_what_no_number_can_hold_is_a_word_in_an_answer(case: Case) -> None:
    sql = "SELECT 'nan'::DOUBLE, 'inf'::DOUBLE, '-inf'::DOUBLE, NULL"
    payload = json.loads(invoke("signals", "--sql", sql, "--json", "--case", str(case.path)))
    assert payload["rows"] == [["NaN", "Infinity", "-Infinity", None]]
    shown = invoke("signals", "--sql", sql, "--case", str(case.path))
    assert shown.splitlines()[1].split() == ["nan", "inf", "-inf", "NULL"]


@pytest.mark.parametrize("sql", ["SELECT nothing FROM signals", "SELEC", "DROP VIEW signals", "SELECT 1; SELECT 2"])
def test_a_query_that_fails_is_a_usage_error_that_shows_one_that_works(case: Case, sql: str) -> None:
    with pytest.raises(SpikeError) as refused:
        show_signals(case, sql)
    assert refused.value.exit_code is ExitCode.USAGE
    assert show_signals(case, refused.value.hint).columns[0] == "name"


def test_the_help_of_signals_names_every_column(case: Case) -> None:
    shown = invoke("signals", "--help")
    columns = show_signals(case, "SELECT * FROM signals LIMIT 0").columns
    assert len(columns) == 6
    assert [name for name in columns if name not in shown] == []
