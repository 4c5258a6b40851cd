"""What does each page of the runbook say, and can an operator rely on it?

A page is Markdown with YAML front matter; this module takes it apart and refuses one that lacks a section or
names a command that does not exist. It runs nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from spike.domain.errors import InputUnreadable
from spike.domain.runbook import Page
from spike.knowledge.yaml_lines import Document, Problem, parse, validate

SECTIONS = ("Why", "Do", "Expect", "If not")
PLACEHOLDERS = ("{run}", "{case}")
_NAME = re.compile(r"(\d\d)-([a-z][a-z-]*)\.md")

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _as_list(value: object) -> object:
    return ([value] if value else []) if isinstance(value, str) else value


class _FrontMatter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: Text
    run: Text
    needs: Annotated[list[Text], BeforeValidator(_as_list)]
    produces: Annotated[list[Text], BeforeValidator(_as_list)]
    exits: Annotated[dict[int, Text], Field(min_length=1)]
    undo: Text
    cost: Text
    ends: Annotated[list[int], BeforeValidator(_as_list)] = []
    optional: bool = False


def load_runbook(directory: Path, *, known_commands: Collection[str] | None = None) -> tuple[Page, ...]:
    """The pages `NN-step.md` of the directory, in order; `known_commands` None: commands are not looked up.

    Raises `InputUnreadable` that lists every mistake in every page, with its line.
    """
    paths = sorted(p for p in directory.glob("*.md") if _NAME.fullmatch(p.name))
    if not paths:
        raise InputUnreadable(f"{directory} holds no runbook page (NN-step.md)")
    pages: list[Page] = []
    mistakes: list[str] = []
    for path in paths:
        page, problems = _load(path, known_commands)
        mistakes += [f"{path}:{line}: {what}" for line, what in sorted(problems)]
        if page is not None:
            pages.append(page)
    mistakes += _order_mistakes(pages)
    if mistakes:
        count = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise InputUnreadable(f"{count} in the runbook:\n  " + "\n  ".join(mistakes), hint="correct the lines above")
    return tuple(pages)


def _load(path: Path, known_commands: Collection[str] | None) -> tuple[Page | None, list[Problem]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return None, [(1, f"cannot be read: {error}")]
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        return None, [(1, "no front matter between two lines of ---")]
    end = lines.index("---", 1)
    document, problems = parse("\n".join(lines[1:end]), first_line=2)
    if problems:
        return None, problems
    front, problems = validate(_FrontMatter, document)
    title, sections = _sections(lines, end + 1)
    problems += _front_problems(document, path, known_commands)
    problems += _fenced_problems(lines, end + 1, known_commands)
    problems += _prose_problems(title, sections, end + 1)
    if not isinstance(front, _FrontMatter) or problems:
        return None, problems
    return _page(front, path, title, sections), []


def _sections(lines: list[str], start: int) -> tuple[str, dict[str, str]]:
    """The title and the text of every second-level section; headings inside code fences are text."""
    title, name, fenced = "", "", False
    collected: dict[str, list[str]] = {}
    for line in lines[start:]:
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("# ") and not title:
            title = line[2:].strip()
        elif not fenced and line.startswith("## "):
            name = line[3:].strip()
            collected.setdefault(name, [])
        elif name:
            collected[name].append(line)
    return title, {name: "\n".join(text).strip() for name, text in collected.items()}


def _front_problems(document: Document, path: Path, known_commands: Collection[str] | None) -> Iterator[Problem]:
    name = _NAME.fullmatch(path.name)
    written = document.at("id")
    if name and isinstance(written, str) and written != name[2]:
        yield document.line(("id",)), f"id is {written!r}, the file name says {name[2]!r}"
    run = document.at("run")
    if isinstance(run, str) and run:
        for problem in _command_problems(run, known_commands):
            yield document.line(("run",)), problem


def _command_problems(run: str, known_commands: Collection[str] | None) -> Iterator[str]:
    try:
        words = shlex.split(run)
    except ValueError as error:
        yield f"run is no command line: {error}"
        return
    if len(words) < 2 or words[0] != "spike":
        yield f"run starts with 'spike' and a command, found {run!r}"
    elif known_commands is not None and words[1] not in known_commands:
        yield f"spike has no command {words[1]!r}; it has {', '.join(sorted(known_commands))}"
    for placeholder in re.findall(r"\{[^}]*\}", run):
        if placeholder not in PLACEHOLDERS:
            yield f"{placeholder} is not filled in; a page can use {' and '.join(PLACEHOLDERS)}"


def _fenced_problems(lines: list[str], start: int, known_commands: Collection[str] | None) -> Iterator[Problem]:
    """Commands to type that stand in a code fence: an operator will paste them."""
    fenced = False
    for number, line in enumerate(lines[start:], start + 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced and line.split()[:1] == ["spike"]:
            for problem in _command_problems(line, known_commands):
                yield number, problem


def _prose_problems(title: str, sections: dict[str, str], at: int) -> Iterator[Problem]:
    if not title:
        yield at + 1, "no title (a line that starts with '# ')"
    for name in SECTIONS:
        if name not in sections:
            yield at + 1, f"section '## {name}' is missing"
        elif not sections[name]:
            yield at + 1, f"section '## {name}' is empty"


def _order_mistakes(pages: list[Page]) -> list[str]:
    """An artefact that is needed must come from an earlier page; numbers and ids must not repeat."""
    mistakes: list[str] = []
    made: set[str] = set()
    seen: dict[int, str] = {}
    for page in pages:
        if page.number in seen:
            mistakes.append(f"{page.file}:1: number {page.number:02d} is also that of {seen[page.number]}")
        seen[page.number] = page.id
        for artefact in page.needs:
            if artefact not in made:
                mistakes.append(f"{page.file}:1: needs {artefact}, which no earlier page produces")
        made.update(page.produces)
    return mistakes


def _page(front: _FrontMatter, path: Path, title: str, sections: dict[str, str]) -> Page:
    return Page(
        id=front.id,
        number=int(path.name[:2]),
        title=title,
        run=" ".join(front.run.split()),
        needs=tuple(front.needs),
        produces=tuple(front.produces),
        exits=tuple(sorted(front.exits.items())),
        undo=front.undo,
        cost=front.cost,
        why=sections["Why"],
        do=sections["Do"],
        expect=sections["Expect"],
        if_not=sections["If not"],
        ends=tuple(front.ends),
        optional=front.optional,
        file=str(path),
    )
