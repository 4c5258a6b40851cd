"""Does spike still tell the truth? Fixture incidents are built, investigated blind, and held against what was planted.

The investigation is the command line itself, in processes that see the run directory and nothing of the fixture: its
path does not even carry the name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spike.domain.errors import ExitCode, InputUnreadable, SpikeError
from spike.domain.truth import Found, Truth, mismatches
from spike.domain.verdict import CauseClass, Place, Status
from spike.knowledge.truths import load_truths
from spike.readers.source_tree import history

ANSWERS = frozenset({ExitCode.PASSED, ExitCode.ANSWER_NO, ExitCode.INCONCLUSIVE})
"""Exit codes with which a step of an investigation has said something."""
INVESTIGATION = (("detect",), ("freeze",), ("check",), ("bisect",))
TAIL_CHARACTERS = 1500

Talk = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FixtureResult:
    """One fixture, judged."""

    truth: Truth
    found: Found | None
    """None where the fixture was not investigated to the end."""
    wrong: tuple[str, ...] = ()
    """Respects in which the investigation is not the truth."""
    failed: str = ""
    """A build or a command that broke, with the end of what it printed."""
    skipped: str = ""
    """Why it could not be built here."""
    build_s: float = 0.0
    investigate_s: float = 0.0
    directory: str = ""
    """Where run, case and logs are kept; "" where they were thrown away."""

    @property
    def is_passed(self) -> bool:
        """True where the investigation told the truth."""
        return self.found is not None and not self.wrong and not self.failed


class _Broken(Exception):
    """A process of this fixture ended in a way that is no answer."""


def run_fixtures(
    fixtures: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 1,
    keep: Path | None = None,
    talk: Talk = lambda _text: None,
) -> tuple[FixtureResult, ...]:
    """Build, investigate and judge the fixtures, `jobs` at a time; results in the order of their names.

    `keep`: directory that receives run, case and logs of each; without it they are thrown away.
    """
    fixtures = fixtures_root(fixtures)
    truths = load_truths(fixtures, tuple(only))

    def one(truth: Truth) -> FixtureResult:
        result = _run_fixture(fixtures, truth, keep, talk)
        talk(line(result))
        return result

    with ThreadPoolExecutor(max_workers=max(jobs, 1)) as pool:
        return tuple(pool.map(one, truths))


def fixtures_root(given: Path) -> Path:
    """The fixtures directory that is meant: the one given, or the one around it where its incidents/ was given."""
    resolved = given.resolve()
    is_inside = resolved.name == "incidents" and (resolved.parent / "build.py").is_file()
    return resolved.parent if is_inside else resolved


def _run_fixture(fixtures: Path, truth: Truth, keep: Path | None, talk: Talk) -> FixtureResult:
    missing = [package for package in truth.needs if find_spec(package) is None]
    if missing:
        return FixtureResult(truth, None, skipped=f"{', '.join(missing)} is not installed here")
    kept = str(keep / truth.name) if keep is not None else ""
    began = time.monotonic()
    built = began
    with _place(keep, truth.name) as place:
        try:
            talk(f"{truth.name}: building")
            _build(fixtures, truth.name, place)
            built = time.monotonic()
            talk(f"{truth.name}: built in {built - began:.0f} s, investigating")
            found = _investigate(place, truth, talk)
        except (_Broken, InputUnreadable) as error:
            ended = time.monotonic()
            return FixtureResult(truth, None, (), str(error), "", built - began, ended - built, kept)
    wrong = mismatches(truth, found)
    return FixtureResult(truth, found, wrong, "", "", built - began, time.monotonic() - built, kept)


@contextmanager
def _place(keep: Path | None, name: str) -> Iterator[Path]:
    """A directory for one fixture. The run below it is called `run`, whatever the fixture is called."""
    if keep is not None:
        place = keep.absolute() / name
        if place.exists():
            raise SpikeError(f"{place} exists, from an earlier run", hint="spike ci --keep another-directory")
        place.mkdir(parents=True)
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="spike-ci-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _build(fixtures: Path, name: str, place: Path) -> None:
    builder = fixtures / "build.py"
    with (place / "build.log").open("w") as log:
        command = [sys.executable, str(builder.resolve()), name, str(place / "run")]
        code = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False).returncode
    if code:
        raise _Broken(f"the build ended with exit code {code}: {_tail((place / 'build.log').read_text())}")


def _investigate(place: Path, truth: Truth, talk: Talk) -> Found:
    """What the commands say, each in its own process, as an operator would type them in the run's directory."""
    answers: dict[str, dict[str, Any]] = {}
    for arguments in INVESTIGATION:
        command = arguments[0]
        answers[command] = _ask(place, arguments)
        if command == "detect" and (truth.is_clean or not answers["detect"]["incidents"]):
            break
        talk(f"{truth.name}: {command} done")
    return _found(answers, place / "run")


def _ask(place: Path, arguments: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "spike.cli.app", *arguments, "--json"]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SPIKE_")}
    with (place / f"{arguments[0]}.log").open("w+") as log:
        done = subprocess.run(
            command,
            cwd=place / "run",
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
        log.seek(0)
        said = log.read()
    if done.returncode not in ANSWERS:
        raise _Broken(f"spike {' '.join(arguments)} ended with exit code {done.returncode}: {_tail(said)}")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise _Broken(f"spike {' '.join(arguments)} --json printed no JSON object: {error}") from error
    (place / f"{arguments[0]}.json").write_text(done.stdout)
    return answer


def _found(answers: dict[str, dict[str, Any]], run: Path) -> Found:
    onsets = tuple(int(i["onset_step"]) for i in answers["detect"]["incidents"])
    verdict = answers.get("bisect")
    if verdict is None:
        return Found(onsets)
    where = {k: v for k, v in verdict["where"].items() if v is not None}
    where["samples"] = tuple(where.get("samples", ()))
    where["commit"] = _subject(run, where.get("commit", ""))
    return Found(
        onsets=onsets,
        status=Status(verdict["status"]),
        cause_class=CauseClass(verdict["class"]),
        cause=verdict["cause"],
        step=verdict["step"],
        where=Place(**where),
        num_trials=int(verdict["trials"]),
    )


def _subject(run: Path, commit: str) -> str:
    """The subject line of a commit: hashes differ from build to build, since commits carry their time."""
    if not commit:
        return ""
    return next((c.subject for c in history(run) if c.commit.startswith(commit)), commit)


def line(result: FixtureResult) -> str:
    """One fixture in one line."""
    took = f"{result.build_s:.0f} s to build, {result.investigate_s:.0f} s to investigate"
    if result.skipped:
        return f"skipped  {result.truth.name}: {result.skipped}"
    if result.failed:
        return f"broken   {result.truth.name} ({took}): {result.failed}"
    assert result.found is not None
    took += f", {result.found.num_trials} trials"
    if result.wrong:
        return f"wrong    {result.truth.name} ({took}): {'; '.join(result.wrong)}"
    return f"right    {result.truth.name} ({took})"


def _tail(text: str) -> str:
    return text.strip()[-TAIL_CHARACTERS:]
