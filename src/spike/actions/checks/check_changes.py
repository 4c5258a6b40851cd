"""What changed between the last good checkpoint and the incident? Code, configuration, launch, libraries, machines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from spike.actions.checks.check_scene import Scene
from spike.casefile.codec import from_payload
from spike.domain.difference import (
    Difference,
    DifferenceKind,
    commit_differences,
    launch_differences,
    mapping_differences,
    matters,
    patch_differences,
    ranked,
)
from spike.domain.errors import InputUnreadable
from spike.domain.facts import NOT_MEASURED, Fact
from spike.domain.measured import NotMeasured
from spike.domain.source import CommitFacts, SourceState
from spike.domain.verdict import Place
from spike.readers.environment import launch_interpreter
from spike.readers.source_tree import file_at, history, read_source

HISTORY_COMMITS = 200
MAX_CONFIG_BYTES = 1 << 20
CLOCK_SLACK_S = 1.0
"""Commit times are whole seconds."""
_CONFIG_NAME = re.compile(r"\.(ya?ml|json|toml)$", re.I)
_COMMIT_KEY = re.compile(r"(^|\.)(git_)?(commit|sha|revision)(_hash|_id)?$", re.I)
STATE = "evidence/source/state.json"

Rows = tuple[tuple[str, ...], ...]


def change_facts(scene: Scene) -> tuple[tuple[Fact, ...], tuple[tuple[str, Rows], ...]]:
    """`code.changed`, `config.changed`, `environment.changed`, and a table of every difference by relevance."""
    code, code_fact = _code(scene)
    config, config_fact = _config(scene, code)
    environment, environment_fact = _environment(scene)
    found = ranked([*code, *config, *environment])
    rows: list[tuple[str, ...]] = [("what", "where", "before", "after")]
    rows += [
        (
            d.kind.value,
            d.commit[:10] or d.key,
            _short(d.before),
            _short(d.after if not d.commit else f"{d.after} ({d.key})"),
        )
        for d in found[:40]
    ]
    tables = ((f"differences since the last good checkpoint, {len(found)} in all", tuple(rows)),) if found else ()
    return (code_fact, config_fact, environment_fact), tables


# -- code -------------------------------------------------------------------------------------------------------


def _code(scene: Scene) -> tuple[tuple[Difference, ...], Fact]:
    name = "code.changed"
    state, commits, evidence = source_of(scene)
    if isinstance(state, NotMeasured):
        return (), Fact(name, NOT_MEASURED, state.not_measured, evidence)
    if scene.last_good is None:
        return (), Fact(name, NOT_MEASURED, "there is no last good checkpoint to date the code by", evidence)
    written, end = scene.written(scene.last_good), scene.end_of_record()
    after = [c for c in commits if c.time > written - CLOCK_SLACK_S and (end is None or c.time <= end + CLOCK_SLACK_S)]
    stored = _stored_commits(scene)
    found = commit_differences(after)
    patched = patch_differences(_patched_since(state, written))
    relevant = [d for d in (*found, *patched) if matters(d)]
    if stored is not None and stored[0] != stored[1]:
        text = f"the last good checkpoint was written by commit {stored[0][:10]}, the next one by {stored[1][:10]}"
        if relevant:
            text += f"; {relevant[0]}"
        place = Place(commit=stored[1], file=relevant[0].key if relevant else "")
        return (*found, *patched), Fact(name, "yes", text, evidence, place)
    if relevant:
        first = relevant[0]
        text = f"{len(relevant)} changes of code or configuration since the last good checkpoint, first {first}"
        return (*found, *patched), Fact(name, "yes", text, evidence, Place(commit=first.commit, file=first.key))
    if found or patched:
        text = f"{len(found) + len(patched)} changes since the last good checkpoint, none of them code or configuration"
        return (*found, *patched), Fact(name, "no", text, evidence)
    if not commits:
        return (), Fact(name, NOT_MEASURED, "the history cannot be read", evidence)
    text = f"no commit and no uncommitted change is younger than the last good checkpoint (HEAD {state.commit[:10]})"
    return (), Fact(name, "no", text, evidence)


def source_of(scene: Scene) -> tuple[SourceState | NotMeasured, tuple[CommitFacts, ...], tuple[str, ...]]:
    """The code's state and history: as frozen in the case, else as it lies there now."""
    frozen = scene.case.read_json(STATE) if scene.case is not None else None
    if frozen is not None:
        raw = frozen.get("state", {})
        if isinstance(raw, dict) and "not_measured" in raw:
            return NotMeasured(str(raw["not_measured"])), (), (STATE,)
        state = from_payload(SourceState, raw, source=STATE)
        commits = tuple(from_payload(CommitFacts, row, source=STATE) for row in frozen.get("history", []))
        return state, commits, (STATE,)
    directory = Path(scene.run.code or scene.run.directory)
    live = read_source(directory)
    if isinstance(live, NotMeasured):
        return live, (), ()
    try:
        return live, history(directory, HISTORY_COMMITS), ("git",)
    except InputUnreadable as error:
        return NotMeasured(error.message), (), ()


def _patched_since(state: SourceState, written: float) -> Iterator[str]:
    """Uncommitted changes that were made after the checkpoint; those whose time is unknown count."""
    for name in state.changed:
        path = Path(state.root) / name
        if not path.is_file() or path.stat().st_mtime > written - CLOCK_SLACK_S:
            yield name


def _stored_commits(scene: Scene) -> tuple[str, str] | None:
    """The commits that the last good and the next checkpoint say they were written by."""
    if scene.last_good is None or not scene.suspect:
        return None
    before = {k: v for k, v in scene.last_good.config if _COMMIT_KEY.search(k)}
    after = dict(scene.suspect[0].config)
    for key, text in before.items():
        old, new = text.strip('"'), after.get(key, "").strip('"')
        if old and new and re.fullmatch(r"[0-9a-f]{7,64}", old) and re.fullmatch(r"[0-9a-f]{7,64}", new):
            return old, new
    return None


# -- configuration ----------------------------------------------------------------------------------------------


def _config(scene: Scene, code: Sequence[Difference]) -> tuple[tuple[Difference, ...], Fact]:
    name = "config.changed"
    if scene.last_good is None:
        return (), Fact(name, NOT_MEASURED, "there is no last good checkpoint to compare with")
    found: list[Difference] = []
    sources: list[str] = []
    if scene.last_good.config and scene.suspect and scene.suspect[0].config:
        found += _without_commits(
            mapping_differences(scene.last_good.config, scene.suspect[0].config, DifferenceKind.CONFIG)
        )
        sources.append(f"the configurations stored at steps {scene.last_good.step} and {scene.suspect[0].step}")
    committed = tuple(_committed_config(scene, code))
    found += committed
    if any(_CONFIG_NAME.search(f) for d in code for f in d.files):
        sources.append("the configuration files of the commits since")
    found += _touched_config(scene)
    found += _launch(scene)
    evidence = (scene.evidence(scene.last_good), *(scene.evidence(c) for c in scene.suspect[:1]))
    relevant = [d for d in ranked(found) if matters(d)]
    if relevant:
        first = relevant[0]
        text = f"{len(relevant)} settings differ, first {first}"
        return tuple(found), Fact(name, "yes", text, evidence, Place(key=first.key, file=next(iter(first.files), "")))
    if not sources:
        text = "the checkpoints store no configuration, and no configuration file was touched since"
        return tuple(found), Fact(name, NOT_MEASURED, text, evidence)
    labels = f"; {len(found)} names, paths or lengths do" if found else ""
    return tuple(found), Fact(name, "no", f"no setting differs in {' and '.join(sources)}{labels}", evidence)


def _without_commits(differences: Iterable[Difference]) -> Iterator[Difference]:
    return (d for d in differences if not _COMMIT_KEY.search(d.key))


def _committed_config(scene: Scene, code: Sequence[Difference]) -> Iterator[Difference]:
    """Keys that changed in configuration files of commits since the last good checkpoint."""
    directory = Path(scene.run.code or scene.run.directory)
    _, commits, _ = source_of(scene)
    older = {newer.commit: commit.commit for newer, commit in pairwise(commits)}
    for commit in (d for d in code if d.kind is DifferenceKind.COMMIT and d.commit in older):
        for name in [f for f in commit.files if _CONFIG_NAME.search(f)][:20]:
            before = _config_at(directory, older[commit.commit], name)
            after = _config_at(directory, commit.commit, name)
            if before is None and after is None:
                continue
            for d in mapping_differences(before or (), after or (), DifferenceKind.CONFIG):
                yield Difference(d.kind, d.key, d.before, d.after, d.weight, commit.commit, (name,))


def _config_at(directory: Path, commit: str, name: str) -> tuple[tuple[str, str], ...] | None:
    try:
        raw = file_at(directory, commit, name)
    except InputUnreadable:
        return None
    return _flat(name, raw)


def _flat(name: str, raw: bytes) -> tuple[tuple[str, str], ...] | None:
    """A configuration file as dotted keys; None where it is no such file."""
    if len(raw) > MAX_CONFIG_BYTES:
        return None
    try:
        text = raw.decode("utf-8")
        if name.endswith(".toml"):
            import tomllib

            value: Any = tomllib.loads(text)
        else:
            value = yaml.safe_load(text)  # JSON is YAML
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    return tuple(_leaves(value, "")) if isinstance(value, dict) else None


def _leaves(value: Any, prefix: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth < 12:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    else:
        yield prefix, json.dumps(value, default=str)[:500]


def _touched_config(scene: Scene) -> Iterator[Difference]:
    """Configuration files of the launch command that were written after the last good checkpoint.

    Only where git does not know them: a tracked one is in the commits or in the uncommitted changes.
    """
    if scene.last_good is None or (scene.case is not None and not scene.directory.is_dir()):
        return
    state, _, _ = source_of(scene)
    known = set(state.changed) if isinstance(state, SourceState) else set()
    untracked = {f.path for f in state.untracked} if isinstance(state, SourceState) else None
    written = scene.written(scene.last_good)
    for word in _words(scene.run.launch):
        path = Path(scene.run.cwd or scene.run.directory) / word
        if not _CONFIG_NAME.search(word) or not path.is_file() or word in known:
            continue
        if untracked is not None and word not in untracked:
            continue
        if path.stat().st_mtime > written:
            yield Difference(DifferenceKind.CONFIG, word, "older", "written since", 0.6, "", (word,))


def _launch(scene: Scene) -> Iterator[Difference]:
    """The recorded command line against the one in spike.yaml."""
    for trace in scene.traces[:1]:
        recorded = [word for word in trace.process.argv if word]
        described = _words(scene.run.launch)
        script = next((place for place, word in enumerate(described) if word.endswith(".py")), None)
        if not recorded or script is None:
            return
        start = next((place for place, word in enumerate(recorded) if word.endswith(".py")), 0)
        for d in launch_differences(recorded[start + 1 :], described[script + 1 :]):
            if "{" not in d.before + d.after:
                yield d


def _words(command: str) -> list[str]:
    try:
        return [
            word.rpartition("=")[2] if "=" in word and not word.startswith("-") else word
            for word in shlex.split(command)
        ]
    except ValueError:
        return command.split()


# -- environment ------------------------------------------------------------------------------------------------


def _environment(scene: Scene) -> tuple[tuple[Difference, ...], Fact]:
    name = "environment.changed"
    found = list(_between_traces(scene))
    if scene.last_good is None:
        return tuple(found), Fact(name, NOT_MEASURED, "there is no last good checkpoint to date packages by")
    interpreter = launch_interpreter(scene.run.launch, Path(scene.run.cwd or scene.run.directory))
    packages = _site_packages(interpreter) if interpreter is not None else None
    written, end = scene.written(scene.last_good), scene.end_of_record()
    if packages is not None:
        found += _installed_since(packages, written, end)
    evidence = ("evidence/environment.json",) if scene.case is not None else ()
    relevant = [d for d in ranked(found) if matters(d)]
    if relevant:
        text = f"{len(relevant)} differences of the environment, first {relevant[0]}"
        return tuple(found), Fact(name, "yes", text, evidence, Place(key=relevant[0].key))
    if packages is None:
        text = "neither a recorded process nor the launch command's interpreter shows which packages were used"
        return tuple(found), Fact(name, NOT_MEASURED, text, evidence)
    text = f"no package below {packages} was installed after the last good checkpoint was written, on this machine"
    return tuple(found), Fact(name, "no", text, evidence)


def _between_traces(scene: Scene) -> Iterator[Difference]:
    """Packages and hosts of recorded processes, earliest start against latest."""
    ordered = sorted(scene.traces, key=lambda trace: trace.first_step)
    if len({trace.first_step for trace in ordered}) < 2:
        return
    old, new = ordered[0].process, ordered[-1].process
    yield from mapping_differences(old.packages, new.packages, DifferenceKind.PACKAGE)
    yield from mapping_differences(old.env, new.env, DifferenceKind.VARIABLE)
    if old.host != new.host:
        yield Difference(DifferenceKind.HOST, "host", old.host, new.host, 0.5)


def _site_packages(interpreter: Path) -> Path | None:
    base = interpreter.parent.parent / "lib"
    return next((path for path in sorted(base.glob("python3*/site-packages")) if path.is_dir()), None)


def _installed_since(packages: Path, written: float, end: float | None) -> Iterator[Difference]:
    for folder in sorted(packages.glob("*.dist-info")):
        # The directory is made by the installation; the files in it may be links to an older cache.
        changed = folder.stat().st_mtime
        if written < changed and (end is None or changed <= end + CLOCK_SLACK_S):
            project, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
            difference = mapping_differences((), ((project, version),), DifferenceKind.PACKAGE)[0]
            yield Difference(difference.kind, project, "another or none", version, difference.weight)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
