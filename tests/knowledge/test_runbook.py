"""Is every page of the runbook whole, in order, and about commands that exist?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spike.cli.app import AROUND, RUNBOOK
from spike.domain.errors import InputUnreadable
from spike.domain.facts import VOCABULARY
from spike.knowledge.runbook import load_runbook
from spike.knowledge.shipped import shipped_directory

COMMANDS = (*RUNBOOK, *AROUND)

PAGE = """\
---
id: freeze
run: spike freeze --run {run}
needs: []
produces: [case.yaml]
cost: Minutes.
exits:
  0: Frozen.
undo: Delete the case.
---
# Freeze: keep it

## Why
Because.

## Do
```
spike freeze
```

## Expect
A case.

## If not
Try again.
"""


def write(directory: Path, text: str, name: str = "02-freeze.md") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(directory: Path) -> str:
    with pytest.raises(InputUnreadable) as raised:
        load_runbook(directory, known_commands=COMMANDS)
    return raised.value.message


def test_the_shipped_pages_are_the_commands_of_the_runbook_in_their_order() -> None:
    pages = load_runbook(shipped_directory("runbook"), known_commands=COMMANDS)
    assert tuple(p.id for p in pages) == tuple(RUNBOOK)
    assert [p.number for p in pages] == list(range(1, len(RUNBOOK) + 1))
    for page in pages:
        assert page.run.split()[:2] == ["spike", page.id]
        assert all(len(section) > 100 for section in (page.why, page.expect, page.if_not))
        assert page.undo


def test_no_shipped_page_names_a_cause_or_decides() -> None:
    causes = [p.stem for p in shipped_directory("playbooks").glob("*/*.yaml")]
    assert len(causes) > 3
    for page in load_runbook(shipped_directory("runbook"), known_commands=COMMANDS):
        text = Path(page.file).read_text()
        assert not [c for c in causes if c in text]
        assert not [f for f in VOCABULARY if f in text]


def test_the_readme_of_the_playbooks_explains_every_key_of_the_schema() -> None:
    from spike.knowledge.playbooks import _Confirm, _File, _Remedy

    readme = (shipped_directory("playbooks") / "README.md").read_text()
    keys = {f.alias or n for m in (_File, _Confirm, _Remedy) for n, f in m.model_fields.items()}
    assert {k for k in keys if f"`{k}`" not in readme} == set()
    assert set(re.findall(r"^\| `([a-z_]+)`", readme, re.M)) <= keys


def test_a_page_arrives_with_front_matter_and_sections(tmp_path: Path) -> None:
    write(tmp_path, PAGE)
    (page,) = load_runbook(tmp_path, known_commands=COMMANDS)
    assert (page.id, page.number, page.title) == ("freeze", 2, "Freeze: keep it")
    assert page.exits == ((0, "Frozen."),)
    assert page.do == "```\nspike freeze\n```"
    assert page.if_not == "Try again."


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("run: spike freeze --run {run}", "run: spike freese --run {run}", 3, "spike has no command 'freese'"),
        ("run: spike freeze --run {run}", "run: rm -rf {run}", 3, "run starts with 'spike' and a command"),
        ("--run {run}", "--run {place}", 3, "{place} is not filled in"),
        ("id: freeze", "id: thaw", 2, "id is 'thaw', the file name says 'freeze'"),
        ("```\nspike freeze", "```\nspike thaw", 18, "spike has no command 'thaw'"),
        ("## Expect\nA case.\n\n", "", 11, "section '## Expect' is missing"),
        ("## Why\nBecause.\n", "## Why\n", 11, "section '## Why' is empty"),
        ("# Freeze: keep it\n", "", 11, "no title"),
        ("undo: Delete the case.\n", "", 2, "undo is missing"),
        ("  0: Frozen.", "  zero: Frozen.", 8, "exits.zero"),
        ("needs: []", "needs: [checks.json]", 1, "needs checks.json, which no earlier page produces"),
    ],
)
def test_a_mistake_in_a_page_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    assert old in PAGE
    path = write(tmp_path, PAGE.replace(old, new, 1))
    report = mistakes(tmp_path)
    assert what in report
    assert re.search(rf"{re.escape(str(path))}:{line}: .*{re.escape(what)}", report)


def test_mistakes_of_all_pages_are_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path, PAGE.replace("cost: Minutes.\n", ""))
    write(tmp_path, PAGE.replace("freeze", "nothing"), "03-nothing.md")
    report = mistakes(tmp_path)
    assert "cost is missing" in report
    assert "spike has no command 'nothing'" in report


def test_a_directory_without_pages_is_named(tmp_path: Path) -> None:
    assert "holds no runbook page" in mistakes(tmp_path)


def test_a_page_without_front_matter_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "# Freeze\n")
    assert f"{path}:1: no front matter" in mistakes(tmp_path)
