"""On which line does a value stand? YAML read as plain text values, each with its place in the file.

Every scalar stays the text that was written: `yes` is "yes" and `0600` is "0600", since playbooks and pages
know no other type. Aliases and duplicate keys are refused: a playbook is a list of claims, not a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml
from pydantic import BaseModel, ValidationError

MAX_DEPTH = 16

Location: TypeAlias = tuple[str | int, ...]
Problem: TypeAlias = tuple[int, str]
"""(line counted from 1, what is wrong there)."""


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping as nested dicts, lists and strings, and where each of them begins."""

    data: dict[str, Any]
    lines: Mapping[Location, int]

    def at(self, *location: str) -> Any:
        """The value at nested keys, or None where one of them is missing or no mapping."""
        value: Any = self.data
        for key in location:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def line(self, location: Location) -> int:
        """Line of this value, or of the nearest thing around it."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


def parse(text: str, *, first_line: int = 1) -> tuple[Document, list[Problem]]:
    """The document and what is wrong with it as YAML; `first_line` is where `text` begins in its file."""
    problems: list[Problem] = []
    lines: dict[Location, int] = {(): first_line}
    try:
        refused = _refused(text, first_line)
        if refused is not None:
            return Document({}, lines), [refused]
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = first_line + (mark.line if mark else 0)
        return Document({}, lines), [(at, f"not readable as YAML: {error.problem or error.context}")]
    except (yaml.YAMLError, RecursionError) as error:
        return Document({}, lines), [(first_line, f"not readable as YAML: {str(error).splitlines()[0]}")]
    if not isinstance(node, yaml.MappingNode):
        return Document({}, lines), [(first_line, "not a mapping of keys to values")]
    data = _value(node, (), first_line, lines, problems)
    return Document(data, lines), problems


def _refused(text: str, first_line: int) -> Problem | None:
    """The first alias, or the first place that is nested beyond what a person writes (and composing can bear)."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        at = first_line + (event.start_mark.line if event.start_mark else 0)
        if isinstance(event, yaml.AliasEvent):
            return at, f"alias *{event.anchor}: write the value out instead"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return at, f"nested more than {MAX_DEPTH} deep"
    return None


def _value(
    node: yaml.Node,
    location: Location,
    first_line: int,
    lines: dict[Location, int],
    problems: list[Problem],
) -> Any:
    lines.setdefault(location, first_line + node.start_mark.line)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            at = first_line + key_node.start_mark.line
            if key in mapping:
                problems.append((at, f"key {key!r} is given twice"))
            lines[(*location, key)] = at
            mapping[key] = _value(value_node, (*location, key), first_line, lines, problems)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*location, index), first_line, lines, problems) for index, item in enumerate(node.value)]
    return str(node.value)


def validate(model: type[BaseModel], document: Document) -> tuple[BaseModel | None, list[Problem]]:
    """The document as `model`, or every field that does not fit, each with its line."""
    try:
        return model.model_validate(document.data), []
    except ValidationError as error:
        return None, [_problem(document, found) for found in error.errors()]


def _problem(document: Document, error: Any) -> Problem:
    location: Location = tuple(error["loc"])
    name = ".".join(str(part) for part in location) or "file"
    match error["type"]:
        case "missing":
            return document.line(location[:-1]), f"{name} is missing"
        case "extra_forbidden":
            return document.line(location), f"no such key: {name}"
        case _:
            message = str(error["msg"]).removeprefix("Value error, ")
            return document.line(location), f"{name}: {message[:1].lower()}{message[1:]}"
