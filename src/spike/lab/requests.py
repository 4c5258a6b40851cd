"""How does a trial travel to another process or machine? As `request.json`, answered by `run.json` beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from spike.domain.errors import InputUnreadable
from spike.domain.trial import TrialRun
from spike.lab.runner import TrialRequest
from spike.lab.traces import read_batches, read_traces

REQUEST = "request.json"
ANSWER = "run.json"
_REQUEST_SCHEMA = "spike.request/1"
_ANSWER_SCHEMA = "spike.trial-run/1"

T = TypeVar("T")


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def write_request(request: TrialRequest) -> Path:
    """`request.json` in the trial's directory, with all that another machine needs beside the files it names."""
    path = Path(request.directory) / REQUEST
    _write(path, _REQUEST_SCHEMA, TrialRequest, request)
    return path


def read_request(directory: Path) -> TrialRequest:
    """The request in this trial directory; InputUnreadable where it is missing or of another version."""
    return _read(directory / REQUEST, _REQUEST_SCHEMA, TrialRequest)


def write_answer(found: TrialRun) -> None:
    """`run.json`: how the trial ended. Traces and batches stay where the probe wrote them."""
    _write(Path(found.directory) / ANSWER, _ANSWER_SCHEMA, TrialRun, replace(found, traces=(), batches=()))


def read_answer(directory: Path) -> TrialRun:
    """What the trial in this directory brought back, its traces read again; InputUnreadable where it never ended."""
    found = _read(directory / ANSWER, _ANSWER_SCHEMA, TrialRun)
    return replace(found, traces=read_traces(directory), batches=read_batches(directory))


def _write(path: Path, schema: str, kind: type[T], value: T) -> None:
    payload = {"schema": schema, **_adapter(kind).dump_python(value, mode="json")}  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(payload, indent=2) + "\n")
    temporary.replace(path)


def _read(path: Path, schema: str, kind: type[T]) -> T:
    try:
        payload = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputUnreadable(f"{path} cannot be read: {error}", hint="run the trial again") from error
    found = payload.pop("schema", None) if isinstance(payload, dict) else None
    if found != schema:
        raise InputUnreadable(f"{path} has schema {found!r}, not {schema!r}", hint="run the trial again")
    try:
        value: T = _adapter(kind).validate_python(payload)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputUnreadable(f"{path}: {place}: {first['msg']}", hint="run the trial again") from error
    return value
