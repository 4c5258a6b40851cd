"""Which hypotheses do we know, and is each of them written down without a mistake?

Reads `<directory>/<class>/<cause>.yaml`, `schema: spike.playbook/1`. Decides nothing about an incident.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from spike.domain.errors import InputUnreadable
from spike.domain.playbook import REPLAY, Confirmation, Expectation, Locality, Playbook, Remedy, Risk, Wanted
from spike.domain.verdict import CauseClass
from spike.knowledge.yaml_lines import Document, Location, Problem, parse, validate

MAX_BYTES = 256 * 1024
"""A playbook is a page of prose; anything larger is another file in the wrong place."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, dict) else value


Values = Annotated[list[Text], BeforeValidator(_as_list), Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Confirm(_Strict):
    trial: Annotated[list[Text], BeforeValidator(_as_list)] = []
    placebo: str = ""
    reversal: str = ""
    facts: dict[str, Values] = {}


class _Remedy(_Strict):
    do: Text
    change: str = ""
    risk: Risk
    because: Text


class _Examples(_Strict):
    support: list[Text] = []
    refute: list[Text] = []


class _File(_Strict):
    schema_: Literal["spike.playbook/1"] = Field(alias="schema")
    id: Text
    statement: Text
    looks_like: Annotated[list[Text], Field(min_length=1)]
    facts: dict[str, Values] = {}
    supported_by: dict[str, Values] = {}
    trials: dict[str, Expectation] = {}
    confirm: Annotated[list[_Confirm], BeforeValidator(_one_or_many), Field(min_length=1)]
    localise: list[Locality] = []
    remedies: Annotated[list[_Remedy], Field(min_length=1)]
    gate: list[Text] = []
    sources: list[Text] = []
    examples: _Examples = _Examples()


def load_playbooks(
    directories: Sequence[Path], *, known_trials: Collection[str], known_facts: Mapping[str, tuple[str, ...]]
) -> tuple[Playbook, ...]:
    """Every playbook below the directories, by id; a later directory replaces a playbook of the same id.

    Raises `InputUnreadable` that lists every mistake in every file, with its line: an operator who edits five
    files wants one list, not five runs.
    """
    found: dict[str, Playbook] = {}
    mistakes: list[str] = []
    for directory in directories:
        if not directory.is_dir():
            mistakes.append(f"{directory}: no such directory")
            continue
        for path in sorted(_files(directory)):
            playbook, problems = _load(path, directory, known_trials, known_facts)
            mistakes += [f"{path}:{line}: {what}" for line, what in sorted(problems)]
            if playbook is not None:
                found[playbook.id] = playbook
    if mistakes:
        count = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise InputUnreadable(
            f"{count} in the playbooks:\n  " + "\n  ".join(mistakes),
            hint="correct the lines above; playbooks/README.md explains every key",
        )
    return tuple(found[id_] for id_ in sorted(found))


def _files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if path.suffix in (".yaml", ".yml") and not hidden:
            yield path


def _load(
    path: Path, directory: Path, known_trials: Collection[str], known_facts: Mapping[str, tuple[str, ...]]
) -> tuple[Playbook | None, list[Problem]]:
    try:
        if path.stat().st_size > MAX_BYTES:
            return None, [(1, f"larger than {MAX_BYTES} bytes, not a playbook")]
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return None, [(1, f"cannot be read: {error}")]
    document, problems = parse(text)
    if problems:
        return None, problems
    file, problems = validate(_File, document)
    # The names are looked up in what was written, so that they are reported together with what does not fit.
    problems += _place_problems(document, path.relative_to(directory))
    problems += _fact_problems(document, known_facts)
    problems += _trial_problems(document, known_trials)
    return (_playbook(file, path), []) if isinstance(file, _File) and not problems else (None, problems)


def _place_problems(document: Document, relative: Path) -> Iterator[Problem]:
    expected = relative.with_suffix("").as_posix()
    written = document.at("id")
    classes = [c.value for c in CauseClass if c is not CauseClass.NONE]
    if len(relative.parts) != 2 or relative.parts[0] not in classes:
        yield 1, f"a playbook lies at <class>/<cause>.yaml, with class one of {', '.join(classes)}"
    elif relative.suffix != ".yaml":
        yield 1, "the suffix of a playbook is .yaml"
    elif isinstance(written, str) and written != expected:
        yield document.line(("id",)), f"id is {written!r}, its place says {expected!r}"


def _fact_problems(document: Document, known: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    sections: list[tuple[Location, object]] = [(("facts",), document.at("facts"))]
    sections.append((("supported_by",), document.at("supported_by")))
    sections += [((*place, "facts"), confirm.get("facts")) for place, confirm in _confirmations(document)]
    for location, facts in sections:
        for name, values in facts.items() if isinstance(facts, dict) else ():
            at = document.line((*location, name))
            if name not in known:
                yield at, f"no fact is called {name!r}{_guess(name, known)}"
                continue
            for value in values if isinstance(values, list) else [values]:
                if value not in known[name]:
                    yield at, f"{name} is never {value!r}; it is one of {', '.join(known[name])}"


def _trial_problems(document: Document, known: Collection[str]) -> Iterator[Problem]:
    for location, name in _trial_names(document):
        if isinstance(name, str) and name and name not in known:
            yield document.line(location), f"no intervention is called {name!r}{_guess(name, known)}"
    for place, confirm in _confirmations(document):
        if not confirm.get("trial") and not confirm.get("facts"):
            yield document.line(place), "confirm names neither a trial nor facts: nothing could establish it"


def _confirmations(document: Document) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Each way to confirm with its place; the key holds one mapping or a list of them."""
    written = document.at("confirm")
    if isinstance(written, dict):
        yield ("confirm",), written
    for index, confirm in enumerate(written if isinstance(written, list) else ()):
        if isinstance(confirm, dict):
            yield ("confirm", index), confirm


def _trial_names(document: Document) -> Iterator[tuple[Location, object]]:
    trials = document.at("trials")
    for name in trials if isinstance(trials, dict) else ():
        if name != REPLAY:
            yield ("trials", name), name
    for place, confirm in _confirmations(document):
        for role in ("trial", "placebo", "reversal"):
            yield (*place, role), confirm.get(role)
    remedies = document.at("remedies")
    for index, remedy in enumerate(remedies if isinstance(remedies, list) else ()):
        if isinstance(remedy, dict):
            yield ("remedies", index, "change"), remedy.get("change")


def _guess(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _wanted(facts: dict[str, list[str]]) -> Wanted:
    return tuple((name, tuple(values)) for name, values in facts.items())


def _playbook(file: _File, path: Path) -> Playbook:
    return Playbook(
        id=file.id,
        cause_class=CauseClass(file.id.split("/")[0]),
        statement=file.statement,
        looks_like=tuple(file.looks_like),
        facts=_wanted(file.facts),
        supported_by=_wanted(file.supported_by),
        trials=tuple(file.trials.items()),
        confirm=tuple(Confirmation(tuple(w.trial), w.placebo, w.reversal, _wanted(w.facts)) for w in file.confirm),
        localise=tuple(file.localise),
        remedies=tuple(Remedy(r.do, r.risk, r.because, r.change) for r in file.remedies),
        gate=tuple(file.gate),
        sources=tuple(file.sources),
        supporting_examples=tuple(file.examples.support),
        refuting_examples=tuple(file.examples.refute),
        file=str(path),
    )
