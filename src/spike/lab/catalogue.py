"""Which interventions are there, and what does each change? Read from their files, without running them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spike.domain.errors import ExitCode, SpikeError
from spike.domain.trial import Factor

CONSTANTS = {"NAME": str, "FACTOR": str, "SUMMARY": str, "PARAMETERS": tuple, "SPECIFIC": bool}


@dataclass(frozen=True, slots=True)
class InterventionInfo:
    """What an intervention's file says about it."""

    name: str
    """File name with hyphens: "skip-batch"."""
    factor: str
    """A value of `Factor`."""
    summary: str
    """One sentence."""
    parameters: tuple[str, ...]
    """Names of the parameters that it needs."""
    is_specific: bool
    """False for those that soften almost any spike: their success proves little."""
    is_in_process: bool
    """True where the probe makes the change, False where the lab makes it around the process."""


@cache
def interventions() -> dict[str, InterventionInfo]:
    """Every intervention by name; SpikeError naming the file where one is malformed."""
    found: dict[str, InterventionInfo] = {}
    folders = ((_folder("spike_probe"), True), (Path(__file__).parent, False))
    for folder, is_in_process in folders:
        for path in sorted((folder / "interventions").glob("[!_]*.py")):
            info = read_intervention(path, is_in_process=is_in_process)
            if info.name in found:
                raise _malformed(path, f"the name {info.name!r} is taken")
            found[info.name] = info
    return found


def read_intervention(path: Path, *, is_in_process: bool) -> InterventionInfo:
    """The constants of one file."""
    values = _constants(path)
    missing = [name for name in CONSTANTS if name not in values]
    if missing:
        raise _malformed(path, f"{', '.join(missing)} missing at module level")
    for name, kind in CONSTANTS.items():
        if not isinstance(values[name], kind):
            raise _malformed(path, f"{name} is {values[name]!r}, not a {kind.__name__}")
    if values["NAME"] != path.stem.replace("_", "-"):
        raise _malformed(path, f"NAME is {values['NAME']!r}, the file is called {path.name}")
    if values["FACTOR"] not in set(Factor):
        raise _malformed(path, f"FACTOR {values['FACTOR']!r} is none of {', '.join(Factor)}")
    return InterventionInfo(
        name=values["NAME"],
        factor=values["FACTOR"],
        summary=values["SUMMARY"],
        parameters=values["PARAMETERS"],
        is_specific=values["SPECIFIC"],
        is_in_process=is_in_process,
    )


def _constants(path: Path) -> dict[str, Any]:
    """Module-level assignments of `CONSTANTS` whose values are literals."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise _malformed(path, str(error)) from error
    values: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        if name in CONSTANTS:
            try:
                values[name] = ast.literal_eval(node.value)
            except ValueError:
                raise _malformed(path, f"{name} in line {node.lineno} is no literal") from None
    return values


def _folder(package: str) -> Path:
    # Finding a top-level package runs nothing of it.
    spec = find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    if not locations:
        raise SpikeError(
            f"the package {package} is not installed beside spike",
            hint="pip install --force-reinstall spike-runbook",
            exit_code=ExitCode.BUG,
        )
    return Path(locations[0])


def _malformed(path: Path, what: str) -> SpikeError:
    return SpikeError(
        f"intervention {path.name}: {what}", hint=f"see {path} and the others beside it", exit_code=ExitCode.BUG
    )
