"""What did each rank's probe write? `spike.trace/1` files into facts; a torn last line is expected, damage is named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.domain.trace import (
    CapturedBatch,
    Effect,
    Fingerprint,
    MicroBatch,
    ModuleFacts,
    ProcessFacts,
    RankTrace,
    StepRecord,
    TensorPrint,
)

SCHEMA = "spike.trace/1"
PATHS = "paths.json"
_PATHS_SCHEMA = "spike.paths/1"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_UNKNOWN = NotMeasured("the probe could not see it in this stack")

Line = Mapping[str, Any]


def trace_files(directory: Path) -> tuple[Path, ...]:
    """The newest attempt's trace of each rank below a trial directory, in the order of the ranks."""
    return tuple(sorted((directory / "trace").glob("rank*.jsonl")))


def read_traces(directory: Path) -> tuple[RankTrace, ...]:
    """All ranks' traces of a trial; paths of a copied view are turned into those of the run.

    Raises `InputUnreadable` naming file and line where a line other than the last is damaged, or where the
    schema is another one. A file without even a whole start line is left out: its process wrote nothing.
    """
    mapping = read_paths(directory)
    parsed = (read_trace(path, mapping) for path in trace_files(directory))
    return tuple(trace for trace in parsed if trace is not None)


def write_paths(directory: Path, seen_to_real: Mapping[str, str]) -> None:
    """Remember, beside the traces, what the paths in them stand for: a copied view is gone when they are read."""
    if seen_to_real:
        payload = {"schema": _PATHS_SCHEMA, "seen": dict(seen_to_real)}
        (directory / PATHS).write_text(json.dumps(payload, indent=2) + "\n")


def read_paths(directory: Path) -> dict[str, str]:
    """Path prefixes in the traces, and what they stand for; empty where the run was seen at its own path."""
    path = directory / PATHS
    if not path.exists():
        return {}
    payload = json.loads(path.read_text())
    if payload.get("schema") != _PATHS_SCHEMA:
        raise InputUnreadable(f"{path} has schema {payload.get('schema')!r}, not {_PATHS_SCHEMA!r}")
    return {str(seen): str(real) for seen, real in payload["seen"].items()}


def read_batches(directory: Path) -> tuple[CapturedBatch, ...]:
    """The micro-batches that the ranks saved, paths absolute."""
    found = []
    for path in trace_files(directory):
        lines = _lines(path)
        rank = int(lines[0].get("rank", 0)) if lines else 0
        for line in lines:
            if line["t"] == "batch":
                found.append(_batch(line, rank, directory))
    return tuple(found)


def read_trace(path: Path, mapping: Mapping[str, str] | None = None) -> RankTrace | None:
    """One rank's trace, or None where the process ended before its start line was whole."""
    lines = _lines(path)
    if not lines:
        return None
    start = lines[0]
    if start["t"] != "start" or start.get("schema") != SCHEMA:
        found = start.get("schema", f"a {start['t']!r} line")
        raise InputUnreadable(f"{path} starts with {found!r}, not with {SCHEMA!r}")
    try:
        return _trace(start, lines[1:], mapping or {})
    except (KeyError, TypeError, ValueError) as error:
        raise InputUnreadable(f"{path} does not fit {SCHEMA}: {type(error).__name__} {error}") from error


def _lines(path: Path) -> list[Line]:
    """Whole lines; the last one may be torn, because a process can die while writing."""
    raw = path.read_bytes().split(b"\n")
    parsed: list[Line] = []
    for number, text in enumerate(raw, start=1):
        if not text:
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            if number == len(raw):
                break
            raise InputUnreadable(
                f"{path} line {number} is damaged: {error}", hint="spike verify tells whether the case was changed"
            ) from error
        if not isinstance(line, dict) or "t" not in line:
            raise InputUnreadable(f"{path} line {number} is no trace line: it has no kind 't'")
        parsed.append(line)
    return parsed


def _of(lines: Iterable[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["t"] == kind]


def _trace(start: Line, lines: list[Line], mapping: Mapping[str, str]) -> RankTrace:
    steps = _of(lines, "step")
    end = _of(lines, "end")
    errors = [f"{line.get('where', '')}: {line.get('message', '')}" for line in _of(lines, "error")]
    for key in ("loss", "grad_norm"):
        lost = [str(line["step"]) for line in steps if line.get(key) is None]
        if lost:
            errors.append(f"{key} not measured at {len(lost)} steps, first {lost[0]}")
    return RankTrace(
        process=_process(start, lines, mapping),
        first_step=int(start.get("first_step") or 0),
        steps=tuple(_step(line) for line in steps),
        fingerprints=tuple(_fingerprint(line) for line in _of(lines, "fingerprint")),
        modules=tuple(_modules(line) for line in _of(lines, "modules")),
        effects=tuple(_effect(line) for line in _of(lines, "effect")),
        end=str(end[-1].get("reason", "")) if end else "",
        errors=tuple(errors),
    )


def _number(value: Any) -> float:
    """A float; NaN where nothing was measured, which `_trace` reports as an error of the probe."""
    if value is None:
        return math.nan
    return _SPECIAL[value] if isinstance(value, str) else float(value)


def _maybe(value: Any) -> float | NotMeasured:
    return _UNKNOWN if value is None else _number(value)


def _count(value: Any) -> int | NotMeasured:
    return _UNKNOWN if value is None else int(value)


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), str(item)) for key, item in (value or {}).items())


def _original(path: str, mapping: Mapping[str, str]) -> str:
    for seen, real in mapping.items():
        if path == seen or path.startswith(seen + "/"):
            return real + path[len(seen) :]
    return path


def _process(start: Line, lines: list[Line], mapping: Mapping[str, str]) -> ProcessFacts:
    kernels = _of(lines, "kernels")
    seen: Line = kernels[-1] if kernels else {}
    return ProcessFacts(
        rank=int(start["rank"]),
        world=int(start["world"]),
        host=str(start.get("host", "")),
        device=str(start.get("device", "")),
        argv=tuple(str(word) for word in start.get("argv", ())),
        python=str(start.get("python", "")),
        packages=_pairs(start.get("packages")),
        threads=int(start.get("threads") or 0),
        kernels=_pairs(seen.get("kernels")),
        env=_pairs(start.get("env")),
        opened=tuple(_original(str(line["path"]), mapping) for line in _of(lines, "opened")),
        optimizers=tuple(str(text) for text in seen.get("optimizers") or ()),
    )


def _micro(raw: Line) -> MicroBatch:
    return MicroBatch(
        loss=_number(raw.get("loss")),
        batch=str(raw.get("batch") or ""),
        num_targets=_count(raw.get("targets")),
        num_supervised=_count(raw.get("supervised")),
        num_samples=_count(raw.get("samples")),
    )


def _step(line: Line) -> StepRecord:
    clip = line.get("clip")
    return StepRecord(
        step=int(line["step"]),
        micro_batches=tuple(_micro(raw) for raw in line.get("micro") or ()),
        loss=_number(line.get("loss")),
        grad_norm=_number(line.get("grad_norm")),
        num_nonfinite_grads=int(line.get("nonfinite_grads") or 0),
        clip_max_norm=None if clip is None else _number(clip),
        lr=tuple(_number(value) for value in line.get("lr") or ()),
        applied=bool(line["applied"]),
        update_norm=_maybe(line.get("update_norm")),
        param_norm=_maybe(line.get("param_norm")),
        loss_scale=_maybe(line.get("loss_scale")),
        precision=str(line.get("precision") or ""),
        rng=_pairs(line.get("rng")),
        seconds=_number(line.get("seconds")),
    )


def _fingerprint(line: Line) -> Fingerprint:
    return Fingerprint(int(line["step"]), tuple(_tensor(raw) for raw in line.get("tensors") or ()))


def _tensor(raw: Line) -> TensorPrint:
    return TensorPrint(
        role=str(raw["role"]),
        name=str(raw["name"]),
        index=int(raw["index"]),
        key=str(raw.get("key") or ""),
        dtype=str(raw["dtype"]),
        shape=tuple(int(n) for n in raw["shape"]),
        digest=str(raw["digest"]),
        l2=_number(raw.get("l2")),
        num_nonfinite=int(raw.get("nonfinite") or 0),
        whole=tuple(int(n) for n in raw.get("whole") or ()),
        offset=tuple(int(n) for n in raw.get("offset") or ()),
    )


def _modules(line: Line) -> ModuleFacts:
    return ModuleFacts(
        step=int(line["step"]),
        first_nonfinite_forward=str(line.get("first_nonfinite_forward") or ""),
        first_nonfinite_backward=str(line.get("first_nonfinite_backward") or ""),
        absmax=tuple((str(name), _number(value)) for name, value in line.get("absmax") or ()),
    )


def _effect(line: Line) -> Effect:
    return Effect(
        step=int(line["step"]),
        intervention=str(line["intervention"]),
        what=str(line["what"]),
        before=str(line.get("before")),
        after=str(line.get("after")),
        took_effect=bool(line["took_effect"]),
    )


def _batch(line: Line, rank: int, directory: Path) -> CapturedBatch:
    return CapturedBatch(
        step=int(line["step"]),
        rank=rank,
        micro=int(line["micro"]),
        digest=str(line["digest"]),
        path=str(directory / str(line["path"])),
        num_samples=_count(line.get("samples")),
    )
