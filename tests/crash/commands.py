"""Which commands write, how does each one's world look before it, and what is its right answer?

The list is held against the command line itself: a new command has no place here and fails the test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.casefile.case import list_cases

READ_ONLY = {
    "detect": "reads logs and prints",
    "status": "reads the case and prints",
    "show": "reads the case and prints",
    "watch": "reads logs and prints; what --on-incident starts is the operator's own command",
    "verify": "reads the case and prints, so that a read-only copy can be verified",
}
"""These change nothing anywhere; a test runs each and compares."""
OWN_DIRECTORY = {
    "demo": "makes a run of its own in a new directory, then walks: killed like walk",
    "ci": "builds runs in directories of its own and starts the commands below as processes",
}

Answer = Callable[[dict[str, Any], Path], object]
"""What must come out the same, whatever was killed before: (printed JSON, directory of the cases)."""


@dataclass(frozen=True, slots=True)
class Written:
    """One way to type a command that writes."""

    name: str
    words: tuple[str, ...]
    before: tuple[str, ...]
    """Names of the ways that were typed before, in this world."""
    answer: Answer
    code: int = 0
    trains: bool = False
    """It runs the training command, so that one kill takes seconds."""
    whole_group: bool = False
    done_code: int | None = None
    """Exit code of the same command once everything is done, where that is another one."""
    weight: int = 4
    """Its part of the kills: a command that draws figures takes a second."""

    @property
    def command(self) -> str:
        """The command of the command line."""
        return self.words[0]


def _pins(found: dict[str, Any]) -> list[object]:
    pins = [found["last_good"], *found["earlier"], *found["suspect"]]
    return [(pin["step"], pin["guarantee"]) for pin in pins if pin]


def _froze(found: dict[str, Any], cases: Path) -> object:
    assert len(list_cases(cases)) == 1
    return found["onset_step"], found["incident"], _pins(found), found["entries"], found["signed"]


def _released(_found: dict[str, Any], cases: Path) -> object:
    (case,) = list_cases(cases)
    return list((case / "evidence").glob("pinned/**/*")), "released" in (case / "evidence/manifest.json").read_text()


def _checked(found: dict[str, Any], _cases: Path) -> object:
    return [(fact["name"], fact["value"]) for fact in found["facts"]]


def _reported(found: dict[str, Any], cases: Path) -> object:
    (case,) = list_cases(cases)
    return found["files"], found["not_run"], [(case / name).is_file() for name in found["files"]]


def _walked(found: dict[str, Any], cases: Path) -> object:
    (case,) = list_cases(cases)
    return found["exit"], [left["step"] for left in found["left_out"]], (case / "postmortem.html").is_file()


def _described(_found: dict[str, Any], cases: Path) -> object:
    return cases.with_suffix("").joinpath("spike.yaml").read_text()


def _outcome(found: dict[str, Any], _cases: Path) -> object:
    return found["outcome"]["kind"], found["spec"]["id"][5:]


def _replayed(found: dict[str, Any], _cases: Path) -> object:
    return found["licence"]["grade"], found["outcome"]["kind"]


def _concluded(found: dict[str, Any], _cases: Path) -> object:
    return found["status"], found["cause"], found["step"], found["where"]["samples"]


def _gated(found: dict[str, Any], _cases: Path) -> object:
    return found["is_open"], [(c["name"], c["state"]) for c in found["conditions"] if c["name"] != "throughput"]


CHEAP = (
    Written("init", ("init", "--json"), (), _described, done_code=2),
    Written("freeze", ("freeze", "--json"), (), _froze, weight=6),
    Written("freeze --key", ("freeze", "--key", "{key}", "--json"), (), _froze),
    Written("sign later", ("freeze", "--key", "{key}", "--json"), ("freeze",), _froze),
    Written("freeze --release", ("freeze", "--release", "--json"), ("freeze",), _released),
    Written("release signed", ("freeze", "--release", "--key", "{key}", "--json"), ("freeze --key",), _released),
    Written("check", ("check", "--json"), ("freeze",), _checked),
    Written("report", ("report", "--json"), ("freeze", "check"), _reported, weight=2),
    Written("walk", ("walk", "--yes", "--json"), (), _walked, code=4, whole_group=True, weight=2),
)
TRAINING = (
    Written("replay", ("replay", "--json"), ("freeze",), _replayed, trains=True),
    Written("branch", ("branch", "control-batch", "--json"), ("freeze", "replay"), _outcome, trains=True),
    Written("bisect", ("bisect", "--json"), ("freeze", "replay"), _concluded, trains=True),
    Written("gate", ("gate", "--json"), ("freeze", "replay", "bisect"), _gated, code=1, trains=True),
)
BY_NAME = {way.name: way for way in (*CHEAP, *TRAINING)}


def parsed(text: str) -> dict[str, Any]:
    """The one JSON object that a command printed."""
    found: dict[str, Any] = json.loads(text)
    return found
