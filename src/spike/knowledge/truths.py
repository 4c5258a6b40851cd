"""Which fixtures are there, and what was planted in each? Reads incidents/<name>/truth.yaml, spike.truth/1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from spike.domain.errors import InputUnreadable
from spike.domain.truth import RANKING, Truth
from spike.domain.verdict import CauseClass, Place, Status
from spike.knowledge.yaml_lines import parse, validate

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Where(_Strict):
    samples: list[int] = []
    rank: int | None = None
    module: str = ""
    tensor: str = ""
    commit: str = ""
    file: str = ""
    key: str = ""


class _File(_Strict):
    schema_: Literal["spike.truth/1"] = Field(alias="schema")
    why: Text
    incidents: Literal["none"] | None = None
    status: Status = Status.UNDETERMINED
    at_most: Status = Status.ESTABLISHED
    class_: CauseClass = Field(alias="class", default=CauseClass.NONE)
    cause: str = ""
    onset: int | None = None
    step: int | None = None
    tolerance: Annotated[int, Field(ge=0)] = 0
    where: _Where = _Where()
    needs: list[Text] = []

    @model_validator(mode="after")
    def _says_what_was_planted(self) -> _File:
        claims = self.status is not Status.UNDETERMINED or bool(self.cause)
        if self.incidents == "none" and (claims or self.cause or self.onset is not None):
            raise ValueError("a clean run has no status, cause or onset")
        if claims and (not self.cause or self.step is None):
            raise ValueError("a truth with a status or a cause names cause and step")
        if RANKING.index(self.at_most) < RANKING.index(self.status):
            raise ValueError("at_most is weaker than status")
        if not self.incidents and self.onset is None:
            raise ValueError("an incident has an onset")
        return self


def load_truths(fixtures: Path, only: tuple[str, ...] = ()) -> tuple[Truth, ...]:
    """The truths below `fixtures`, by name; `only` restricts them.

    Raises `InputUnreadable` that lists every mistake with file and line, unknown names, or that there is no fixture.
    """
    paths = {p.parent.name: p for p in sorted(fixtures.glob("incidents/*/truth.yaml"))}
    if not paths:
        raise InputUnreadable(f"{fixtures} holds no incidents/<name>/truth.yaml", hint="spike ci fixtures")
    unknown = sorted(set(only) - set(paths))
    if unknown:
        raise InputUnreadable(
            f"no fixture {', '.join(unknown)} in {fixtures}", hint=f"one of: {', '.join(sorted(paths))}"
        )
    truths, mistakes = [], []
    for name, path in paths.items():
        if only and name not in only:
            continue
        document, problems = parse(path.read_text(encoding="utf-8"))
        file = None
        if not problems:
            file, problems = validate(_File, document)
        mistakes += [f"{path}:{line}: {what}" for line, what in problems]
        if isinstance(file, _File):
            truths.append(_truth(name, file))
    if mistakes:
        raise InputUnreadable("mistakes in the truths:\n  " + "\n  ".join(mistakes), hint="correct the lines above")
    return tuple(truths)


def _truth(name: str, file: _File) -> Truth:
    where = file.where
    return Truth(
        name=name,
        why=file.why,
        is_clean=file.incidents == "none",
        status=file.status,
        # A run whose cause nobody could name bears no claim at all.
        at_most=file.at_most if file.cause else Status.UNDETERMINED,
        cause_class=file.class_,
        cause=file.cause,
        onset=file.onset,
        step=file.step,
        tolerance=file.tolerance,
        where=Place(
            samples=tuple(where.samples),
            rank=where.rank,
            module=where.module,
            tensor=where.tensor,
            commit=where.commit,
            file=where.file,
            key=where.key,
        ),
        needs=tuple(file.needs),
    )
