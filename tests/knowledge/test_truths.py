from __future__ import annotations

from pathlib import Path

import pytest

from spike.domain.errors import InputUnreadable
from spike.domain.verdict import CauseClass, Status
from spike.knowledge.shipped import shipped_directory
from spike.knowledge.truths import load_truths


def write(fixtures: Path, name: str, text: str) -> None:
    place = fixtures / "incidents" / name
    place.mkdir(parents=True)
    (place / "truth.yaml").write_text("schema: spike.truth/1\n" + text)


def test_a_truth_is_read_with_its_place_and_tolerance(tmp_path: Path) -> None:
    write(
        tmp_path,
        "flip",
        "status: established\nclass: system\ncause: system/flip\nonset: 222\nstep: 221\ntolerance: 1\n"
        "where:\n  tensor: w\n  rank: 0\n  samples: [1, 2]\nwhy: one bit\nneeds: [transformers]\n",
    )
    (truth,) = load_truths(tmp_path)
    assert (truth.name, truth.status, truth.cause_class) == ("flip", Status.ESTABLISHED, CauseClass.SYSTEM)
    assert (truth.onset, truth.step, truth.tolerance, truth.needs) == (222, 221, 1, ("transformers",))
    assert (truth.where.tensor, truth.where.rank, truth.where.samples) == ("w", 0, (1, 2))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("incidents: none\n", "why"),
        ("incidents: none\nwhy: x\ncause: data/x\n", "a clean run has no"),
        ("why: x\n", "an incident has an onset"),
        ("status: supported\nonset: 3\nwhy: x\n", "names cause and step"),
        ("incidents: none\nwhy: x\nwehre: {}\n", "wehre"),
        ("status: established\nat_most: supported\nclass: data\ncause: data/x\nonset: 1\nstep: 1\nwhy: x\n", "at_most"),
        ("incidents: [\n", "YAML"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    write(tmp_path, "bad", text)
    with pytest.raises(InputUnreadable) as caught:
        load_truths(tmp_path)
    assert complaint in caught.value.message
    assert "bad/truth.yaml:" in caught.value.message


def test_mistakes_of_several_files_are_told_at_once(tmp_path: Path) -> None:
    write(tmp_path, "one", "why: x\n")
    write(tmp_path, "two", "incidents: none\n")
    with pytest.raises(InputUnreadable) as caught:
        load_truths(tmp_path)
    assert "one/truth.yaml" in caught.value.message
    assert "two/truth.yaml" in caught.value.message


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, "clean", "incidents: none\nwhy: x\n")
    with pytest.raises(InputUnreadable) as caught:
        load_truths(tmp_path, ("cleen",))
    assert "cleen" in caught.value.message
    assert "clean" in caught.value.hint


def test_a_directory_without_fixtures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match=r"truth\.yaml"):
        load_truths(tmp_path)


def test_the_shipped_truths_are_without_a_mistake_and_cover_every_playbook() -> None:
    truths = load_truths(shipped_directory("fixtures"))
    playbooks = shipped_directory("playbooks")
    known = {p.relative_to(playbooks).with_suffix("").as_posix() for p in playbooks.glob("*/*.yaml")}
    planted = {t.cause for t in truths if t.cause}
    assert planted <= known
    assert len(planted) >= 12
    assert sum(t.is_clean for t in truths) >= 2
    assert any(not t.is_clean and t.status is Status.UNDETERMINED for t in truths)
    assert all(t.at_most is Status.UNDETERMINED for t in truths if not t.cause)
    assert all(t.cause.split("/")[0] == t.cause_class.value for t in truths if t.cause)
