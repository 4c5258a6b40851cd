"""Are playbooks read exactly, and is every mistake in them reported with its line?"""

from __future__ import annotations

from pathlib import Path

import pytest

from spike.domain.errors import ExitCode, InputUnreadable
from spike.domain.facts import VOCABULARY
from spike.domain.playbook import Expectation, Locality, Risk
from spike.domain.verdict import CauseClass
from spike.knowledge.playbooks import load_playbooks

TRIALS = ("skip-batch", "skip-batch-placebo", "control-batch", "transplant", "full-precision", "scheduled-lr")

CORRUPT_SHARD = """\
schema: spike.playbook/1
id: data/corrupt-shard
statement: A shard was damaged on its way to the loader.
looks_like:
  - Loss and gradient norm jump while one shard is read, and heal behind it.
facts:
  signal.non-finite: no
  ranks.agree: [yes, no]
supported_by: {hardware.events: yes}
trials:
  replay: reproduced
  control-batch: absent
  full-precision: any
confirm:
  trial: [control-batch, skip-batch]
  placebo: skip-batch-placebo
  reversal: transplant
  facts: {batch.supervised: some}
localise: [samples, file]
remedies:
  - do: Restore the shard from its source.
    change: control-batch
    risk: low
    because: The intact shard trains on trend.
  - do: Replace the disk.
    risk: high
    because: It will damage the next shard as well.
gate: [held-out]
sources: [a storage team's own postmortem]
examples: {support: [corrupt-shard], refute: [learning-rate-jump]}
"""


def write(root: Path, text: str, place: str = "data/corrupt-shard.yaml") -> Path:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(*roots: Path) -> tuple:
    return load_playbooks(roots, known_trials=TRIALS, known_facts=VOCABULARY)


def mistakes(root: Path) -> str:
    with pytest.raises(InputUnreadable) as raised:
        load(root)
    assert raised.value.exit_code is ExitCode.UNREADABLE
    return raised.value.message


def test_a_playbook_arrives_with_every_key(tmp_path: Path) -> None:
    path = write(tmp_path, CORRUPT_SHARD)
    (playbook,) = load(tmp_path)
    assert playbook.id == "data/corrupt-shard"
    assert playbook.cause_class is CauseClass.DATA
    assert playbook.facts == (("signal.non-finite", ("no",)), ("ranks.agree", ("yes", "no")))
    assert playbook.supported_by == (("hardware.events", ("yes",)),)
    assert playbook.expects("replay") is Expectation.REPRODUCED
    assert playbook.expects("scheduled-lr") is Expectation.ANY
    (way,) = playbook.confirm
    assert way.trials == ("control-batch", "skip-batch")
    assert (way.placebo, way.reversal) == ("skip-batch-placebo", "transplant")
    assert way.facts == (("batch.supervised", ("some",)),)
    assert playbook.localise == (Locality.SAMPLES, Locality.FILE)
    assert [(r.change, r.risk) for r in playbook.remedies] == [("control-batch", Risk.LOW), ("", Risk.HIGH)]
    assert playbook.gate == ("held-out",)
    assert playbook.supporting_examples == ("corrupt-shard",)
    assert playbook.refuting_examples == ("learning-rate-jump",)
    assert playbook.file == str(path)


def test_yes_and_no_stay_words(tmp_path: Path) -> None:
    write(tmp_path, CORRUPT_SHARD.replace("hardware.events: yes", "hardware.events: no"))
    (playbook,) = load(tmp_path)
    assert playbook.supported_by == (("hardware.events", ("no",)),)


def test_several_ways_to_confirm_are_kept_in_order(tmp_path: Path) -> None:
    start, end = CORRUPT_SHARD.index("confirm:"), CORRUPT_SHARD.index("localise:")
    ways = "confirm:\n  - trial: control-batch\n  - facts: {ranks.agree: no}\n"
    write(tmp_path, CORRUPT_SHARD[:start] + ways + CORRUPT_SHARD[end:])
    (playbook,) = load(tmp_path)
    assert [w.trials for w in playbook.confirm] == [("control-batch",), ()]


def test_a_later_directory_replaces_a_playbook_of_the_same_id(tmp_path: Path) -> None:
    write(tmp_path / "shipped", CORRUPT_SHARD)
    write(tmp_path / "shipped", CORRUPT_SHARD.replace("corrupt-shard", "other"), "data/other.yaml")
    own = write(tmp_path / "own", CORRUPT_SHARD.replace("was damaged on its way", "lost its tail on the way"))
    first, second = load(tmp_path / "shipped", tmp_path / "own")
    assert (first.id, first.file) == ("data/corrupt-shard", str(own))
    assert second.id == "data/other"


def test_all_mistakes_of_all_files_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    broken = (
        CORRUPT_SHARD.replace("signal.non-finite: no", "signal.nonfinite: no")  # line 7
        .replace("ranks.agree: [yes, no]", "ranks.agree: perhaps")  # line 8
        .replace("control-batch: absent", "control-batch: gone")  # line 12
        .replace("full-precision: any", "ful-precision: any")  # line 13
        .replace("reversal: transplant", "reversal: transplants")  # line 17
        .replace("    risk: high\n", "")  # the remedy of line 25
        .replace("gate: [held-out]", "gates: [held-out]")
    )
    first = write(tmp_path, broken)
    second = write(tmp_path, CORRUPT_SHARD, "data/misplaced.yaml")
    report = mistakes(tmp_path)
    for line, what in (
        (7, "no fact is called 'signal.nonfinite' (did you mean 'signal.non-finite'?)"),
        (8, "ranks.agree is never 'perhaps'; it is one of yes, no"),
        (12, "trials.control-batch: input should be 'reproduced', 'absent' or 'any'"),
        (13, "no intervention is called 'ful-precision' (did you mean 'full-precision'?)"),
        (17, "no intervention is called 'transplants' (did you mean 'transplant'?)"),
        (25, "remedies.1.risk is missing"),
        (27, "no such key: gates"),
    ):
        assert f"{first}:{line}: {what}" in report
    assert f"{second}:2: id is 'data/corrupt-shard', its place says 'data/misplaced'" in report
    assert report.startswith("8 mistakes")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("schema: spike.playbook/1\nid: [unclosed\n", 3, "not readable as YAML"),
        ("- a list\n", 1, "not a mapping of keys to values"),
        ("id: &a x\nstatement: *a\n", 2, "alias *a: write the value out instead"),
        ("id: data/corrupt-shard\nid: data/other\n", 2, "key 'id' is given twice"),
        ("", 1, "not a mapping of keys to values"),
    ],
)
def test_text_that_is_no_playbook_is_named_with_its_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    path = write(tmp_path, text)
    assert f"{path}:{line}: {what}" in mistakes(tmp_path)


def test_a_remedy_without_a_reason_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CORRUPT_SHARD.replace("    because: The intact shard trains on trend.\n", ""))
    assert "remedies.0.because is missing" in mistakes(tmp_path)


def test_a_playbook_that_nothing_could_establish_is_refused(tmp_path: Path) -> None:
    start, end = CORRUPT_SHARD.index("confirm:"), CORRUPT_SHARD.index("localise:")
    write(tmp_path, CORRUPT_SHARD[:start] + "confirm: {placebo: skip-batch}\n" + CORRUPT_SHARD[end:])
    assert "nothing could establish it" in mistakes(tmp_path)


def test_a_playbook_outside_a_class_directory_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CORRUPT_SHARD, "weather/rain.yaml")
    assert "a playbook lies at <class>/<cause>.yaml" in mistakes(tmp_path)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path / 'gone'}: no such directory" in mistakes(tmp_path / "gone")


def test_bytes_that_are_no_text_are_named_and_not_a_traceback(tmp_path: Path) -> None:
    path = write(tmp_path, "x")
    path.write_bytes(b"\xff\xfe\x00id")
    assert f"{path}:1: cannot be read" in mistakes(tmp_path)


def test_deep_nesting_is_a_mistake_and_not_a_crash(tmp_path: Path) -> None:
    path = write(tmp_path, "id: " + "[" * 20_000)
    assert f"{path}:1: nested more than 16 deep" in mistakes(tmp_path)
