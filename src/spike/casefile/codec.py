"""How do facts become JSON and come back? One pair of functions for every artefact of a case."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from spike.domain.errors import InputUnreadable

T = TypeVar("T")


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_payload(fact: Any, *, schema: str = "") -> dict[str, Any]:
    """A dataclass as plain JSON types; non-finite floats become "NaN", "Infinity", "-Infinity".

    `schema` is the artefact's name and version, "spike.outcome/1"; "" for a fact inside another artefact.
    """
    payload: dict[str, Any] = _finite(to_jsonable_python(fact))
    return {"schema": schema, **payload} if schema else payload


def _finite(value: Any) -> Any:
    """The same JSON value with non-finite numbers as text; JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def dumps(payload: Any) -> str:
    """Readable, stable text: two-space indent, keys in the order of their definition, one final newline."""
    return json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def canonical(payload: Any) -> bytes:
    """The one byte string of a payload that digests are taken of: sorted keys, no spaces, UTF-8."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _shown(found: object) -> str:
    """What stands where a schema should; of anything but text only its kind, which is short."""
    return repr(found[:60]) if isinstance(found, str) else f"of type {type(found).__name__}"


def from_payload(kind: type[T], payload: dict[str, Any], *, schema: str = "", source: str = "") -> T:
    """The fact back from its payload.

    Raises `InputUnreadable` naming `source` where the schema is another one or a field does not fit.
    """
    found = payload.get("schema", "")
    if schema and found != schema:
        raise InputUnreadable(f"{source or 'artefact'} has schema {_shown(found)}, not {schema!r}")
    body = {key: value for key, value in payload.items() if key != "schema"}
    try:
        value: T = _adapter(kind).validate_python(body)  # type: ignore[arg-type]
        return value
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputUnreadable(f"{source or 'artefact'}: {place}: {first['msg']}") from error
