"""What did the operator say about the run? `spike.yaml`, parsed once into a `Run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from spike.domain.errors import ExitCode, SpikeError
from spike.domain.remote import has_login, is_url
from spike.domain.run import Limits, Prices, Run

FILE_NAME = "spike.yaml"
MAX_BYTES = 1 << 20
"""A description longer than this is not one that a person wrote."""


_KEYLESS = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "cos", "r2"))
"""Schemes whose addresses begin with a bucket: a user name there is a key that somebody pasted."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Limits(_Section):
    trial_minutes: float = Field(default=60.0, gt=0)
    repeats: int = Field(default=2, ge=1, le=20)
    max_trials: int = Field(default=24, ge=1)


class _Prices(_Section):
    gpu_hour: float = Field(default=0.0, ge=0)
    currency: str = "USD"


class _RunFile(_Section):
    launch: str = ""
    checkpoints: str = ""
    metrics: list[str] = []
    code: str = ""
    cwd: str = ""
    cases: str = ""
    holdout: str = ""
    devices: int = Field(default=1, ge=0)
    env: dict[str, str] = {}
    knobs: dict[str, str] = {}
    columns: dict[str, str] = {}
    detect: dict[str, float] = {}
    hardware: list[str] = []
    playbooks: str = ""
    limits: _Limits = _Limits()
    prices: _Prices = _Prices()

    @field_validator("metrics", "hardware", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("checkpoints")
    @classmethod
    def _readable_address(cls, value: str) -> str:
        if not is_url(value):
            return value
        if value.count("{step}") != 1:
            raise ValueError("an address has to hold {step} once, like s3://bucket/run/step-{step}")
        return _without_login(value)

    @field_validator("metrics")
    @classmethod
    def _readable_addresses(cls, values: list[str]) -> list[str]:
        return [_without_login(value) for value in values]

    @field_validator("env", "knobs", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        # YAML reads `OMP_NUM_THREADS: 1` as a number; the environment wants text.
        if isinstance(value, dict):
            return {key: str(item) if isinstance(item, int | float) else item for key, item in value.items()}
        return value


def _without_login(address: str) -> str:
    """The address; a bucket's key has no place in it, and the message does not repeat it."""
    scheme = address.partition("://")[0]
    if is_url(address) and has_login(address) and scheme in _KEYLESS:
        raise ValueError(f"credentials do not belong into a {scheme}:// address: give them in the environment")
    return address


def locate(path: Path) -> Path:
    """The run directory meant by `path`: itself, or the directory of the spike.yaml that it names."""
    resolved = path.expanduser().resolve()
    return resolved.parent if resolved.is_file() else resolved


def load_run(path: Path) -> Run:
    """Read the description of the run at `path` (a directory or its spike.yaml).

    Raises `SpikeError` with every problem and its line where the file is missing or wrong.
    """
    directory = locate(path)
    file = directory / FILE_NAME
    if not directory.is_dir():
        raise SpikeError(f"{directory} is no directory", hint="spike init --run RUN_DIRECTORY")
    if not file.is_file():
        raise SpikeError(f"there is no {FILE_NAME} in {directory}", hint=f"spike init --run {directory}")
    if file.stat().st_size > MAX_BYTES:
        raise SpikeError(f"{file} is larger than {MAX_BYTES} bytes", exit_code=ExitCode.UNREADABLE)
    return parse_run(file.read_text(encoding="utf-8", errors="replace"), directory, str(file))


def load_run_or_bare(path: Path) -> Run:
    """As `load_run`; where there is no spike.yaml, a run of which only the directory is known."""
    directory = locate(path)
    if (directory / FILE_NAME).is_file() or not directory.is_dir():
        return load_run(path)
    return Run(directory=str(directory))


def parse_run(text: str, directory: Path, source: str) -> Run:
    """The `Run` that this YAML text describes, its relative paths resolved against `directory`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpikeError(f"{source}: {error}", hint="correct the YAML", exit_code=ExitCode.USAGE) from error
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise SpikeError(f"{source} should be a mapping of keys, found {type(loaded).__name__}")
    try:
        parsed = _RunFile.model_validate(loaded)
    except ValidationError as error:
        lines = key_lines(node)
        raise SpikeError(
            "\n".join(
                f"{source}:{lines.get(_path(e), 1)}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            ),
            hint=f"correct {source} and repeat the command",
        ) from error
    return _run(parsed, directory)


def _path(error: Any) -> tuple[str, ...]:
    return tuple(str(part) for part in error["loc"])[:2]


def key_lines(node: yaml.Node | None, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    """1-based line of every key of a composed YAML mapping, by its path of keys."""
    lines: dict[tuple[str, ...], int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*prefix, str(key.value))
            lines[here] = key.start_mark.line + 1
            lines.update(key_lines(value, here))
    return lines


def _run(parsed: _RunFile, directory: Path) -> Run:
    def resolved(text: str) -> str:
        return str((directory / Path(text).expanduser()).resolve()) if text else ""

    return Run(
        directory=str(directory),
        launch=" ".join(parsed.launch.split()),
        checkpoints=parsed.checkpoints,
        metrics=tuple(parsed.metrics),
        code=resolved(parsed.code),
        cwd=resolved(parsed.cwd),
        cases=resolved(parsed.cases),
        holdout=" ".join(parsed.holdout.split()),
        devices=parsed.devices,
        env=tuple(parsed.env.items()),
        knobs=tuple(parsed.knobs.items()),
        columns=tuple(parsed.columns.items()),
        detect=tuple(parsed.detect.items()),
        hardware=tuple(parsed.hardware),
        playbooks=resolved(parsed.playbooks),
        limits=Limits(**parsed.limits.model_dump()),
        prices=Prices(**parsed.prices.model_dump()),
    )
